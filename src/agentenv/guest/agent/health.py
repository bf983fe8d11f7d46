"""How a machine is, as its own kernel sees it."""

from __future__ import annotations

import os
from typing import Any


def look(tasks: int) -> dict[str, Any]:
    """Uptime, load, memory and disk.

    Args:
        tasks: How many programs the agent runs.
    """
    memory: dict[str, int] = {}
    with open("/proc/meminfo", encoding="ascii") as stream:
        for line in stream:
            name, _, rest = line.partition(":")
            memory[name] = int(rest.split()[0]) * 1024
    with open("/proc/uptime", encoding="ascii") as stream:
        uptime_s = float(stream.read().split()[0])
    with open("/proc/loadavg", encoding="ascii") as stream:
        load = float(stream.read().split()[0])
    disk = os.statvfs("/")
    return {
        "uptime_s": uptime_s,
        "load": load,
        "tasks": tasks,
        "memory_bytes": memory["MemTotal"] - memory["MemAvailable"],
        "memory_free_bytes": memory["MemAvailable"],
        "disk_free_bytes": disk.f_bavail * disk.f_frsize,
    }
