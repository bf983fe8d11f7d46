"""The number that tells answers apart: no bit of an area may change unseen, wherever it lies."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentenv.wire.digest import make_digest
from agentenv.wire.views import Bytes

SMALL, LARGE = [1, 7, 8, 64, 2047, 2048], [2049, 2055, 2056, 4096, 28_224 + 3]
STARTS = st.integers(0, 2**32 - 1)


def area_of(size: int, kind: str) -> Bytes:
    if kind == "zeros":
        return np.zeros(size, np.uint8)
    if kind == "ones":
        return np.full(size, 255, np.uint8)
    return np.random.default_rng(size).integers(0, 256, size, np.uint8)


@pytest.mark.parametrize("kind", ["zeros", "ones", "random"])
@pytest.mark.parametrize("size", SMALL + LARGE)
def test_every_single_bit_is_seen(size: int, kind: str) -> None:
    area = area_of(size, kind)
    digest = make_digest(area)
    before = digest(0)
    # Of the largest areas, the bits of every 5th byte (coprime to 8: all places within a word) and of all at the end.
    places = range(size) if size <= 4096 else [*range(0, size, 5), *range(size - 16, size)]
    for place in places:
        for bit in range(8):
            area[place] ^= 1 << bit
            assert digest(0) != before, (place, bit)
            area[place] ^= 1 << bit
    assert digest(0) == before


@given(size=st.sampled_from(SMALL + LARGE), one=STARTS, other=STARTS)
def test_the_start_counts(size: int, one: int, other: int) -> None:
    digest = make_digest(area_of(size, "random"))
    assert (digest(one) == digest(other)) == (one == other)


@given(size=st.sampled_from([0, *SMALL, *LARGE]), start=STARTS)
def test_it_fits_into_a_word_and_is_the_same_in_every_process(size: int, start: int) -> None:
    area = area_of(size, "random")
    digest = make_digest(area)
    assert 0 <= digest(start) < 2**64
    assert make_digest(area.copy())(start) == digest(start)


@given(
    size=st.sampled_from([64, 2048, 2049, 5000]),
    moved=st.lists(st.tuples(st.integers(0, 63), st.integers(1, 255)), min_size=1, max_size=8),
)
def test_several_changed_bytes_are_seen(size: int, moved: list[tuple[int, int]]) -> None:
    area = area_of(size, "random")
    digest, before, held = make_digest(area), area.copy(), make_digest(area)(0)
    for place, mask in moved:
        area[place] ^= mask
    assert (digest(0) == held) == (area.tobytes() == before.tobytes())


@pytest.mark.parametrize("size", [64, 4096])
def test_swapped_words_are_seen(size: int) -> None:
    area = area_of(size, "random")
    digest, words = make_digest(area), area.view(np.uint64)
    before = digest(0)
    words[[0, 3]] = words[[3, 0]]
    assert digest(0) != before


def test_it_reads_the_area_as_it_is_then() -> None:
    area = area_of(3000, "zeros")
    digest = make_digest(area)
    seen = set()
    for value in range(200):
        area[:8].view(np.uint64)[0] = value
        seen.add(digest(0))
    assert len(seen) == 200
