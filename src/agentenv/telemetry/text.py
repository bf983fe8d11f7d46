"""Text of environments, made safe to show on a terminal.

What an environment prints is somebody else's bytes: escape sequences can retitle a window, move the cursor over
earlier lines or make a terminal type. Here they become plain text. Files keep the raw bytes; this module never
changes what is stored, only what is shown.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterable, Iterator

# Longest sequence that is removed whole. A longer or unterminated one only loses its control characters; without a
# bound, thousands of unterminated sequences would cost the square of their number.
_LONGEST = 256

_ESCAPE = re.compile(
    r"(?:\x1b\[|\x9b)[0-?]{0,64}[ -/]{0,8}[@-~]"  # CSI: colours, cursor
    rf"|(?:\x1b[\]PX^_]|[\x9d\x90\x98\x9e\x9f])[^\x07\x1b\x9c\n]{{0,{_LONGEST}}}(?:\x07|\x1b\\|\x9c)"  # OSC, DCS, APC
    r"|\x1b[ -/]{0,8}[0-OQ-WYZ\\`-~]"  # two-byte escapes
)
# The beginning of one of these, or of a line ending, at the end of a chunk: the next chunk may complete it.
_UNFINISHED = re.compile(
    r"(?:(?:\x1b\[|\x9b)[0-?]{0,64}[ -/]{0,8}"
    rf"|(?:\x1b[\]PX^_]|[\x9d\x90\x98\x9e\x9f])[^\x07\x1b\x9c\n]{{0,{_LONGEST}}}\x1b?"
    r"|\x1b[ -/]{0,8}|\r)\Z"
)
# C0 and C1 controls but \n and \t, line separators that terminals and str.splitlines() disagree about, and the
# bidirectional overrides that show text in another order than it has.
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069]")


def printable(text: str) -> str:
    """Returns the text without anything a terminal would act on.

    Newlines and tabs stay; a carriage return becomes a newline, so that what a progress bar overwrote stays readable.
    The result can always be encoded as UTF-8.
    """
    text = _ESCAPE.sub("", text).replace("\r\n", "\n").replace("\r", "\n")
    return _CONTROL.sub("", text).encode("utf-8", "replace").decode("utf-8")


def one_line(text: str, limit: int = 500) -> str:
    """Returns the text safe to print and on one line of at most ``limit`` characters."""
    line = " ".join(printable(text).split())
    return line if len(line) <= limit else line[: limit - 3] + "..."


def message_of(error: BaseException) -> str:
    """Returns type and message of an exception that somebody else's code raised, whose ``str`` may raise as well."""
    name = type(error).__name__
    try:
        return f"{name}: {error}"
    except Exception as again:
        return f"{name}: <its str() raised {type(again).__name__}>"


def printable_stream(chunks: Iterable[bytes]) -> Iterator[str]:
    """Decodes and cleans a stream of chunks, cut anywhere.

    A character, a line ending or an escape sequence split between two chunks is put together first. Bytes that are
    not UTF-8 become U+FFFD.
    """
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    held = ""
    for chunk in chunks:
        text = held + decoder.decode(chunk)
        found = _UNFINISHED.search(text, max(0, len(text) - _LONGEST - 8))
        held = found.group() if found else ""
        shown = printable(text[: len(text) - len(held)])
        if shown:
            yield shown
    rest = printable(held + decoder.decode(b"", final=True))
    if rest:
        yield rest
