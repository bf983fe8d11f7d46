"""Frames: whatever pieces a stream comes in, the same frames come out; what is not the protocol is refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentenv.wire.frames import HEADER, Kind, Splitter, frame

FRAMES = st.lists(st.tuples(st.sampled_from(list(Kind)), st.integers(0, 65535), st.binary(max_size=300)), max_size=8)


@given(FRAMES, st.lists(st.integers(1, 50), min_size=1, max_size=50))
def test_pieces_do_not_matter(frames: list[tuple[Kind, int, bytes]], sizes: list[int]) -> None:
    data = b"".join(frame(*one) for one in frames)
    splitter, found, at, turn = Splitter(300), [], 0, 0
    while at < len(data):
        size = sizes[turn % len(sizes)]
        found += list(splitter.feed(data[at : at + size]))
        at, turn = at + size, turn + 1
    assert found == frames


@pytest.mark.parametrize("header", [HEADER.pack(0, 0, 0), HEADER.pack(0, 0, 200), HEADER.pack(301, 0, Kind.DATA)])
def test_what_is_no_frame_is_refused(header: bytes) -> None:
    with pytest.raises(ValueError, match="at most 300 are accepted"):
        list(Splitter(300).feed(header))


def test_what_came_before_the_fault_is_not_lost() -> None:
    frames = Splitter(10).feed(frame(Kind.DATA, 1, b"ab") + HEADER.pack(0, 0, 99))
    assert next(frames) == (Kind.DATA, 1, b"ab")
    with pytest.raises(ValueError, match="a frame of kind"):
        next(frames)
