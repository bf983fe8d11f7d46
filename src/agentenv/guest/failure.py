"""An exception as texts: the only form in which one leaves a sandbox."""

from __future__ import annotations

import traceback

_TEXT_LIMIT = 65536


def failure(error: BaseException) -> list[str]:
    """An exception as three texts: qualified type name, message, traceback."""
    kind = type(error)
    name = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
    try:
        message = str(error)
    except Exception:
        message = "<its str() raised>"
    trace = "".join(traceback.format_exception(error, chain=True))
    return [name[:1024], message[:_TEXT_LIMIT], trace[-_TEXT_LIMIT:]]
