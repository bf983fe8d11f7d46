"""Cutting a past into pieces: everything once, in its order, and no piece longer than asked."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from agentenv.fleet.journal import Segment
from agentenv.fleet.repetition import MOST_AT_ONCE, in_pieces
from agentenv.wire.slot import OUTCOME_WORDS, Op
from agentenv.wire.values import encode


def singly(segments: list[Segment]) -> list[tuple[int, bytes]]:
    found = []
    for op, count, data in segments:
        size = len(data) // count
        found += [(op, data[number * size : (number + 1) * size]) for number in range(count)]
    return found


SEGMENTS = st.lists(
    st.tuples(st.integers(1, 40), st.integers(0, 3)).map(
        lambda drawn: [int(Op.STEP), drawn[0], bytes(range(drawn[0])) * drawn[1]]
    )
    | st.binary(max_size=5).map(lambda payload: [int(Op.RESET), 1, payload]),
    max_size=6,
)


@given(SEGMENTS, st.integers(1, 50))
def test_every_request_is_in_one_piece_and_in_its_place(segments: list[Segment], most: int) -> None:
    pieces = list(in_pieces(segments, most))
    assert singly([segment for piece in pieces for segment in piece]) == singly(segments)
    lengths = [sum(count for _, count, _ in piece) for piece in pieces]
    assert all(length == most for length in lengths[:-1])
    assert all(0 < length <= most for length in lengths)


def test_the_outcomes_of_a_piece_fit_into_the_smallest_answer_there_may_be() -> None:
    assert len(encode(bytes(8 * OUTCOME_WORDS * MOST_AT_ONCE))) < 1 << 20
