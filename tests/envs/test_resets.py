"""Seeds and masks of a reset of many environments: what is taken, and what is refused in which words."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentenv.envs.resets import split_mask, spread_seed
from agentenv.envs.snapshots import spread_seeds
from agentenv.fleet.moments import positions


@given(seed=st.integers(0, 2**40), count=st.integers(1, 50))
def test_an_int_gives_consecutive_seeds(seed: int, count: int) -> None:
    assert spread_seed(seed, count) == [seed + index for index in range(count)]


@given(st.lists(st.none() | st.integers(0, 2**40), min_size=1, max_size=20))
def test_a_sequence_gives_each_its_own(seeds: list[int | None]) -> None:
    assert spread_seed(seeds, len(seeds)) == seeds
    with pytest.raises(ValueError, match=f"expected one seed or {len(seeds) + 1}.*got {len(seeds)}"):
        spread_seed(seeds, len(seeds) + 1)


def test_numpy_integers_are_integers() -> None:
    assert spread_seed(np.int64(5), 2) == [5, 6]
    found = spread_seed(list(np.array([1, 2], np.uint32)), 2)
    assert found == [1, 2]
    assert {type(seed) for seed in found} == {int}


@given(st.lists(st.booleans(), min_size=1, max_size=20))
def test_a_mask_is_taken_out_of_the_options(chosen: list[bool]) -> None:
    options = {"difficulty": 3, "reset_mask": np.array(chosen)}
    if not any(chosen):
        with pytest.raises(ValueError, match="at least one True"):
            split_mask(options, len(chosen))
        return
    members, rest = split_mask(options, len(chosen))
    assert members == [index for index, is_chosen in enumerate(chosen) if is_chosen]
    assert {type(index) for index in members} == {int}
    assert rest == {"difficulty": 3}
    assert "reset_mask" in options, "the caller's own dict was changed"


@pytest.mark.parametrize("options", [None, {}, {"difficulty": 3}])
def test_without_a_mask_all_are_reset(options: dict[str, Any] | None) -> None:
    assert split_mask(options, 3) == (None, options)


@pytest.mark.parametrize(
    ("mask", "error", "words"),
    [
        ([True, False, True], TypeError, "expected a numpy array of bool, got list"),
        (None, TypeError, "got NoneType"),
        (np.array([1, 0, 1]), TypeError, "got an array of int64"),
        (np.array([True, False]), ValueError, "expected shape (3,), got (2,)"),
        (np.ones((3, 1), np.bool_), ValueError, "expected shape (3,), got (3, 1)"),
        (np.zeros(3, np.bool_), ValueError, "at least one True"),
    ],
)
def test_other_masks_are_refused(mask: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=re.escape(words)) as caught:
        split_mask({"reset_mask": mask}, 3)
    assert "reset_mask" in str(caught.value)


# -- the masks and seeds of snapshots, which follow the same shape


@given(st.lists(st.booleans(), max_size=20))
def test_positions_of_a_mask(chosen: list[bool]) -> None:
    expected = [index for index, is_chosen in enumerate(chosen) if is_chosen]
    assert list(positions(np.array(chosen, np.bool_), len(chosen))) == expected
    assert list(positions(chosen if chosen else None, len(chosen))) == expected
    assert list(positions(None, len(chosen))) == list(range(len(chosen)))


@pytest.mark.parametrize("mask", [[1, 0, 1], np.ones(2, np.bool_), np.ones((3, 1), np.bool_), "yes", 1])
def test_positions_refuse_what_is_no_mask(mask: Any) -> None:
    with pytest.raises(ValueError, match=re.escape("mask: expected a bool array of shape (3,), got ")):
        positions(mask, 3)


@given(seed=st.integers(0, 2**64), count=st.integers(1, 30))
def test_an_int_gives_every_copy_its_own_seed_and_the_same_again(seed: int, count: int) -> None:
    seeds = spread_seeds(seed, count, [])
    assert seeds == spread_seeds(seed, count, [])
    assert len(set(seeds)) == count
    assert spread_seeds(seed, count + 1, [])[:count] == seeds
    assert all(value is not None and 0 <= value < 2**31 for value in seeds)
    assert set(seeds).isdisjoint(spread_seeds(seed + 1, count, []))


def test_none_keeps_and_spawn_takes_what_was_spawned() -> None:
    assert spread_seeds(None, 3, [7, 8, 9]) == [None, None, None]
    assert spread_seeds("spawn", 3, [7, 8, 9]) == [7, 8, 9]
    assert spread_seeds(np.int64(4), 2, []) == spread_seeds(4, 2, [])


@pytest.mark.parametrize("reseed", [-1, True, 1.5, "5", "each", [1]])
def test_other_reseeds_are_refused(reseed: Any) -> None:
    with pytest.raises(ValueError, match=re.escape('reseed: expected None, "spawn" or an int')) as caught:
        spread_seeds(reseed, 2, [1, 2])
    assert repr(reseed) in str(caught.value)
