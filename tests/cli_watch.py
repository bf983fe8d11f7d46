"""Looking at processes from outside, with deadlines instead of sleeps of a fixed length."""

from __future__ import annotations

import os
import time
from collections.abc import Callable

import psutil
import pytest


def poll(condition: Callable[[], bool], what: str, timeout_s: float = 20) -> None:
    """Wait until something is true, looking often."""
    ends = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > ends:
            pytest.fail(f"not within {timeout_s:g} s: {what}")
        time.sleep(0.02)


def descendants(pid: int) -> list[psutil.Process]:
    """The processes below one, now."""
    return psutil.Process(pid).children(recursive=True)


def running(processes: list[psutil.Process]) -> list[psutil.Process]:
    """Those of them that still run (a zombie does not)."""
    found = []
    for process in processes:
        try:
            if process.is_running() and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except psutil.NoSuchProcess:
            continue
    return found


def groups(run_id: str) -> list[str]:
    """The control groups of a run, anywhere on this machine. Others come and go while we look."""
    return [path for path, _, _ in os.walk("/sys/fs/cgroup") if run_id in path]
