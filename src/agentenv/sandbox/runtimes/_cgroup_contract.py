"""What a control group is, whichever version the kernel has: limits in, figures out, one sure end.

`_cgroup_v1` and `_cgroup_v2` fulfil it. Limits and figures are frozen records in one set of units. A figure whose
controller is missing is zero; which those are is said once, by `detect`, not by every reading.
"""

from __future__ import annotations

import errno
from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path

from agentenv.errors import ClosedError, RuntimeUnavailable
from agentenv.sandbox.runtimes import _cgroupfs as fs

PERIOD_US = 100_000
"""Over which processor time is counted: the kernel's own default."""


@dataclass(frozen=True, slots=True)
class CgroupLimits:
    """The most a group may use.

    Attributes:
        memory_mb: MiB of everything charged: anonymous, tmpfs and shared memory, page cache, kernel. No swap.
        vcpu_count: Processors' worth of time, such as 0.5.
        pids: Processes and threads.
    """

    memory_mb: int
    vcpu_count: float
    pids: int

    def __post_init__(self) -> None:
        if self.memory_mb < 1 or self.pids < 1 or not 0.01 <= self.vcpu_count <= 4096:
            raise ValueError(
                f"expected memory_mb >= 1, pids >= 1 and vcpu_count from 0.01 to 4096; got memory_mb={self.memory_mb}, "
                f"pids={self.pids}, vcpu_count={self.vcpu_count}"
            )

    @property
    def memory_bytes(self) -> int:
        return self.memory_mb * 1024 * 1024

    @property
    def quota_us(self) -> int:
        """Time per period of `PERIOD_US`; the kernel takes no less than a millisecond."""
        return max(1000, round(self.vcpu_count * PERIOD_US))


@dataclass(frozen=True, slots=True)
class CgroupStats:
    """What a group has used. Zero where its controller is not available.

    Attributes:
        cpu_s: Processor time of all that ever ran in it, in seconds.
        memory_bytes: Anonymous and shared (tmpfs, memfd) memory: what nobody could take back.
        memory_peak_bytes: The most that was ever charged, page cache included; 0 before Linux 5.19 with v2.
        pids: Processes and threads now, those that died and were not waited for included.
        oom_kills: Processes the kernel killed because the limit was reached.
        io_read_bytes: Read from disks (v1: only what bypassed the page cache's delayed writing is counted).
        io_write_bytes: Written to disks.
        charged_bytes: What the limit is compared with: memory_bytes, page cache and kernel memory.
        throttled_periods: Periods of 100 ms in which the group had to wait for its processor time.
    """

    cpu_s: float
    memory_bytes: int
    memory_peak_bytes: int
    pids: int
    oom_kills: int
    io_read_bytes: int
    io_write_bytes: int
    charged_bytes: int = 0
    throttled_periods: int = 0


class Cgroup(ABC):
    """One group of processes under limits.

    `destroy` is the truth about its end: synchronous, idempotent, and when it returns nothing of the group is left.

    Attributes:
        name: As given to `CgroupRun.create`.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self._destroyed = False

    @property
    def destroyed(self) -> bool:
        """Whether it is gone for good."""
        return self._destroyed

    @property
    @abstractmethod
    def directories(self) -> tuple[Path, ...]:
        """Its directories: one with v2, one per controller with v1."""

    @abstractmethod
    def stats(self) -> CgroupStats:
        """Reads the figures.

        Raises:
            ClosedError: It was destroyed.
        """

    @abstractmethod
    def kill(self) -> None:
        """Kills every process in it and returns when none is left. It can be used again.

        Raises:
            AgentEnvError: Some outlive SIGKILL (a device or network file system that hangs), or cannot be seen.
        """

    def add(self, pid: int) -> None:
        """Moves a process with its threads; its later children start in the group.

        Memory it has already stays charged where it was, so add first and allocate then.

        Raises:
            ClosedError: The group was destroyed.
            ProcessLookupError: No such process.
            RuntimeUnavailable: The kernel refused.
        """
        self._check_open()
        for directory in self.directories:
            try:
                fs.write(directory / "cgroup.procs", str(pid))
            except ProcessLookupError:
                raise ProcessLookupError(errno.ESRCH, f"process {pid} is gone; cannot move it to {directory}") from None
            except OSError as error:
                raise RuntimeUnavailable(
                    f"cannot move process {pid} into {directory}: {error.strerror}",
                    "run as root, or under a service manager that delegates the group the process is in",
                ) from error

    def destroy(self) -> None:
        """Kills everything in it and removes it. May be called again.

        Raises:
            AgentEnvError: As for `kill`, or the kernel would not let go of the empty group.
        """
        if any(directory.exists() for directory in self.directories):
            self.kill()
            for directory in self.directories:
                fs.remove(directory)
        self._destroyed = True

    def _check_open(self) -> None:
        if self._destroyed:
            raise ClosedError(f"control group {self.name!r} was destroyed; create another")
