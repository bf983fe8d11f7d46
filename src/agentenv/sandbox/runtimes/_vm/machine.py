"""What a virtual machine monitor is to the rest: something that boots a machine, or brings one back from a snapshot.

A ``Hypervisor`` is made once per run; it starts ``Machine`` objects. It knows drives, memory and a byte stream into the
machine, and nothing of what runs there. The rules, for every one of them:

- A machine's files lie in its ``home``, a directory of its own, and are named relative to it, so that a snapshot can be
  brought back in another directory.
- ``boot`` and ``restore`` return as soon as the monitor runs and obeys, or raise with nothing left behind.
- ``kill`` and ``close`` are synchronous, idempotent, and never raise for a machine that is gone.
- Any other call on a machine whose monitor has ended raises ``ConnectionError``; one that is not done in time
  ``TimeoutError``; one that the monitor refuses ``RuntimeUnavailable``.
- A snapshot is a directory; any number of machines may be brought back from one at once, each seeing its memory
  copy-on-write.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Rate:
    """A limit of a drive's or an interface's throughput; None is no limit.

    Attributes:
        bytes_per_s: Bytes per second.
        ops_per_s: Operations (for an interface: packets) per second.
    """

    bytes_per_s: int | None = None
    ops_per_s: int | None = None


@dataclass(frozen=True, slots=True)
class Drive:
    """A disk of a machine, as raw image; they appear there in order as /dev/vda, /dev/vdb, ...

    Attributes:
        path: Absolute for what machines share, which must be read-only; a bare name for a file in the machine's home.
        readonly: Whether the machine can only read it.
        rate: Its limits.
        mark: What tells its content from another's, where a snapshot depends on it.
    """

    path: str
    readonly: bool = True
    rate: Rate = Rate()
    mark: str = ""


@dataclass(frozen=True, slots=True)
class Interface:
    """A network interface on a TAP device of the host.

    Attributes:
        tap: The device's name.
        mac: Its address in the machine.
        receive: Limit of what comes in.
        send: Limit of what goes out.
    """

    tap: str
    mac: str
    receive: Rate = Rate()
    send: Rate = Rate()


@dataclass(frozen=True, slots=True)
class MachineSpec:
    """A machine to boot.

    Attributes:
        id: Unique in the run; letters, digits, "-" and "_".
        kernel: An uncompressed kernel image (vmlinux) that has a PVH entry.
        initramfs: Its first file system, or None.
        drives: In order.
        memory_mb: RAM, MiB.
        vcpu_count: Processors.
        boot_args: Added to the kernel command line that the hypervisor needs itself.
        interfaces: Network, in order.
        network: Descriptor of the network namespace in which the TAP devices are; -1 for that of this process.
        console_bytes: The serial console is kept in "console.log" in the home, up to so many bytes.
        balloon_mb: MiB that a balloon takes from its memory until it would run out of memory.
        huge_pages: Whether its memory consists of pages of 2 MiB of the host's.
    """

    id: str
    kernel: Path
    initramfs: Path | None
    drives: tuple[Drive, ...]
    memory_mb: int
    vcpu_count: int
    boot_args: str = ""
    interfaces: tuple[Interface, ...] = ()
    network: int = -1
    console_bytes: int = 1 << 20
    balloon_mb: int = 0
    huge_pages: bool = False


@dataclass(frozen=True, slots=True)
class Started:
    """A process of a monitor.

    Attributes:
        pid: As this host numbers it.
        pidfd: Becomes readable when it ends; the machine closes it.
    """

    pid: int
    pidfd: int


@dataclass(frozen=True, slots=True)
class Command:
    """A program to start.

    Attributes:
        argv: Program and arguments.
        directory: Working directory.
        variables: All of its environment.
        output: Descriptor for its standard output and error.
        inherit: Further descriptors it keeps, under the same numbers.
        network: Descriptor of the network namespace it starts in; -1 for that of whoever starts it.
        apart: Whether it is the first process of a pid namespace, so that whatever it starts ends with it. Needs root.
    """

    argv: Sequence[str]
    directory: Path
    variables: Mapping[str, str] = field(default_factory=dict)
    output: int = -1
    inherit: Sequence[int] = ()
    network: int = -1
    apart: bool = False


Spawn = Callable[[Command], Started]
"""Starts a program with nothing to read on its standard input; it is killed when whoever called this ends, by whatever
means, and is reaped by whoever started it. The descriptors stay the caller's."""


class Machine(Protocol):
    """A machine that runs or is paused.

    Attributes:
        spec: What was asked.
        home: Its directory.
        pid: Of its monitor.
        pidfd: Becomes readable when the monitor ends; -1 after ``close``.
    """

    spec: MachineSpec
    home: Path

    @property
    def pid(self) -> int: ...

    @property
    def pidfd(self) -> int: ...

    def connect(self, timeout_s: float) -> socket.socket:
        """A stream to the agent inside, which listens on the agreed port; blocking, without a timeout of its own.

        The agent serves one stream at a time: a further one waits until the one before it is closed.

        Raises:
            TimeoutError: Nobody listened there in time.
            ConnectionError: The monitor is gone.
        """

    def pause(self) -> None:
        """Stop its processors."""

    def resume(self) -> None:
        """Let them go on."""

    def snapshot(self, directory: Path, *, durable: bool = True) -> None:
        """Write all of a paused machine but its drives into an existing, empty directory; to the disk if ``durable``.

        Raises:
            OSError: There is no room; the machine goes on being paused, and the directory is empty.
            RuntimeUnavailable: The monitor refuses; says why.
        """

    def ballooned_mb(self) -> int:
        """MiB its balloon holds now; 0 without one."""

    def alive(self) -> bool:
        """Whether the monitor runs."""

    def end_reason(self) -> str:
        """Of one that has ended, why, in its monitor's own word as QEMU has them ("guest-reset"); "" for no word."""

    def console(self, lines: int = 20) -> str:
        """The last lines of its serial console."""

    def kill(self) -> None:
        """End it at once; returns when the monitor has ended."""

    def close(self) -> None:
        """End it and free descriptors and sockets; the home is the caller's to remove."""


class Hypervisor(Protocol):
    """A kind of monitor, as found on this host.

    Attributes:
        name: "qemu" or "firecracker".
        version: As the program tells it.
        accelerator: "kvm", "hvf" or "tcg".
        agent_port: The device by which agents are reached, "serial" or "vsock".
    """

    name: str
    version: str
    accelerator: str
    agent_port: str

    def boot(self, spec: MachineSpec, home: Path) -> Machine:
        """Start a machine.

        Args:
            spec: What to boot.
            home: An existing directory that is its own.

        Raises:
            RuntimeUnavailable: The monitor does not start or refuses; says why and what helps.
        """

    def restore(self, spec: MachineSpec, home: Path, snapshot: Path) -> Machine:
        """Bring a machine back from a snapshot; it is paused. Its drives in the home must be as they were then.

        Args:
            spec: As it was booted; the id, interfaces' TAP devices and home may be others.
            home: An existing directory that is its own.
            snapshot: A directory that ``snapshot`` wrote; it must stay as long as the machine lives.

        Raises:
            RuntimeUnavailable: The snapshot cannot be used here; says why.
        """

    def close(self) -> None:
        """Free what its machines share, after all of them are closed. Idempotent."""
