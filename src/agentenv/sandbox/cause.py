"""From the evidence of a failure to its cause: pure functions over what the kernel and the guest left behind.

Three questions, one function each: why is it dead (``classify``), why did it not answer (``classify_late``), what
does its exception mean (``classify_exception``). What an environment says of itself, in its output or in an
exception's text, is believed only where the kernel says the same.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from agentenv.errors import Cause, CauseKind, Owner

State = Literal["running", "sleeping", "stopped", "blocked in the kernel", "gone"]
"""Of a process: as the kernel shows it in /proc."""

BUSY_SHARE = 0.2
"""From this share of one processor on, something that does not answer is computing."""

AT_LIMIT = 0.9
"""A group that was killed at its limit had reached this share of it: the kernel counts in batches, so not exactly."""

_ENOSPC, _EFBIG, _EDQUOT = 28, 27, 122
_ERRNO = re.compile(r"\[Errno (\d{1,4})\]")
_SPEAKS_OF_DISK = ("No space left on device", "Disk quota exceeded", "File too large")
_FOR_WANT_OF_ROOM = (signal.SIGBUS, signal.SIGXFSZ, signal.SIGABRT)
_HINTS = {
    signal.SIGSEGV: ": a crash in native code",
    signal.SIGILL: ": a crash in native code, or code for another kind of processor",
    signal.SIGFPE: ": a crash in native code",
    signal.SIGBUS: ": a crash in native code, or a file in /dev/shm for which there is no room",
    signal.SIGKILL: ": from outside, or by itself",
    signal.SIGSYS: ": a system call the sandbox does not allow",
    signal.SIGXFSZ: ": wrote a file larger than its limit",
    signal.SIGXCPU: ": used up a limit of processor time it had set itself",
    signal.SIGABRT: ": it aborted itself",
}


@dataclass(frozen=True, slots=True)
class Exit:
    """How the environment's own process ended, as reported by the first process of its sandbox.

    Attributes:
        code: Exit status, or None when a signal ended it.
        signal: Number of the signal, or None. Both None: it ended by itself, but its report was lost.
        full_disks: File systems of the sandbox that had no room left then, such as "/tmp".
    """

    code: int | None = None
    signal: int | None = None
    full_disks: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Look:
    """What was seen of a living environment that did not answer.

    Attributes:
        state: The most telling state of its processes: running before stopped before blocked before sleeping.
        cpu_s: Processor time its sandbox used while it was looked at, in seconds; None where it could not be read.
        wall_s: For how long it was looked at, in seconds.
        init_stopped: The first process of its sandbox is stopped as well, which nothing inside can do.
    """

    state: State
    cpu_s: float | None
    wall_s: float
    init_stopped: bool = False


def classify(
    exit: Exit | None,
    *,
    oom_kills: int = 0,
    memory_mb: int | None = None,
    memory_peak_bytes: int = 0,
    host_oom_kills: int = 0,
    shell_alive: bool | None = None,
    output: str = "",
) -> Cause:
    """Name the cause of a death nobody on the host asked for.

    Args:
        exit: The reported exit, or None when the whole sandbox went without a report.
        oom_kills: Kills the memory controller counted for this sandbox. It counts every kill of a process of the
            group for want of memory, whoever's limit was reached.
        memory_mb: The limit in force, MiB.
        memory_peak_bytes: The most that was ever charged to it; 0 where the kernel does not tell. Far below the limit,
            it was not this limit that was reached, but that of the machine or of the container around.
        host_oom_kills: Kills for want of memory the kernel counted on the whole machine during the sandbox's life. Give
            it only where there is no memory controller; the controller's own count is exact.
        shell_alive: Whether the outer sandbox still runs; None where that is not known.
        output: Its last output; used for hints in words only, never believed as evidence of the kind.
    """
    if oom_kills > 0:
        return _out_of_memory(oom_kills, memory_mb, memory_peak_bytes)
    if host_oom_kills > 0 and (exit is None or exit.signal == signal.SIGKILL):
        return Cause(
            CauseKind.HOST_OUT_OF_MEMORY,
            Owner.RESOURCES,
            f"was killed while the kernel killed processes for want of memory on this machine ({host_oom_kills} since"
            " it started); run fewer environments at once or free memory",
            signal=9,
        )
    if exit is None:
        return _lost(shell_alive)
    if exit.full_disks and (exit.signal in _FOR_WANT_OF_ROOM or exit.code not in (0, None)):
        how = f"killed by {_signal_name(exit.signal)}" if exit.signal else f"exited with status {exit.code}"
        return _disk_full(f"{how} with no room left in {_names(exit.full_disks)}", exit)
    if exit.signal == signal.SIGXFSZ:
        return _disk_full(_signalled(exit.signal), exit)
    if exit.signal is not None:
        return Cause(CauseKind.SIGNAL, Owner.ENVIRONMENT, _signalled(exit.signal), signal=exit.signal)
    if exit.code is None:
        detail = "it ended, and how is not known: it had filled the socket on which that is reported"
    elif exit.code == 0:
        detail = "its process exited with status 0 before it was asked to: something in it called exit"
    else:
        detail = f"its process exited with status {exit.code}{_shell_convention(exit.code)}"
        if any(words in output for words in _SPEAKS_OF_DISK):
            detail += "; its output speaks of a full disk, see disk_mb"
    return Cause(CauseKind.EXIT, Owner.ENVIRONMENT, detail, exit_code=exit.code)


def classify_late(look: Look, what: str = "did not answer before its deadline") -> Cause:
    """Name the cause of an environment being late that was alive when it was looked at.

    Args:
        look: What was seen.
        what: What it failed to do, in words.
    """
    share = None if look.cpu_s is None or look.wall_s <= 0 else look.cpu_s / look.wall_s
    if look.state == "stopped":
        if look.init_stopped:
            return Cause(
                CauseKind.FROZEN,
                Owner.INFRASTRUCTURE,
                f"{what}; its whole sandbox is stopped (SIGSTOP, or a debugger), from outside",
            )
        detail = f"{what}; it is stopped (SIGSTOP, or a debugger), by itself or from outside"
        return Cause(CauseKind.FROZEN, Owner.ENVIRONMENT, detail)
    if share is not None and share >= BUSY_SHARE:
        how = f"busy computing ({100 * share:.0f} % of a processor)"
    elif look.state == "running":
        if look.cpu_s is not None and look.cpu_s <= 0:
            return Cause(
                CauseKind.TIMEOUT,
                Owner.RESOURCES,
                f"{what}; it was ready to run and got no processor time in {look.wall_s * 1000:.0f} ms; raise"
                " vcpu_count, or run fewer environments at once",
            )
        how = "busy computing"
    elif look.state == "blocked in the kernel":
        detail = f"{what}; it was blocked in the kernel, using no CPU: a disk or a device that does not answer"
        return Cause(CauseKind.TIMEOUT, Owner.RESOURCES, detail)
    else:
        how = "blocked, using no CPU"
    return Cause(CauseKind.TIMEOUT, Owner.ENVIRONMENT, f"{what}; it was {how}")


def classify_exception(type_name: str, message: str, *, full_disks: Sequence[str] = ()) -> Cause:
    """Name the cause behind an exception of an environment that lives on.

    Args:
        type_name: Qualified name of the exception's class, as the environment gave it.
        message: Its text, likewise.
        full_disks: File systems of the sandbox that have no room left, as the kernel says.
    """
    found = _ERRNO.match(message)
    number = int(found.group(1)) if found else 0
    if number in (_ENOSPC, _EDQUOT, _EFBIG):
        if full_disks:
            cause = _disk_full(f"its code raised {type_name}: no room left in {_names(full_disks)}", Exit())
            return Cause(cause.kind, cause.owner, cause.detail)
        return Cause(
            CauseKind.EXCEPTION,
            Owner.ENVIRONMENT,
            f"its code raised {type_name}, which speaks of a full disk; there was room again afterwards, see disk_mb",
        )
    return Cause(CauseKind.EXCEPTION, Owner.ENVIRONMENT, f"its code raised {type_name}")


def most_telling(states: Sequence[State]) -> State:
    """Of the states of several processes, the one that says most about why nobody answers."""
    order: tuple[State, ...] = ("running", "stopped", "blocked in the kernel", "sleeping")
    return next((state for state in order if state in states), "gone")


def _out_of_memory(oom_kills: int, memory_mb: int | None, peak_bytes: int) -> Cause:
    if memory_mb and 0 < peak_bytes < AT_LIMIT * memory_mb * 2**20:
        return Cause(
            CauseKind.HOST_OUT_OF_MEMORY,
            Owner.RESOURCES,
            f"was killed by the kernel for want of memory on this machine, or in the container it runs in: it had used"
            f" {peak_bytes / 2**20:.0f} MB, below its own limit of {memory_mb} MB; run fewer environments at once or"
            " free memory",
            signal=9,
            oom_kills=oom_kills,
        )
    limit = f" of {memory_mb} MB" if memory_mb else ""
    return Cause(
        CauseKind.OUT_OF_MEMORY,
        Owner.RESOURCES,
        f"went over its memory limit{limit} and was killed by the kernel; raise memory_mb",
        signal=9,
        oom_kills=oom_kills,
    )


def is_killed_from_outside(cause: Cause) -> bool:
    """Whether somebody else ended it: whoever asked for it may ask for it again."""
    return cause.kind is CauseKind.SANDBOX_LOST and cause.owner is Owner.INFRASTRUCTURE


def _lost(shell_alive: bool | None) -> Cause:
    detail = {
        None: "the whole sandbox was killed from outside, without a report from inside",
        True: "the first process of its sandbox was killed from outside, and everything in it with that",
        False: "the outer sandbox, which holds every environment of the run, was killed from outside",
    }[shell_alive]
    return Cause(CauseKind.SANDBOX_LOST, Owner.INFRASTRUCTURE, detail)


def _disk_full(how: str, exit: Exit) -> Cause:
    detail = f"{how}; raise disk_mb or let it write less"
    return Cause(CauseKind.DISK_FULL, Owner.RESOURCES, detail, exit_code=exit.code, signal=exit.signal)


def _signalled(number: int) -> str:
    hint = _HINTS.get(number, "")  # type: ignore[call-overload]  # an int equal to a Signals member finds it
    return f"killed by {_signal_name(number)}{hint}"


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _shell_convention(code: int) -> str:
    """A shell reports a command killed by signal n as status 128 + n."""
    if not 128 < code <= 128 + 64:
        return ""
    return f" (a shell reports so that what it ran was killed by {_signal_name(code - 128)})"


def _names(disks: Sequence[str]) -> str:
    return " and ".join(disks)
