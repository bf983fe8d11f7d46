"""An action outside its space is named with the bounds and the remedy; one inside passes untouched."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from gymnasium import Space, spaces
from gymnasium.vector.utils import batch_space
from hypothesis import given
from hypothesis import strategies as st

from agentenv.errors import InvalidAction
from agentenv.testing.exact import assert_same
from agentenv.testing.spaces import any_space, samples
from agentenv.wire.layout import Writer, plan
from agentenv.wire.membership import ActionCheck

BOX = spaces.Box(np.array([-1, 0], np.float32), np.array([1, 5], np.float32))
NESTED = spaces.Dict(move=spaces.Tuple([spaces.Discrete(3), BOX]), say=spaces.Text(2))


@given(any_space(), st.data())
def test_sampled_actions_pass_unchanged(space: Space[Any], data: st.DataObject) -> None:
    for mode in ("error", "clip"):
        check = ActionCheck(space, mode)
        (value,) = data.draw(samples(space, 1))
        assert_same(stored(space, check.apply_one(value)), stored(space, value))
        batched = batch_space(space, 3)
        (batch,) = data.draw(samples(batched, 1))
        assert_same(check.apply(batch), batch)


def stored(space: Space[Any], value: Any) -> tuple[bytes, list[object]]:
    layout = plan(space)
    block = np.zeros(layout.nbytes, np.uint8)
    variable = Writer(layout, block).write(value)
    return block.tobytes(), variable


def test_array_inside_is_returned_itself() -> None:
    actions = np.zeros((3, 2), np.float32)
    assert ActionCheck(BOX).apply(actions) is actions
    numbers = np.array([0, 1, 2])
    assert ActionCheck(spaces.Discrete(3)).apply(numbers) is numbers


CLIP = 'set invalid_action = "clip", or wrap the environment with gymnasium.wrappers.ClipAction or RescaleAction'


@pytest.mark.parametrize(
    ("space", "actions", "text"),
    [
        (BOX, [[0, 0], [0, 7]], f"action: action 1, element [1]: expected 0.0 to 5.0 (Box), got 7.0; {CLIP}"),
        (BOX, np.array([[-1.5, 0]], np.float32), "action 0, element [0]: expected -1.0 to 1.0 (Box), got -1.5"),
        (BOX, np.array([[0, np.nan]]), "got nan; the policy produced nan; look for diverged weights"),
        (BOX, np.full((2, 2), 1e300), "action 0, element [0]: expected -1.0 to 1.0 (Box), got inf"),
        (BOX, np.zeros((2, 3)), "action: expected shape (n, 2), got (2, 3)"),
        (BOX, np.zeros(2), "action: expected shape (n, 2), got (2,)"),
        (BOX, [["a", "b"]], "action: expected numbers, got <U1"),
        (spaces.Box(0, 1, ()), [0.5, 2], "action: action 1: expected 0.0 to 1.0 (Box), got 2.0"),
        (spaces.Box(0, 1, ()), np.array(2, np.float32), "action: expected shape (n,), got ()"),
        (spaces.Box(0, 1, (1,), bool), [[2]], "action: expected bool, got int64"),
        (spaces.Box(0, 9, (1,), np.int32), [[0.5]], "action: expected integers, got float64"),
        (
            spaces.Discrete(3, start=-1),
            [0, 1, 2],
            "action: action 2: expected -1 to 1 (Discrete), got 2; fix the policy",
        ),
        (spaces.Discrete(3), [-1], "action: action 0: expected 0 to 2 (Discrete), got -1"),
        (spaces.Discrete(3), np.r_[np.zeros(99, int), 7], "action: action 99: expected 0 to 2 (Discrete), got 7"),
        (spaces.Discrete(3), np.array([2**63], np.uint64), "got 9223372036854775808"),
        (spaces.Discrete(3), [0.0], "action: expected integers, got float64 (list); convert it with astype first"),
        (spaces.Discrete(3), [[0]], "action: expected shape (n,), got (1, 1)"),
        (spaces.Discrete(3), None, "action: expected shape (n,), got ()"),
        (
            spaces.MultiDiscrete([2, 3]),
            [[1, 2], [2, 0]],
            "action 1, element [0]: expected 0 to 1 (MultiDiscrete), got 2; fix",
        ),
        (
            spaces.MultiDiscrete([2, 3], start=[5, 0]),
            [[4, 2]],
            "action 0, element [0]: expected 5 to 6 (MultiDiscrete), got 4",
        ),
        (spaces.MultiBinary(2), [[0, 2]], "action 0, element [1]: expected 0 to 1 (MultiBinary), got 2"),
        (spaces.Text(2), ("ab", "abc"), "action: action 1: expected a value of Text(1, 2"),
        (spaces.Text(2), "ab", "action: expected a tuple with one value per environment, got str ab"),
        (
            NESTED,
            {"move": ([0, 3], np.zeros((2, 2))), "say": ("a", "b")},
            "action['move'][0]: action 1: expected 0 to 2",
        ),
        (NESTED, {"move": ([0, 1],), "say": ("a", "b")}, "action['move']: expected a tuple of 2 items, got 1"),
        (NESTED, {"move": 1}, "action: expected the keys ['move', 'say'], got missing ['say']"),
        (
            NESTED,
            {"move": ([0, 1], np.zeros((2, 2))), "say": ("a", 1)},
            "action['say']: action 1: expected a value of Text",
        ),
    ],
    ids=lambda value: value[:50] if isinstance(value, str) else "",
)
def test_batch_outside_is_refused_with_index_bounds_and_remedy(space: Space[Any], actions: object, text: str) -> None:
    with pytest.raises(InvalidAction, match=re.escape(text)):
        ActionCheck(space).apply(actions)


@pytest.mark.parametrize(
    ("space", "action", "text"),
    [
        (BOX, [0, 7], f"action, element [1]: expected 0.0 to 5.0 (Box), got 7.0; {CLIP}"),
        (BOX, [0], "action: expected shape (2,), got (1,)"),
        (spaces.Box(0, 1, ()), 2.0, "action: expected 0.0 to 1.0 (Box), got 2.0"),
        (spaces.Discrete(3), 3, "action: expected 0 to 2 (Discrete), got 3; fix"),
        (spaces.Discrete(3), np.int64(-1), "action: expected 0 to 2 (Discrete), got -1"),
        (spaces.Discrete(3), 1.0, "action: expected integers, got float64 (float 1.0)"),
        (spaces.Discrete(3), [1], "action: expected shape (), got (1,)"),
        (spaces.Text(2), "abc", "action: expected a value of Text"),
        (NESTED, {"move": (0, [0, 9]), "say": "a"}, "action['move'][1], element [1]: expected 0.0 to 5.0"),
    ],
    ids=lambda value: value[:50] if isinstance(value, str) else "",
)
def test_one_action_outside_is_refused(space: Space[Any], action: object, text: str) -> None:
    with pytest.raises(InvalidAction, match=re.escape(text)):
        ActionCheck(space).apply_one(action)


def test_clip_moves_a_box_to_its_bounds_and_copies() -> None:
    actions = np.array([[-3, 2], [0, 9]], np.float32)
    before = actions.copy()
    check = ActionCheck(BOX, "clip")
    assert_same(check.apply(actions), np.array([[-1, 2], [0, 5]], np.float32))
    assert_same(actions, before)
    assert_same(check.apply_one(np.array([np.inf, -np.inf])), np.array([1, 0], np.float32))
    assert check.apply(np.full((1, 2), 1e300)).tolist() == [[1, 5]]


def test_clip_cannot_help_discrete_or_nan() -> None:
    with pytest.raises(InvalidAction, match="expected 0 to 2"):
        ActionCheck(spaces.Discrete(3), "clip").apply([3])
    with pytest.raises(InvalidAction, match="expected 0 to 1"):
        ActionCheck(spaces.MultiDiscrete([2]), "clip").apply([[3]])
    with pytest.raises(InvalidAction, match="diverged"):
        ActionCheck(BOX, "clip").apply(np.array([[9, np.nan]]))
    got = ActionCheck(NESTED, "clip").apply({"move": ([0], [[9, 9]]), "say": ("a",)})
    assert got["move"][1].tolist() == [[1, 5]]


def test_float64_is_judged_as_the_float32_it_becomes() -> None:
    space = spaces.Box(-0.1, 0.1, (1,), np.float32)
    barely = np.nextafter(np.float64(space.high[0]), 1)
    ActionCheck(space).apply(np.array([[barely]]))
    with pytest.raises(InvalidAction):
        ActionCheck(space).apply(np.array([[0.1001]]))


def test_mode_is_checked() -> None:
    with pytest.raises(ValueError, match=r'expected the mode "error" or "clip", got \'wrap\''):
        ActionCheck(BOX, "wrap")  # type: ignore[arg-type]  # wrong on purpose
