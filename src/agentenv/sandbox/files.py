"""What machines are made of: files of the host, resolved by whoever knows images and kernels."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

ENTRYPOINT = "@entrypoint"
"""As the first word of a command: the image's ENTRYPOINT, and its CMD where nothing follows."""


@dataclass(frozen=True, slots=True)
class MachineFiles:
    """The files of one machine. None of them is ever written.

    Attributes:
        kernel: An uncompressed kernel.
        initramfs: Its first file system.
        root: Image of the root file system.
        tools: Image with the agent and its interpreter.
        scratch: An empty image of the size of what it may write; each machine gets a copy.
        project: Image with directories of the host, or None.
        places: For each of those, its path in the image and where it is shown.
        variables: Environment variables of the image.
        user: Whom the image says programs run as: a name or number, or "user:group"; "" for root.
        workdir: Where the image says programs begin.
        entrypoint: What the image says stands before every program; empty for nothing.
        cmd: What the image runs where nothing else is asked for; empty for nothing.
        image: What the configuration calls the root file system.
        cache: Directory in which snapshots of booted machines are kept.
    """

    kernel: Path
    initramfs: Path
    root: Path
    tools: Path
    scratch: Path
    project: Path | None = None
    places: tuple[tuple[str, str], ...] = ()
    variables: tuple[tuple[str, str], ...] = ()
    user: str = ""
    workdir: str = "/"
    entrypoint: tuple[str, ...] = ()
    cmd: tuple[str, ...] = ()
    image: str = ""
    cache: Path = Path()

    def paths(self) -> list[Path]:
        """All of its files."""
        every = (self.kernel, self.initramfs, self.root, self.tools, self.scratch, self.project)
        return [path for path in every if path is not None]

    def fingerprint(self) -> list[str]:
        """What tells a machine booted from these from others, cheaply: names, sizes and times of change.

        What is only told when a program is started, long after, does not count.
        """
        found = []
        for path in self.paths():
            status = path.stat()
            found.append(f"{path} {status.st_size} {status.st_mtime_ns}")
        return [*found, repr(self.places), repr(self.variables), f"{self.user} {self.workdir}"]
