"""What a process holds of the machine, counted, so that a suite can say that nothing was left behind.

Only what belongs to this process or carries a run's id is counted: other programs of the machine come and go.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import psutil

_CGROUPS = Path("/sys/fs/cgroup")


@dataclass(frozen=True, slots=True)
class Stock:
    """Counts that must be equal before and after.

    Attributes:
        descriptors: Open descriptors of this process.
        processes: Its descendants.
        cgroups: Control groups whose name holds the run's id.
        files: Names in the temporary directories that hold the run's id.
        mounts: Mounts this process sees. Other programs' are among them, which come and go; fewer are no fault.
    """

    descriptors: int
    processes: int
    cgroups: int
    files: int
    mounts: int


def take_stock(run_id: str) -> Stock:
    """Count now.

    Args:
        run_id: Of the run that is looked for.
    """
    cgroups = sum(run_id in name for _, names, _ in os.walk(_CGROUPS) for name in names)
    places = {Path(tempfile.gettempdir()), Path("/dev/shm"), Path("/run")}
    files = sum(run_id in entry.name for place in places if place.is_dir() for entry in place.iterdir())
    with open("/proc/self/mountinfo", "rb") as stream:
        mounts = sum(1 for _ in stream)
    return Stock(len(os.listdir("/proc/self/fd")), len(descendants()), cgroups, files, mounts)


def descendants() -> list[int]:
    """Process ids of everything this process has started and that has not ended; zombies have."""
    found = []
    for process in psutil.Process().children(recursive=True):
        try:
            if process.status() != psutil.STATUS_ZOMBIE:
                found.append(process.pid)
        except psutil.NoSuchProcess:
            continue
    return found


def assert_stock_returns(before: Stock, run_id: str, within_s: float = 5.0) -> None:
    """Wait until the counts are what they were; the kernel takes a moment to remove a process that has ended.

    Raises:
        AssertionError: They are not, after that time; names both.
    """
    if not becomes_true(lambda: _is_back(take_stock(run_id), before), within_s):
        raise AssertionError(f"something was left behind: expected {before}, got {take_stock(run_id)}")


def _is_back(now: Stock, before: Stock) -> bool:
    return replace(now, mounts=max(now.mounts, before.mounts)) == before


def becomes_true(condition: Callable[[], bool], within_s: float) -> bool:
    """Whether a condition holds before the time is over; gives the processor away between two looks."""
    ends = time.monotonic() + within_s
    while not condition():
        if time.monotonic() > ends:
            return False
        os.sched_yield()
    return True
