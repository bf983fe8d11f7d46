"""What can be seen of an environment from outside: what its processes do, where their Python stands, what is full.

Reads /proc and asks ``faulthandler`` inside (``agentenv.guest.stacks``); decides nothing, see
``agentenv.sandbox.cause``. Signals only a process that has a handler for it, through a pidfd, so that looking ends
nobody.
"""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from agentenv.errors import AgentEnvError
from agentenv.guest import stacks
from agentenv.sandbox.cause import Look, State, most_telling
from agentenv.sandbox.contract import Sandbox, Usage

STACK_BYTES = 64 << 10
"""The most that is kept of a dump, from its end."""

_STATES: dict[str, State] = {
    "R": "running",
    "S": "sleeping",
    "I": "sleeping",
    "T": "stopped",
    "t": "stopped",
    "D": "blocked in the kernel",
}
_HEADER = re.compile(r"(?:Current thread|Thread) 0x[0-9a-f]+.* \(most recent call first\):")
_FATAL = re.compile(r"Fatal Python error: .*|Windows fatal exception: .*")
_PRIVATE_DISKS = ("/tmp", "/dev/shm")
_NO_ROOM_BYTES = 64 << 10
_MOST_PROCESSES = 64
_POLL_S = 0.004
_QUIET_S = 0.02


class StackOutput(Protocol):
    """What is needed of ``SandboxOutput``."""

    def drain(self, sandbox_id: str) -> None:
        """Read what is still in its pipes."""

    def received(self, sandbox_id: str, stream: str) -> int:
        """Bytes it wrote to a stream so far."""

    def text(self, sandbox_id: str, stream: str) -> str:
        """What is remembered of a stream."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """What was found out about an environment before it was ended.

    Attributes:
        look: What its processes did.
        stack: The Python stacks of its threads, as it printed them; "" where none could be had.
        usage: What it used; None where that could not be read.
    """

    look: Look
    stack: str = ""
    usage: Usage | None = None


def state_of(pid: int) -> State:
    """What a process does now; of one with threads, its first thread."""
    fields = _status(pid)
    return "gone" if fields is None else _STATES.get(fields.get("State", "?")[:1], "gone")


def environment_of(sandbox: Sandbox) -> int | None:
    """The process that serves the environment, as the host numbers it; None when it is gone.

    The sandbox's pidfd stands for it, or for the first process of the sandbox, whose first child it then is.
    """
    try:
        with open(f"/proc/self/fdinfo/{sandbox.pidfd}", encoding="ascii") as stream:
            pid = next((int(line.split()[1]) for line in stream if line.startswith("Pid:")), -1)
    except (OSError, ValueError):
        return None
    if pid == sandbox.pid:
        pid = next(iter(_children(pid)), -1)
    return pid if pid > 0 else None


def look(sandboxes: Sequence[Sandbox], wall_s: float = 0.1) -> list[Look]:
    """Watch sandboxes for a moment, all at once.

    Args:
        sandboxes: Whom.
        wall_s: For how long, in seconds; not less than the 0.1 s over which the kernel deals out processor time.
    """
    started = time.monotonic()
    before = [(_cpu_s(sandbox), _state(sandbox)) for sandbox in sandboxes]
    time.sleep(wall_s)
    looks = []
    for sandbox, (cpu_before, state_before) in zip(sandboxes, before, strict=True):
        state, cpu_after = _state(sandbox), _cpu_s(sandbox)
        if state == "running" and state_before != "running":
            state = state_before  # it woke just now
        used = None if cpu_before is None or cpu_after is None else max(0.0, cpu_after - cpu_before)
        looks.append(Look(state, used, time.monotonic() - started, state_of(sandbox.pid) == "stopped"))
    return looks


def take_stack(sandbox: Sandbox, output: StackOutput, timeout_s: float = 0.3) -> str:
    """Have the environment print the Python stacks of its threads, and read them.

    Args:
        sandbox: Whose.
        output: Where its standard error is read.
        timeout_s: How long to wait for it, in seconds.

    Returns:
        The dump, fit for a terminal; "" when it has no handler for the signal, is stopped, or does not print in time.
    """
    return take_stacks([sandbox], output, timeout_s)[0]


def take_stacks(sandboxes: Sequence[Sandbox], output: StackOutput, timeout_s: float = 0.3) -> list[str]:
    """As ``take_stack``, of many at once: they share the wait."""
    ends = time.monotonic() + timeout_s
    starts = [output.received(_log_id(sandbox), "stderr") for sandbox in sandboxes]
    seen = list(starts)
    quiet_since = [time.monotonic()] * len(sandboxes)
    open_ = {number for number, sandbox in enumerate(sandboxes) if _ask(sandbox)}
    asked = sorted(open_)
    while open_ and time.monotonic() < ends:
        time.sleep(_POLL_S)
        now = time.monotonic()
        for number in sorted(open_):
            sandbox_id = _log_id(sandboxes[number])
            output.drain(sandbox_id)
            received = output.received(sandbox_id, "stderr")
            if received != seen[number]:
                seen[number], quiet_since[number] = received, now
            elif received > starts[number] and now - quiet_since[number] >= _QUIET_S:
                open_.discard(number)
    found = [""] * len(sandboxes)
    for number in asked:
        # As many characters as came bytes: everything that came, and perhaps a little before it.
        new = seen[number] - starts[number]
        text = output.text(_log_id(sandboxes[number]), "stderr")
        found[number] = find_stack(text[-new:]) if new else ""
    return found


def find_stack(text: str) -> str:
    """The last stacks ``faulthandler`` printed into a text, at most 64 KiB; "" if there are none.

    Works on hostile text: whoever prints what looks like a stack gets it shown.
    """
    kept: list[str] = []
    inside = False
    for line in text.split("\n"):
        if _HEADER.fullmatch(line):
            inside = True
            kept.append(line)
        elif _FATAL.fullmatch(line):
            kept = [line]
            inside = False
        elif inside and line.startswith("  "):
            kept.append(line)
        else:
            inside = False
    return "\n".join(kept)[-STACK_BYTES:] if any(_HEADER.fullmatch(line) for line in kept) else ""


def full_disks(pid: int) -> tuple[str, ...]:
    """Which of a sandbox's private file systems have no room left.

    Args:
        pid: Any living process of it, as the host numbers it.

    Returns:
        Names as inside, of /tmp and /dev/shm; empty as well where they cannot be looked at.
    """
    return tuple(name for name in _PRIVATE_DISKS if _is_full(f"/proc/{pid}/root{name}"))


def _is_full(path: str) -> bool:
    try:
        fd = os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        found = os.fstatvfs(fd)
    except OSError:
        return False
    finally:
        os.close(fd)
    if found.f_blocks == 0:
        return False  # without a limit
    return found.f_bavail * found.f_frsize < _NO_ROOM_BYTES or (found.f_files > 0 and found.f_favail == 0)


def _log_id(sandbox: Sandbox) -> str:
    """Under which its output is kept: several environments forked in one sandbox share it."""
    found: str = getattr(sandbox, "log_id", sandbox.spec.id)
    return found


def _state(sandbox: Sandbox) -> State:
    pid = environment_of(sandbox)
    return "gone" if pid is None else most_telling([state_of(member) for member in (pid, *_family(pid))])


def _cpu_s(sandbox: Sandbox) -> float | None:
    try:
        usage = sandbox.usage()
    except (AgentEnvError, OSError, ValueError):  # destroyed by another thread meanwhile
        return None
    return None if usage is None else usage.cpu_s


def _ask(sandbox: Sandbox) -> bool:
    """Signal the environment's process, if it will answer."""
    pid = environment_of(sandbox)
    if pid is None:
        return False
    try:
        pidfd = os.pidfd_open(pid)
    except OSError:
        return False
    try:
        # Asked again after the pidfd was opened: so it stands for the environment, not for a stranger with its number.
        fields = _status(pid) if environment_of(sandbox) == pid else None
        if fields is None or fields.get("State", "?")[:1] in "TtZX":
            return False
        if not int(fields.get("SigCgt", "0"), 16) >> (stacks.SIGNAL - 1) & 1:
            return False
        signal.pidfd_send_signal(pidfd, stacks.SIGNAL)
    except (OSError, ValueError):
        return False
    finally:
        os.close(pidfd)
    return True


def _family(pid: int) -> list[int]:
    family: list[int] = []
    waiting = _children(pid)
    while waiting and len(family) < _MOST_PROCESSES:
        member = waiting.pop(0)
        family.append(member)
        waiting.extend(_children(member))
    return family


def _children(pid: int) -> list[int]:
    found: list[int] = []
    try:
        for task in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{task}/children", "rb") as stream:
                found.extend(int(child) for child in stream.read().split())
    except (OSError, ValueError):
        pass  # gone meanwhile
    return found


def _status(pid: int) -> dict[str, str] | None:
    try:
        with open(f"/proc/{pid}/status", encoding="utf-8", errors="replace") as stream:
            lines = stream.read().split("\n")
    except OSError:
        return None
    return {name: value.strip() for name, _, value in (line.partition(":") for line in lines) if value}
