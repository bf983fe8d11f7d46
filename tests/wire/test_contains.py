"""Membership is what Gymnasium says it is, without its warnings and exceptions."""

from __future__ import annotations

import warnings
from typing import Any

from gymnasium import Space
from hypothesis import given
from hypothesis import strategies as st

from agentenv.testing.spaces import any_space, samples
from agentenv.wire.contains import contains


def gymnasium_says(space: Space[Any], value: Any) -> bool:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return bool(space.contains(value))
        except Exception:
            return False


@given(any_space(), st.data())
def test_own_samples_are_members(space: Space[Any], data: st.DataObject) -> None:
    for value in data.draw(samples(space, 2)):
        assert contains(space, value)
        assert gymnasium_says(space, value)


@given(any_space(), any_space(), st.data())
def test_samples_of_another_space_are_judged_alike(space: Space[Any], other: Space[Any], data: st.DataObject) -> None:
    for value in data.draw(samples(other, 2)):
        assert contains(space, value) == gymnasium_says(space, value)


@given(any_space(), st.none() | st.integers() | st.floats() | st.text() | st.lists(st.integers()) | st.just(((), {})))
def test_arbitrary_values_are_judged_alike(space: Space[Any], value: object) -> None:
    assert contains(space, value) == gymnasium_says(space, value)
