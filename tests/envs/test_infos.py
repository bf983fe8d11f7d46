"""Gathering at once gives what Gymnasium gathers one by one."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
from gymnasium.vector import VectorEnv
from hypothesis import given
from hypothesis import strategies as st

from agentenv.envs.infos import gather
from agentenv.testing import assert_same

NUM_ENVS = 5

scalars = st.one_of(
    st.integers(-(2**31), 2**31),
    st.floats(allow_nan=False),
    st.booleans(),
    st.floats(width=32, allow_nan=False).map(np.float32),
    st.integers(0, 255).map(np.uint8),
    st.booleans().map(np.bool_),
    st.text(max_size=3),
    st.none(),
    st.just(np.arange(3)),
    st.dictionaries(st.sampled_from(["x", "y"]), st.integers(0, 9), max_size=2),
)
infos = st.dictionaries(st.sampled_from(["a", "b", "_a", "final_info"]), scalars, max_size=3)


def one_by_one(found: list[tuple[int, dict[str, Any]]]) -> dict[str, Any]:
    vec: VectorEnv[Any, Any, Any] = VectorEnv()
    vec.num_envs = NUM_ENVS
    result: dict[str, Any] = {}
    for index, info in found:
        result = vec._add_info(result, info, index)
    return result


def at_once(found: list[tuple[int, dict[str, Any]]]) -> dict[str, Any]:
    vec: VectorEnv[Any, Any, Any] = VectorEnv()
    vec.num_envs = NUM_ENVS
    return gather(found, NUM_ENVS, vec._add_info, {})


def check(found: list[tuple[int, dict[str, Any]]]) -> None:
    try:
        expected = one_by_one(copy.deepcopy(found))
    except Exception as error:
        with pytest.raises(type(error)):
            at_once(copy.deepcopy(found))
    else:
        assert_same(at_once(copy.deepcopy(found)), expected)


@given(st.lists(infos, min_size=NUM_ENVS, max_size=NUM_ENVS), st.sets(st.integers(0, NUM_ENVS - 1)))
def test_any_infos(each: list[dict[str, Any]], present: set[int]) -> None:
    check([(index, each[index]) for index in sorted(present)])


@given(infos, st.data())
def test_infos_of_one_kind(first: dict[str, Any], data: st.DataObject) -> None:
    """The same keys, and mostly the same types, in every environment: the case that is gathered at once."""
    same = {bool: st.booleans(), int: st.integers(-9, 9), float: st.floats(-1, 1)}
    others = [
        {key: data.draw(same.get(type(value), st.just(value))) for key, value in first.items()}
        for _ in range(NUM_ENVS - 1)
    ]
    check(list(enumerate([first, *others])))
