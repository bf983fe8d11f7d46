"""Text of environments on a terminal: nothing a terminal would act on gets through, however it is cut."""

from __future__ import annotations

import unicodedata
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentenv.telemetry.text import one_line, printable, printable_stream


@pytest.mark.parametrize(
    ("raw", "shown"),
    [
        ("plain\ttext\n", "plain\ttext\n"),
        ("\x1b[31mred\x1b[0m", "red"),
        ("\x1b]0;new title\x07after", "after"),
        ("\x1b]8;;http://example.invalid\x1b\\link\x1b]8;;\x1b\\", "link"),
        ("\x9b2Jcleared", "cleared"),
        ("\x1bcreset", "reset"),
        ("\x1b]unterminated", "]unterminated"),
        ("10%\r20%\r\n30%", "10%\n20%\n30%"),
        ("nul\x00bell\x07back\x08", "nulbellback"),
        ("a\u202eb\u2066c\u2028d", "abcd"),
        ("lone \ud800 surrogate", "lone ? surrogate"),
    ],
)
def test_what_is_shown(raw: str, shown: str) -> None:
    assert printable(raw) == shown


@given(st.text())
def test_no_control_character_gets_through(text: str) -> None:
    shown = printable(text)
    assert not [c for c in shown if unicodedata.category(c) == "Cc" and c not in "\n\t"]
    shown.encode("utf-8")


_PIECES = st.sampled_from(
    ["\x1b", "[", "]", "31", "m", "\\", "\x07", "\r", "\n", "\x9b", "\x9d", "\x9c", "a", "é", "漢", " ", "P", "x" * 300]
)


@given(st.lists(_PIECES, max_size=30).map("".join), st.lists(st.integers(0, 400), max_size=6))
def test_cutting_the_stream_changes_nothing(text: str, cuts: list[int]) -> None:
    data = text.encode()
    places = sorted({0, len(data), *(c for c in cuts if c < len(data))})
    chunks = [data[a:b] for a, b in pairwise(places)]
    assert "".join(printable_stream(chunks)) == printable(text)


def test_plain_text_is_not_held_back() -> None:
    def chunks() -> object:
        yield b"no newline yet"
        raise AssertionError("the first chunk was held back")

    assert next(printable_stream(chunks())) == "no newline yet"  # type: ignore[arg-type]  # wrong on purpose


def test_bytes_that_are_no_text() -> None:
    assert "".join(printable_stream([b"\xff\xfe", b"ok", b"\xe6\xbc"])) == "\ufffd\ufffdok\ufffd"


def test_one_line() -> None:
    assert one_line("a\nb\x1b[2J\tc") == "a b c"
    assert one_line("x" * 600, 10) == "xxxxxxx..."
