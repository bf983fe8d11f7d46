"""Which process a run belongs to, so that another process can tell later whether it still lives.

A process id alone is not enough: numbers are reused. With the start time it is unique until the machine boots, and
the boot id covers that. A run on another machine (a shared disk) counts as not alive here: we cannot look.
"""

from __future__ import annotations

import os
import platform
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil


@dataclass(frozen=True, slots=True)
class Owner:
    """A process, named so that no other one can be taken for it.

    Attributes:
        pid: Its number.
        start_ticks: When it started: clock ticks since boot on Linux, milliseconds since the epoch elsewhere.
        boot_id: The kernel's id of this boot; empty where there is none.
        host: The machine's name, for people.
    """

    pid: int
    start_ticks: int
    boot_id: str
    host: str

    @classmethod
    def current(cls) -> Owner:
        """Returns the calling process."""
        pid = os.getpid()
        return cls(pid, _start_ticks(pid) or 0, _boot_id(), platform.node())

    @classmethod
    def from_record(cls, record: object) -> Owner | None:
        """Reads what ``as_record`` wrote; None if it is damaged."""
        if not isinstance(record, Mapping):
            return None
        pid, ticks = record.get("pid"), record.get("start_ticks")
        boot, host = record.get("boot_id"), record.get("host")
        if type(pid) is not int or type(ticks) is not int or not isinstance(boot, str) or not isinstance(host, str):
            return None
        return cls(pid, ticks, boot, host) if pid > 0 else None

    def as_record(self) -> dict[str, int | str]:
        """Returns it as a JSON object."""
        return asdict(self)

    def alive(self) -> bool:
        """Whether this very process still runs on this machine. A zombie does not."""
        return self.boot_id == _boot_id() and _start_ticks(self.pid) == self.start_ticks


def moment_of_boot() -> tuple[str, float]:
    """This boot's id, "" where there is none, and the seconds since: setting the clock moves neither."""
    clock = time.CLOCK_BOOTTIME if sys.platform == "linux" else time.CLOCK_MONOTONIC
    return _boot_id(), time.clock_gettime(clock)


def _start_ticks(pid: int) -> int | None:
    """The start time of a living process, or None."""
    if sys.platform == "linux":
        # psutil turns this into a wall-clock time, which moves when the clock is set; the raw ticks do not.
        try:
            fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
            state, ticks = fields[0], int(fields[19])
        except (OSError, IndexError, ValueError):
            return None
        return None if state in b"ZX" else ticks
    try:
        process = psutil.Process(pid)
        return None if process.status() == psutil.STATUS_ZOMBIE else int(process.create_time() * 1000)
    except psutil.Error:
        return None


def _boot_id() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return ""
