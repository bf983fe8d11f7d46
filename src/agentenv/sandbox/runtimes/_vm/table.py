"""What the configuration says of the machines of a monitor, and what it makes of a machine.

What a machine brought back from a snapshot must have like the one it was made of becomes part of the snapshot's name:
the kernel's words, the drives with what is on them, the memory. Limits of throughput do not: they are set anew for
each.
"""

from __future__ import annotations

import dataclasses
import os
import string
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from agentenv.errors import RuntimeUnavailable
from agentenv.sandbox.runtimes._vm.machine import Drive, Machine, MachineSpec, Rate

_EXT4_AT, _EXT4, _SQUASHFS = 1080, b"\x53\xef", b"hsqs"
_HEAD_BYTES = 2048
_BALLOON_S = 60.0
_LOOK_S = 0.05


@dataclass(frozen=True, slots=True)
class Mounted:
    """A drive that every machine has besides its own.

    Attributes:
        path: The image.
        place: Directory in the machine at which it is mounted.
        kind: Its file system.
        mark: What tells it from what may be put in its place.
    """

    path: Path
    place: str
    kind: str
    mark: str


@dataclass(frozen=True, slots=True)
class MachineTable:
    """The table of a monitor, as far as it is about machines.

    Attributes:
        boot_args: Words added to the kernel's command line.
        drives: Further drives.
        rate: Limit of each drive.
        balloon_mb: MiB of memory that a balloon holds.
        huge_pages: Whether memory consists of pages of 2 MiB.
    """

    boot_args: str = ""
    drives: tuple[Mounted, ...] = ()
    rate: Rate = field(default_factory=Rate)
    balloon_mb: int = 0
    huge_pages: bool = False

    @classmethod
    def of(cls, settings: Mapping[str, Any]) -> MachineTable:
        """Read it.

        Args:
            settings: As in ``RuntimeOptions``.

        Raises:
            RuntimeUnavailable: A drive is missing, or has no file system that a machine can mount.
        """
        mb_per_s = settings.get("disk_mb_per_s")
        return cls(
            boot_args=str(settings.get("boot_args", "")),
            drives=tuple(_look_at(Path(drive["path"]), drive["mount"]) for drive in settings.get("drives", ())),
            rate=Rate(None if mb_per_s is None else mb_per_s << 20, settings.get("disk_ops_per_s")),
            balloon_mb=settings.get("balloon_mb", 0),
            huge_pages=settings.get("huge_pages") == "2M",
        )

    def equip(self, machine: MachineSpec, least_mb: int) -> MachineSpec:
        """A machine with all of this.

        Raises:
            RuntimeUnavailable: It has not enough memory for its balloon.
        """
        left = machine.memory_mb - self.balloon_mb
        if left < least_mb and self.balloon_mb:
            raise RuntimeUnavailable(
                f"{machine.id}: memory_mb = {machine.memory_mb} with balloon_mb = {self.balloon_mb} leaves {left} MiB,"
                f" and a machine needs {least_mb}",
                "raise memory_mb, or lower balloon_mb",
            )
        drives = [dataclasses.replace(drive, rate=self.rate) for drive in machine.drives]
        drives += [Drive(str(drive.path), rate=self.rate, mark=drive.mark) for drive in self.drives]
        return dataclasses.replace(
            machine,
            drives=tuple(drives),
            boot_args=self.boot_args,
            balloon_mb=self.balloon_mb,
            huge_pages=self.huge_pages,
        )

    def parts(self) -> list[str]:
        """What of it is in a snapshot of a machine."""
        drives = [f"{drive.path} {drive.place} {drive.mark}" for drive in self.drives]
        return [self.boot_args, repr(drives), f"{self.balloon_mb} {self.huge_pages}"]

    def places(self, machine: MachineSpec) -> Iterator[dict[str, Any]]:
        """Requests that have the agent show the further drives; they are the machine's last ones."""
        first = len(machine.drives) - len(self.drives)
        for letter, drive in zip(string.ascii_lowercase[first:], self.drives, strict=False):
            yield {"device": f"/dev/vd{letter}", "kind": drive.kind, "places": [["", drive.place]]}


def unlimited(machine: MachineSpec) -> MachineSpec:
    """The same machine without limits of throughput, which are of no use while it boots."""
    return dataclasses.replace(
        machine, drives=tuple(dataclasses.replace(drive, rate=Rate()) for drive in machine.drives)
    )


def await_balloon(machine: Machine, timeout_s: float = _BALLOON_S) -> None:
    """Wait until a machine's balloon holds what it should.

    Raises:
        RuntimeUnavailable: It does not: the kernel has no driver for it, or there is not so much to take.
    """
    wanted = machine.spec.balloon_mb
    deadline = time.monotonic() + timeout_s
    while (held := machine.ballooned_mb()) < wanted:
        if time.monotonic() > deadline:
            raise RuntimeUnavailable(
                f"balloon_mb = {wanted}: the balloon held {held} MiB after {timeout_s:g} s",
                "lower balloon_mb; at 0 MiB the kernel has no virtio_balloon: agentenv kernel fetch --fresh",
            )
        time.sleep(_LOOK_S)


def _look_at(path: Path, place: str) -> Mounted:
    try:
        # Without waiting, as a pipe would have it for whoever writes there.
        with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
            head = file.read(_HEAD_BYTES) or b""
        found = path.stat()
    except OSError as error:
        raise RuntimeUnavailable(
            f"drive {path}: expected an ext4 or squashfs image that can be read: {error.strerror}",
            "correct its path, or its rights",
        ) from error
    if head[_EXT4_AT : _EXT4_AT + len(_EXT4)] == _EXT4:
        kind = "ext4"
    elif head.startswith(_SQUASHFS):
        kind = "squashfs"
    else:
        raise RuntimeUnavailable(
            f"drive {path}: expected an ext4 or squashfs image, it is neither",
            "mkfs.ext4 -d DIRECTORY IMAGE SIZE makes one of a directory, mksquashfs DIRECTORY IMAGE another",
        )
    return Mounted(path.resolve(), place, kind, f"{place} {found.st_size} {found.st_mtime_ns}")
