"""What callers give to a sandbox, a value at a time: read here, before anything is sent, and here only.

What is no such value raises ConfigError, with the name of the keyword, what was expected and what came. None stands for
"not said" only where a reader says so. True and False are no numbers.
"""

from __future__ import annotations

import math
import os
import signal as signals
from typing import Any

from agentenv.boxes.results import Copied
from agentenv.errors import ConfigError, Problem
from agentenv.telemetry.text import one_line

Location = str | os.PathLike[str]
"""A path: a text, or an object for one, such as those of pathlib."""

_SHOWN = 100
_MOST_PATIENCE_S = 86_400
# What waits below counts milliseconds in 31 bits, some 24 days.
_MOST_TIME_S = 2_000_000
_MOST_MB = 1 << 30
_MOST_SIGNAL = 64
_MOST_SIDE = (1 << 16) - 1
_MOST_MODE = 0o7777
# The last number of 32 bits says "none" to the kernel.
_MOST_USER = (1 << 32) - 2
_MOST_OFFSET = (1 << 63) - 1


def wrong(key: str, expected: str, got: Any, hint: str = "") -> ConfigError:
    """The error for one value, for the caller to raise."""
    what = f"expected {expected}, got {one_line(repr(got), _SHOWN)}"
    return ConfigError([Problem("keyword argument", key, what, hint)])


def sendable(text: Any) -> bool:
    """Whether it is a text that programs and the kernel take: without zero bytes, of bytes or of whole characters."""
    if not isinstance(text, str) or "\0" in text:
        return False
    try:
        text.encode("utf-8", "surrogateescape")  # as the names of files have it that are not UTF-8
    except UnicodeEncodeError:
        return False
    return True


def read_flag(flag: Any, key: str, hint: str = "") -> bool:
    """True or False; nothing that only counts as such, since "no" would count as True."""
    if not isinstance(flag, bool):
        raise wrong(key, "True or False", flag, hint)
    return flag


def read_whole(number: Any, key: str, *, least: int = 0, most: int, what: str = "a whole number") -> int:
    """A whole number."""
    if not isinstance(number, int) or isinstance(number, bool) or not least <= number <= most:
        raise wrong(key, f"{what} from {least} to {most}", number)
    return int(number)


def read_count(count: Any) -> int:
    """A number of sandboxes."""
    if type(count) is not int or count < 1:
        raise wrong("count", "a number from 1 on", count)
    return count


def read_depth(depth: Any) -> int:
    """How many levels of directories."""
    return read_whole(depth, "depth", least=1, most=_MOST_MB, what="a number of levels")


def read_offset(offset: Any) -> int:
    """A byte of a file to begin at."""
    return read_whole(offset, "offset", most=_MOST_OFFSET, what="a number of bytes")


def read_length(size: Any) -> int | None:
    """A number of bytes, or None for all of them."""
    return None if size is None else read_whole(size, "size", most=_MOST_OFFSET, what="a number of bytes, or None,")


def read_max_mb(max_mb: Any) -> int:
    """A limit in whole MiB."""
    return read_whole(max_mb, "max_mb", most=_MOST_MB, what="a whole number of MiB")


def read_output_bytes(max_output_mb: Any) -> int:
    """How many bytes of each output are kept, of what is given in MiB."""
    if not _is_number(max_output_mb) or not 0 <= max_output_mb <= _MOST_MB:
        raise wrong("max_output_mb", f"a number of MiB from 0 to {_MOST_MB}", max_output_mb)
    return int(max_output_mb * (1 << 20))


def read_limit(timeout_s: Any) -> float | None:
    """Seconds that a program may run, or None for as long as it takes."""
    if timeout_s is None:
        return None
    if not _is_number(timeout_s) or not 0 < timeout_s <= _MOST_TIME_S:
        raise wrong(
            "timeout_s", f"a number of seconds above 0 and up to {_MOST_TIME_S}, or None for no limit", timeout_s
        )
    return float(timeout_s)


def read_wait(timeout_s: Any) -> float | None:
    """Seconds to wait for something, 0 for not at all, or None for as long as it takes.

    One below 0 counts as 0: it is what is left of a time that is over.
    """
    if timeout_s is None:
        return None
    if not _is_number(timeout_s) or not -math.inf < timeout_s <= _MOST_TIME_S:
        raise wrong("timeout_s", f"a number of seconds up to {_MOST_TIME_S}, or None for no limit", timeout_s)
    return max(0.0, float(timeout_s))


def read_patience(timeout_s: Any) -> float:
    """Seconds that programs have to end."""
    if not _is_number(timeout_s) or not 0 <= timeout_s <= _MOST_PATIENCE_S:
        raise wrong("timeout_s", f"a number of seconds from 0 to {_MOST_PATIENCE_S}", timeout_s)
    return float(timeout_s)


def read_user(user: Any) -> str | None:
    """As whom: a name, "user:group", or a number as a text or as such; None for the image's own user."""
    if user is None:
        return None
    if isinstance(user, int) and not isinstance(user, bool) and 0 <= user <= _MOST_USER:
        return str(int(user))
    if not sendable(user) or not user:
        raise wrong("user", 'a name, a number, "user:group", or None for the image\'s own', user)
    return str(user)


def read_path(path: Any, key: str = "path") -> str:
    """A path, in the sandbox or on this host."""
    try:
        text = os.fspath(path)
    except TypeError:
        text = None
    if not sendable(text) or not text:
        raise wrong(key, "a path as a text without zero bytes, or as one of pathlib's", path)
    return str(text)


def read_directory(cwd: Any) -> str | None:
    """A working directory, or None for the image's own."""
    return None if cwd is None else read_path(cwd, "cwd")


def read_mode(mode: Any) -> int | None:
    """Permission bits, or None for the usual ones."""
    if mode is None:
        return None
    if not isinstance(mode, int) or isinstance(mode, bool) or not 0 <= mode <= _MOST_MODE:
        raise wrong("mode", f"permission bits from 0 to 0o{_MOST_MODE:o}, or None", mode, "such as 0o755")
    return int(mode)


def read_content(content: Any, key: str) -> bytes:
    """Bytes, or a text as UTF-8."""
    try:
        if isinstance(content, str):
            return content.encode()
        return content if isinstance(content, bytes) else bytes(memoryview(content))
    except UnicodeEncodeError as error:
        raise wrong(key, "a text that UTF-8 can hold, or bytes", content) from error
    except TypeError as error:
        raise wrong(key, "bytes or a text", content) from error


def read_copied(copied: Any) -> Copied | None:
    """Who is told what is copied, or None."""
    if copied is not None and not isinstance(copied, Copied):
        raise wrong("copied", "a Copied, or None", copied)
    return copied


def read_signal(signal: Any) -> int:
    """A signal: its number, or its name with or without SIG."""
    if isinstance(signal, str):
        name = signal.upper()
        found = signals.Signals.__members__.get(name if name.startswith("SIG") else f"SIG{name}")
        if found is not None:
            return int(found)
    elif isinstance(signal, int) and not isinstance(signal, bool) and 0 < signal <= _MOST_SIGNAL:
        return int(signal)
    raise wrong("signal", f"a signal's name or its number from 1 to {_MOST_SIGNAL}", signal, 'such as "TERM" or 15')


def read_size(size: Any, key: str = "terminal") -> tuple[int, int]:
    """Rows and columns of a terminal."""
    if (
        not isinstance(size, list | tuple)
        or len(size) != 2
        or any(type(side) is not int or not 0 < side <= _MOST_SIDE for side in size)
    ):
        raise wrong(key, f"rows and columns, each from 1 to {_MOST_SIDE}", size)
    return size[0], size[1]


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
