"""How a program ended or a piece of work failed, read from what a sandbox says: as data, and distrusted."""

from __future__ import annotations

import errno
import os
from dataclasses import replace

from agentenv.boxes.results import Ending, read_object
from agentenv.errors import Cause, CauseKind, Owner, ProtocolError, SandboxDied
from agentenv.sandbox.workbench import refused_with
from agentenv.telemetry.text import one_line, printable

MOST_BYTES = 1 << 16
_MOST_SIGNAL = 64
_MOST_TEXT = 500
_UNTOLD = "how the program ended was never told: its sandbox, or what carries its words, is gone"


def read_ending(data: bytes, sandbox: str) -> Ending:
    """How it ended.

    Raises:
        OSError: The work on files failed, or the program could not be run; as the right builtin.
        ProtocolError: What came says nothing of the kind.
    """
    told = read_object(data, sandbox)
    code, signal, error = told.get("exit"), told.get("signal"), told.get("error")
    kills = told.get("oom_kills", 0)
    kills = kills if type(kills) is int and kills > 0 else 0
    if type(code) is int and 0 <= code < 1 << 32:
        return Ending(code, None, kills)
    if type(signal) is int and 0 < signal <= _MOST_SIGNAL:
        return Ending(None, signal, kills)
    if isinstance(error, dict):
        number, message = error.get("errno"), one_line(str(error.get("message", "")), _MOST_TEXT)
        kind = one_line(str(error.get("type", "")), _MOST_TEXT)
        if type(number) is int and number in errno.errorcode:
            raise OSError(refused_with(number), f"sandbox {sandbox!r}: {_told(message, number)}")
        raise OSError(errno.EIO, f"sandbox {sandbox!r}: {kind}: {message}")
    raise ProtocolError(f"sandbox {sandbox!r}: expected how a program ended, got {data[:200]!r}")


def died(sandbox: str, cause: Cause | None) -> SandboxDied:
    """The error for a program whose end was never told."""
    cause = cause or Cause(CauseKind.SANDBOX_LOST, Owner.INFRASTRUCTURE, _UNTOLD)
    cause = replace(cause, detail=printable(cause.detail))  # may have what the machine said
    return SandboxDied(cause.detail, env_id=sandbox, cause=cause, noun="sandbox")


def _told(message: str, number: int) -> str:
    """The message without the number, which the error itself shows."""
    prefix = f"[Errno {number}] "
    return message.removeprefix(prefix) if message else os.strerror(number)
