"""From the evidence of a death to its cause: a pure function over what the kernel and the guest left behind."""

from __future__ import annotations

import signal
from dataclasses import dataclass

from agentenv.errors import Cause, CauseKind, Owner


@dataclass(frozen=True, slots=True)
class Exit:
    """How the environment's own process ended, as reported by the first process of its sandbox.

    Attributes:
        code: Exit status, or None when a signal ended it.
        signal: Number of the signal, or None. Both None: it ended by itself, but its report was lost.
    """

    code: int | None = None
    signal: int | None = None


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def classify(exit: Exit | None, *, oom_kills: int = 0, memory_mb: int | None = None, output: str = "") -> Cause:
    """Name the cause of a death nobody on the host asked for.

    Args:
        exit: The reported exit, or None when the whole sandbox went without a report.
        oom_kills: Kills the memory controller counted for this sandbox.
        memory_mb: The limit in force, for the text.
        output: Its last output; used for hints in words only, never believed as evidence of the kind.
    """
    if oom_kills > 0:
        limit = f" of {memory_mb} MB" if memory_mb else ""
        return Cause(
            CauseKind.OUT_OF_MEMORY,
            Owner.RESOURCES,
            f"went over its memory limit{limit} and was killed by the kernel; raise memory_mb",
            signal=9,
            oom_kills=oom_kills,
        )
    if exit is None:
        return Cause(
            CauseKind.SANDBOX_LOST,
            Owner.INFRASTRUCTURE,
            "the whole sandbox was killed from outside, without a report from inside",
        )
    if exit.signal is not None:
        name = _signal_name(exit.signal)
        hint = {
            signal.SIGSEGV: ": a crash in native code",
            signal.SIGKILL: ": killed from outside, or by the kernel for want of memory on the host",
            signal.SIGSYS: ": a system call the sandbox does not allow",
            signal.SIGXFSZ: ": wrote a file larger than its limit",
            signal.SIGABRT: ": it aborted itself",
        }.get(exit.signal, "")  # type: ignore[call-overload]  # an int equal to a Signals member finds it
        kind = CauseKind.DISK_FULL if exit.signal == signal.SIGXFSZ else CauseKind.SIGNAL
        return Cause(kind, Owner.ENVIRONMENT, f"killed by {name}{hint}", signal=exit.signal)
    if exit.code is None:
        detail = "it ended, and how is not known: it had filled the socket on which that is reported"
    elif exit.code == 0:
        detail = "its process exited with status 0 before it was asked to: something in it called exit"
    else:
        detail = f"its process exited with status {exit.code}"
    return Cause(CauseKind.EXIT, Owner.ENVIRONMENT, detail, exit_code=exit.code)
