"""The orderly end of a machine: what runs in it is asked to end, then killed, and its disks are written out.

None of this waits, but for the disks: the agent goes on in between, so that what programs write as they end goes out as
it always does.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import re
import signal
import time
from collections.abc import Callable, Set
from typing import Any

from agentenv.guest import confine

_LOOK_S = 0.02
# So long at least is waited until somebody has read what was written.
_OUTPUT_S = 5.0
_KERNEL_THREAD = 0x00200000  # PF_KTHREAD of linux/sched.h
_READ_ONLY = 1 | 32  # MS_RDONLY | MS_REMOUNT
_RESTART = 0x01234567  # LINUX_REBOOT_CMD_RESTART


class Ending:
    """An end that has begun.

    A program counts once, with all it has started: by its control group, and outside of any by its session.

    Attributes:
        over: Whether nothing runs any more, what was written is out, and the disks are written.
        ended: Programs that have ended after they were asked to.
        killed: Programs of which something was left when their time was over.
    """

    def __init__(self, timeout_s: float, own: Set[int]) -> None:
        """Ask everything to end.

        Args:
            timeout_s: Seconds until it is killed.
            own: Sessions of the agent's own processes: these end with the others, and are not counted.

        Raises:
            OSError: This is not the first process, and would end what is not its own.
        """
        _expect_first()
        self.over = False
        self.ended = self.killed = 0
        self._own = own
        self._deadline = time.monotonic() + timeout_s
        self._patience = 0.0
        self._next = 0.0
        # However many there are that compute, this process is to see the end of their time.
        with contextlib.suppress(OSError):
            os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
        self._asked = _programs(own)
        _signal_all(signal.SIGTERM)
        _signal_all(signal.SIGCONT)  # what was stopped can end only when it goes on

    def look(self, silent: Callable[[], bool]) -> None:
        """See how far it is, and do what is next.

        Args:
            silent: Tells whether everything that was written has gone out.
        """
        began = time.monotonic()
        if self.over or began < self._next:
            return
        left = _programs(set() if self._patience else self._own)
        now = time.monotonic()
        self._next = now + max(_LOOK_S, now - began)  # with thousands of them a look takes long; others have a turn too
        if not self._patience:
            if left and now < self._deadline:
                return
            self.ended, self.killed = len(self._asked - left), len(left)
            self._patience = max(self._deadline, now + _OUTPUT_S)
            return
        _signal_all(signal.SIGKILL)
        if (not left and silent()) or now > self._patience:
            _settle()
            self.over = True

    def told(self) -> dict[str, Any]:
        """How far it is, for the host."""
        return {"over": self.over, "ended": self.ended, "killed": self.killed}


def power_off() -> None:
    """End the machine.

    By a restart: without ACPI a machine that is powered off halts and stays. Monitors are run so that a restart ends
    them.

    Raises:
        OSError: This is not the first process.
    """
    _expect_first()
    ctypes.CDLL(None).reboot(ctypes.c_int(_RESTART))


def _expect_first() -> None:
    if os.getpid() != 1:
        raise OSError(errno.EPERM, f"expected to be the first process of a machine, am process {os.getpid()}")


def _signal_all(number: int) -> None:
    """Send everything but this process a signal; the kernel lets nothing be started meanwhile."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(-1, number)


def _programs(own: Set[int]) -> set[str]:
    """What runs but the kernel's threads and the sessions ``own``: names of control groups, numbers of sessions."""
    found = set()
    with contextlib.suppress(OSError):  # whoever is root here may have hidden it
        for name in os.listdir("/proc"):
            if name.isdigit() and name != "1" and (program := _program(name, own)):
                found.add(program)
    return found


def _program(pid: str, own: Set[int]) -> str:
    """What a process belongs to; "" for what does not count, or has ended."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as stream:
            fields = stream.read().rpartition(b")")[2].split()
        state, session, flags = fields[0], int(fields[3]), int(fields[6])
        if state in (b"Z", b"X") or flags & _KERNEL_THREAD:
            return ""
        with open(f"/proc/{pid}/cgroup", encoding="utf-8", errors="replace") as stream:
            lines = stream.read().splitlines()
    except (OSError, IndexError, ValueError):
        return ""
    group = next((line[3:] for line in lines if line.startswith("0::")), "/")
    if group != "/":
        return "/".join(group.split("/")[:3])
    return "" if session in own else str(session)


def _settle() -> None:
    """Write everything out, and have disks be as if they were unmounted, where that is possible."""
    os.sync()
    mounts = []
    with contextlib.suppress(OSError), open("/proc/self/mounts", encoding="utf-8", errors="surrogateescape") as stream:
        mounts = [line.split() for line in stream]
    for source, target, _kind, options, *_ in reversed(mounts):
        if options.split(",")[0] == "rw" and (source.startswith("/dev/") or target == "/"):
            path = re.sub(r"\\([0-7]{3})", lambda found: chr(int(found[1], 8)), target)
            with contextlib.suppress(OSError):
                confine.mount(source, path, None, _READ_ONLY)
