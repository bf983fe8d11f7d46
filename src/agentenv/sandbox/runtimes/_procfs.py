"""What a sandbox uses, read from /proc, where no control group counts it."""

from __future__ import annotations

import os

from agentenv.sandbox.contract import Usage

_TICKS = os.sysconf("SC_CLK_TCK")


def descendants(pid: int) -> list[int]:
    """A process and everything below it, as far as it can be seen; never raises for one that ends meanwhile."""
    found, queue = [], [pid]
    while queue:
        current = queue.pop()
        found.append(current)
        try:
            with open(f"/proc/{current}/task/{current}/children", "rb") as stream:
                queue.extend(int(child) for child in stream.read().split())
        except OSError:
            continue
    return found


def read_usage(pid: int) -> Usage:
    """CPU time and unshared memory of a process tree."""
    cpu_s, memory_bytes, alive = 0.0, 0, 0
    for member in descendants(pid):
        try:
            with open(f"/proc/{member}/stat", "rb") as stream:
                fields = stream.read().rpartition(b")")[2].split()
            cpu_s += (int(fields[11]) + int(fields[12])) / _TICKS
            alive += 1
            with open(f"/proc/{member}/smaps_rollup", "rb") as stream:
                for line in stream:
                    if line.startswith(b"Private_"):
                        memory_bytes += int(line.split()[1]) * 1024
        except (OSError, IndexError):
            continue
    return Usage(cpu_s, memory_bytes, alive)
