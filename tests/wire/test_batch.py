"""Batches have the structure, containers and bits of Gymnasium's own vector utilities, for every kind of space."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from gymnasium import Space, spaces
from gymnasium.vector.utils import batch_space, concatenate, create_empty_array, iterate
from hypothesis import given
from hypothesis import strategies as st

from agentenv.errors import InvalidAction, ProtocolError
from agentenv.testing.exact import assert_same
from agentenv.testing.spaces import any_space, samples
from agentenv.wire.batch import ActionBatch, ActionCheck, BatchView
from agentenv.wire.layout import Reader, Writer, plan


def rows(space: Space[Any], n: int) -> np.ndarray[Any, Any]:
    """Blocks of n environments, a slot apart and not from the slot's beginning, full of rubbish."""
    nbytes = plan(space).nbytes
    return np.full((n, nbytes + 192), 0xA5, np.uint8)[:, 64 : 64 + nbytes]


@given(any_space(), st.integers(1, 4), st.data())
def test_batch_is_what_gymnasium_concatenates(space: Space[Any], n: int, data: st.DataObject) -> None:
    values = data.draw(samples(space, n))
    expected = concatenate(space, values, create_empty_array(space, n))
    layout, base = plan(space), rows(space, n)
    variable = [Writer(layout, np.ascontiguousarray(row)).write(value) for row, value in zip(base, values, strict=True)]
    for index, value in enumerate(values):
        block = np.zeros(layout.nbytes, np.uint8)
        variable[index] = Writer(layout, block).write(value)
        base[index] = block
    view = BatchView(layout, base)
    assert_same(view.copy(variable), expected)
    for index in range(n):
        block = base[index].copy()
        assert_same(view.take(index, variable[index]), Reader(layout, block).read(variable[index]))


@given(any_space(), st.integers(1, 4), st.integers(0, 1000))
def test_actions_are_split_as_gymnasium_iterates(space: Space[Any], n: int, seed: int) -> None:
    batched = batch_space(space, n)
    batched.seed(seed)
    actions = batched.sample()
    expected = list(iterate(batched, actions))
    layout, base = plan(space), rows(space, n)
    actions = ActionCheck(space).apply(actions)
    variable = ActionBatch(space, layout, base).write(actions)
    assert (variable is None) == (not layout.variable)
    for index in range(n):
        reader = Reader(layout, base[index].copy(), numpy_scalars=True)
        assert_same(reader.read(variable[index] if variable else ()), expected[index])


def test_batch_is_a_copy_and_views_are_not() -> None:
    space = spaces.Dict(a=spaces.Box(0, 1, (2,)), b=spaces.Text(3))
    base = np.zeros((3, 64), np.uint8)
    view = BatchView(plan(space), base)
    assert view.views["a"].shape == (3, 2)
    assert view.views["b"] is None
    assert np.shares_memory(view.views["a"], base)
    got = view.copy([["x"], ["y"], ["z"]])
    taken = view.take(1, ["y"])
    view.views["a"][...] = 1
    assert got["a"].tolist() == [[0, 0]] * 3
    assert taken["a"].tolist() == [0, 0]
    assert view.copy([["x"], ["y"], ["z"]])["a"].tolist() == [[1, 1]] * 3


def test_hostile_bools_are_proper_bools() -> None:
    base = np.full((2, 8), 255, np.uint8)
    view = BatchView(plan(spaces.Box(0, 1, (3,), bool)), base)
    assert_same(view.copy(), np.ones((2, 3), bool))
    assert_same(view.take(0), np.ones(3, bool))
    assert_same(BatchView(plan(spaces.Box(0, 1, (), bool)), base).copy(), np.ones(2, bool))


def test_missing_variable_values_are_a_protocol_error() -> None:
    view = BatchView(plan(spaces.Text(3)), np.zeros((2, 0), np.uint8))
    assert view.copy([["a"], ["b"]]) == ("a", "b")
    for variable in (None, [], [["a"]], [["a"], []], [["a"], ["b", "c"]]):
        with pytest.raises(ProtocolError, match="expected 1 variable value from each of 2"):
            view.copy(variable)
    with pytest.raises(ProtocolError, match="expected 1 variable value, got 0"):
        view.take(0)


BOX = spaces.Box(-1, 1, (2,))


class Tensor:
    """What a tensor of another framework looks like to numpy."""

    def __init__(self, data: object) -> None:
        self.data = data

    def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray[Any, Any]:
        if self.data is None:
            raise RuntimeError("call detach first")
        return np.asarray(self.data, dtype)


@pytest.mark.parametrize(
    ("space", "actions", "expected"),
    [
        (BOX, [[0, 1], [0.5, 1]], [[0, 1], [0.5, 1]]),
        (BOX, np.zeros((2, 2)), [[0, 0], [0, 0]]),
        (BOX, np.ones((2, 2), np.int64), [[1, 1], [1, 1]]),
        (BOX, Tensor([[0.0, 1.0], [1.0, 0.0]]), [[0, 1], [1, 0]]),
        (spaces.Discrete(3), [0, 2], [0, 2]),
        (spaces.Discrete(3), (np.int32(0), np.int32(2)), [0, 2]),
        (spaces.Discrete(3), np.array([0, 2], np.uint8), [0, 2]),
        (spaces.Discrete(3, dtype=np.uint8), [0, 2], [0, 2]),
        (spaces.Discrete(3, dtype=np.int8), np.array([0, 2]), [0, 2]),
    ],
)
def test_lenient_actions(space: Space[Any], actions: object, expected: object) -> None:
    base = rows(space, 2)
    layout = plan(space)
    ActionBatch(space, layout, base).write(ActionCheck(space).apply(actions))
    assert BatchView(layout, base).copy().tolist() == expected


NESTED = spaces.Dict(a=spaces.Discrete(3), b=spaces.Tuple([BOX, spaces.Text(3)]))


@pytest.mark.parametrize(
    ("space", "actions", "text"),
    [
        (BOX, np.zeros((1, 2)), "actions: expected 2 actions, one per environment, got 1"),
        (BOX, np.zeros((3, 2), np.float32), "expected 2 actions, one per environment, got 3"),
        (BOX, np.zeros((2, 3)), "actions: expected shape (2, 2), got shape (2, 3)"),
        (BOX, np.zeros(2), "expected shape (2, 2), got shape (2,)"),
        (BOX, 1.0, "expected shape (2, 2), got shape () (float 1.0)"),
        (BOX, Tensor(None), "numpy cannot convert: call detach first"),
        (BOX, [["a", "b"], ["c", "d"]], "expected dtype float32, got <U1"),
        (spaces.Discrete(3), [1], "expected 2 actions, one per environment, got 1"),
        (spaces.Discrete(3), 1, "expected shape (2,), got shape () (int 1)"),
        (spaces.Discrete(3), np.array([0.0, 1.0]), "expected dtype int64, got float64 (ndarray); convert it first"),
        (spaces.Discrete(3, dtype=np.int8), np.array([0, 256]), "expected int8, -128 to 127, got 256"),
        (spaces.Discrete(3), None, "expected shape (2,), got shape ()"),
        (NESTED, {"a": [0, 1]}, "actions: expected the keys ['a', 'b'], got missing ['b']"),
        (NESTED, {"a": [0, 1], "b": (np.zeros((2, 2)),)}, "actions['b']: expected a tuple of 2 items, got 1"),
        (NESTED, {"a": [0, 1], "b": (np.zeros((1, 2)), ("x", "y"))}, "actions['b'][0]: expected 2 actions"),
        (NESTED, {"a": [0, 1], "b": (np.zeros((2, 2)), ("x",))}, "actions['b'][1]: expected 2 actions"),
        (
            NESTED,
            {"a": [0, 1], "b": (np.zeros((2, 2)), "xy")},
            "actions['b'][1]: expected a tuple of 2 values, got str xy",
        ),
    ],
    ids=lambda value: value[:40] if isinstance(value, str) else "",
)
def test_wrong_batch_is_refused_before_anything_is_written(space: Space[Any], actions: object, text: str) -> None:
    base = rows(space, 2)
    before = base.copy()
    with pytest.raises(InvalidAction, match=re.escape(text)):
        ActionBatch(space, plan(space), base).write(actions)
    assert_same(base.copy(), before)


def test_base_is_checked() -> None:
    for base in (
        np.zeros((2, 7), np.uint8),
        np.zeros((0, 8), np.uint8),
        np.zeros(8, np.uint8),
        np.zeros((2, 8), np.int8),
    ):
        with pytest.raises(ValueError, match="expected uint8 of shape"):
            BatchView(plan(BOX), base)
    with pytest.raises(ValueError, match="side by side"):
        BatchView(plan(BOX), np.zeros((2, 16), np.uint8)[:, ::2])
    with pytest.raises(ValueError, match="expected the layout of"):
        ActionBatch(spaces.Discrete(2), plan(BOX), np.zeros((2, 8), np.uint8))
