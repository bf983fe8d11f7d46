"""An exception as an environment reported it: three texts, made short enough to keep and safe enough to show.

They come from the other side, which may have sent megabytes, or sequences that act on a terminal. What the sandbox
itself is the reason for is explained here too; the attributes hold what was reported and nothing else.
"""

from __future__ import annotations

from dataclasses import replace

from agentenv.errors import EnvError
from agentenv.telemetry.text import one_line, printable

READ_ONLY = "Read-only file system"
READ_ONLY_HINT = "hint: in a sandbox only /tmp and /dev/shm are writable (and /out, for commands)"
_NOT_FOUND = "agentenv.guest.maker.EnvironmentNotFound"
_NAME_LIMIT = 200
_TEXT_LIMIT = 65536


def readable(error: EnvError) -> EnvError:
    """The same error with its texts cleaned; of the message the beginning is kept, of the traceback the end.

    A name that leads to no environment is told without the traceback, which shows only where we looked for it.
    """
    name = one_line(error.type_name, _NAME_LIMIT)
    trace = printable(error.traceback_text[-_TEXT_LIMIT:])
    shown = "" if name == _NOT_FOUND else trace
    if READ_ONLY in error.message:
        shown = f"{shown.rstrip()}\n{READ_ONLY_HINT}".lstrip()
    cleaned = EnvError(
        env_id=error.env_id,
        cause=replace(error.cause, detail=one_line(error.cause.detail)),
        type_name=name.rpartition(".")[2] if name == _NOT_FOUND else name,
        message=printable(error.message[:_TEXT_LIMIT]),
        traceback_text=shown,
        output=error.output,
        index=error.index,
    )
    cleaned.type_name, cleaned.traceback_text = name, trace
    return cleaned
