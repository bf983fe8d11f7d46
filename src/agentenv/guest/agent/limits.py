"""A control group inside the machine for what runs there, so that it runs into its limits before the machine does.

Without one, a machine that is short of memory reads its programs from disk again and again instead of ending anybody.
Where the kernel has no control groups of version 2, the machine's own size is the only limit.
"""

from __future__ import annotations

import contextlib
import errno
import os
from dataclasses import dataclass
from typing import Self

from agentenv.guest import confine

_TOP = "/sys/fs/cgroup"
_GROUP, _TASKS = f"{_TOP}/cell", f"{_TOP}/tasks"
_RESERVE_BYTES = 40 << 20
_RESERVE_SHARE = 4
"""Of what is free when a group is made, so much is kept for the kernel, the agent and the zygote's own pages, or one in
so many parts where that is less."""
_LEAST_BYTES = 16 << 20
"""With less, what starts reads its programs from disk again and again, and never comes to anything."""
_STEP_BYTES = 16 << 20


def put_under(pid: int, pids: int) -> bool:
    """Limit a process and all it will start; whether that was possible.

    Args:
        pid: The process.
        pids: Most processes and threads.

    Raises:
        OSError: There is too little memory for anything to start.
    """
    free = _available_bytes()
    if free < _LEAST_BYTES:
        left = f"{free >> 20} MB of its machine's memory are left, and {_LEAST_BYTES >> 20} are needed to start in"
        more = ((_LEAST_BYTES - free) // _STEP_BYTES + 2) * _STEP_BYTES
        raise OSError(errno.ENOMEM, f"{left}; raise memory_mb by {more >> 20} or more")
    try:
        _limit(_GROUP)
        _write(f"{_GROUP}/pids.max", str(pids))
        _write(f"{_GROUP}/cgroup.procs", str(pid))
    except OSError:
        return False
    return True


def oom_kills() -> int:
    """How many processes the kernel has ended for want of memory, in the group or in all of the machine."""
    return _count(f"{_GROUP}/memory.events" if os.path.exists(f"{_GROUP}/memory.events") else "/proc/vmstat")


@dataclass(frozen=True, slots=True)
class TaskGroup:
    """A control group for a program and all it starts; all of them together are limited like a cell.

    Attributes:
        path: Its directory; "" where there are no control groups.
    """

    path: str

    @classmethod
    def make(cls, number: int) -> Self:
        """Make one. What an earlier one of that number has left running keeps it."""
        path = f"{_TASKS}/{number}"
        try:
            if not os.path.isdir(_TASKS):
                _limit(_TASKS)
                _write(f"{_TASKS}/cgroup.subtree_control", "+memory +pids")
            os.makedirs(path, exist_ok=True)
        except OSError:
            return cls("")
        return cls(path)

    def enter(self) -> None:
        """Put this process into it."""
        if self.path:
            with contextlib.suppress(OSError):
                _write(f"{self.path}/cgroup.procs", "0")

    def kill(self) -> bool:
        """End everything in it; whether that was possible."""
        if not os.path.exists(f"{self.path}/cgroup.kill"):
            return False
        with contextlib.suppress(OSError):
            _write(f"{self.path}/cgroup.kill", "1")
        return True

    def oom_kills(self) -> int:
        """How many of it were ended for want of memory."""
        return _count(f"{self.path}/memory.events") if self.path else 0

    def remove(self) -> None:
        """Remove it, unless something is running in it."""
        with contextlib.suppress(OSError):
            os.rmdir(self.path)


def child_of(pid: int) -> int | None:
    """The last child of a process, as this pid namespace numbers it."""
    try:
        with open(f"/proc/{pid}/task/{pid}/children", encoding="ascii") as stream:
            children = [int(word) for word in stream.read().split()]
    except OSError:
        return None
    return max(children, default=None)


def _limit(group: str) -> None:
    """Make a group that runs into its limit before the machine does.

    Raises:
        OSError: There are no control groups here.
    """
    if not os.path.exists(f"{_TOP}/cgroup.controllers"):
        confine.mount("cgroup2", _TOP, "cgroup2", 0)
    _write(f"{_TOP}/cgroup.subtree_control", "+memory +pids")
    os.makedirs(group, exist_ok=True)
    free = _available_bytes()
    _write(f"{group}/memory.max", str(free - min(_RESERVE_BYTES, free // _RESERVE_SHARE)))
    _write(f"{group}/memory.swap.max", "0")


def _count(path: str) -> int:
    with contextlib.suppress(OSError), open(path, encoding="ascii") as stream:
        return next((int(line.split()[1]) for line in stream if line.startswith("oom_kill ")), 0)
    return 0


def _available_bytes() -> int:
    with open("/proc/meminfo", encoding="ascii") as stream:
        return next(int(line.split()[1]) * 1024 for line in stream if line.startswith("MemAvailable"))


def _write(path: str, text: str) -> None:
    with contextlib.suppress(FileNotFoundError), open(path, "w", encoding="ascii") as stream:
        stream.write(text)
