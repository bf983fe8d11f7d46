"""An exception as an environment reported it: three texts, made short enough to keep and safe enough to show.

They come from the other side, which may have sent megabytes, or sequences that act on a terminal.
"""

from __future__ import annotations

from dataclasses import replace

from agentenv.errors import EnvError
from agentenv.telemetry.text import one_line, printable

_NAME_LIMIT = 200
_TEXT_LIMIT = 65536


def readable(error: EnvError) -> EnvError:
    """The same error with its texts cleaned; of the message the beginning is kept, of the traceback the end."""
    return EnvError(
        env_id=error.env_id,
        cause=replace(error.cause, detail=one_line(error.cause.detail)),
        type_name=one_line(error.type_name, _NAME_LIMIT),
        message=printable(error.message[:_TEXT_LIMIT]),
        traceback_text=printable(error.traceback_text[-_TEXT_LIMIT:]),
        output=error.output,
        index=error.index,
    )
