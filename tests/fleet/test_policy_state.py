"""What a policy remembers comes back, or it is said why not."""

from __future__ import annotations

import enum
import random
from collections import Counter, OrderedDict, defaultdict
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from agentenv.fleet.policies import make_actor
from agentenv.fleet.policy_state import LIMIT_BYTES, PolicyState
from wayward import Closed, Learner, Network

OBSERVATIONS = spaces.Dict({"noise": spaces.Box(0, 1, (2,), np.float64)})
ACTIONS = [
    spaces.Discrete(1000),
    spaces.Box(-1, 1, (3,)),
    spaces.Dict({"a": spaces.Discrete(9), "b": spaces.Tuple((spaces.MultiBinary(3), spaces.Text(4)))}),
    spaces.Sequence(spaces.Box(0, 1, (2,))),
    spaces.OneOf((spaces.Discrete(5), spaces.Box(0, 1, (2,)))),
    spaces.Graph(spaces.Box(0, 1, (2,)), spaces.Discrete(3)),
]


@pytest.mark.parametrize("space", ACTIONS, ids=lambda space: type(space).__name__)
def test_the_streams_of_any_action_space_go_on(space: spaces.Space[Any]) -> None:
    space.seed(3)
    for _ in range(7):
        space.sample()
    state = PolicyState(None, space).capture()
    expected = [repr(space.sample()) for _ in range(20)]
    space.seed(4)
    assert [repr(space.sample()) for _ in range(20)] != expected
    assert PolicyState(None, space).restore(state)
    assert [repr(space.sample()) for _ in range(20)] == expected


@pytest.mark.parametrize("kind", [Learner, Network])
def test_a_policy_decides_as_it_would_have(kind: type) -> None:
    look = np.random.default_rng(1)
    seen = [{"noise": look.random(2)} for _ in range(60)]

    def make() -> tuple[Any, PolicyState, spaces.Discrete]:
        space = spaces.Discrete(2)
        actor = make_actor(kind, OBSERVATIONS, space, seed=5, action_seed=6)
        return actor, PolicyState(actor, space), space

    actor, state, space = make()
    for one in seen[:30]:
        actor(one, space)
    data = state.capture()
    assert data
    assert state.gap == ""
    expected = [actor(one, space) for one in seen[30:]]
    fresh, other, space = make()
    assert [fresh(one, space) for one in seen[30:]] != expected
    fresh, other, space = make()
    assert other.restore(data)
    assert [fresh(one, space) for one in seen[30:]] == expected


def test_a_python_generator_is_kept() -> None:
    class Plain:
        def __init__(self) -> None:
            self.rng = random.Random(1)

    policy = Plain()
    state = PolicyState(policy, spaces.Discrete(2))
    data = state.capture()
    expected = policy.rng.random()
    assert state.restore(data)
    assert policy.rng.random() == expected


def test_what_cannot_be_kept_is_named() -> None:
    policy = Closed(None, None, 0)
    state = PolicyState(policy, spaces.Discrete(2))
    assert state.capture() == b""
    assert "'layers' is a list" in state.gap
    large = Learner(None, None, 0)
    large.total = np.zeros(LIMIT_BYTES)
    state = PolicyState(large, spaces.Discrete(2))
    assert state.capture() == b""
    assert "at most" in state.gap


@pytest.mark.parametrize("data", [b"", b"\0" * 40, b"nonsense"])
def test_damaged_state_is_refused(data: bytes) -> None:
    assert not PolicyState(None, spaces.Discrete(2)).restore(data)


class _Remembering:
    def __init__(self, **held: Any) -> None:
        vars(self).update(held)


class _Masked(enum.IntEnum):
    ON = 1


@pytest.mark.parametrize(
    "held",
    [
        defaultdict(int, {1: 2}),
        Counter("ab"),
        OrderedDict(a=1),
        np.ma.masked_array([1.0], [True]),
        np.array([1], [("a", "i4")])[0],
        _Masked.ON,
        {_Masked.ON: 1},
    ],
    ids=lambda held: type(held).__name__,
)
def test_what_would_come_back_as_another_type_is_named(held: object) -> None:
    state = PolicyState(_Remembering(table=held), spaces.Discrete(2))
    assert "'table'" in state.gap
    assert state.capture() == b""


def test_slots_are_remembered() -> None:
    class Slotted:
        __slots__ = ("__hidden", "count", "never")

        def __init__(self) -> None:
            self.count, self.__hidden = 1, [2]

        def look(self) -> object:
            return self.count, self.__hidden

        def go_on(self) -> None:
            self.count, self.__hidden = 7, [8]

    policy, fresh = Slotted(), Slotted()
    policy.go_on()
    assert PolicyState(fresh, spaces.Discrete(2)).restore(PolicyState(policy, spaces.Discrete(2)).capture())
    assert fresh.look() == (7, [8])


def test_what_two_attributes_share_they_share_again() -> None:
    row = np.zeros(3)
    policy = _Remembering(row=row, rows=[row, {"again": row}], own=np.zeros(3), pair=((1, [row]), [2]))
    data = PolicyState(policy, spaces.Discrete(2)).capture()
    fresh: Any = _Remembering()
    assert PolicyState(fresh, spaces.Discrete(2)).restore(data)
    fresh.row += 1
    assert fresh.rows[0] is fresh.row
    assert fresh.rows[1]["again"] is fresh.row
    assert fresh.pair[0][1][0] is fresh.row
    assert fresh.pair[1] == [2]
    assert not fresh.own.any()


def test_windows_on_one_array_are_named() -> None:
    table = np.zeros((3, 4))
    assert "parts of one" in PolicyState(_Remembering(table=table, row=table[1]), spaces.Discrete(2)).gap
    assert PolicyState(_Remembering(a=table[0], b=table[1:]), spaces.Discrete(2)).gap == ""


def test_a_policy_that_is_a_container_is_named() -> None:
    class Table(dict[int, int]):
        pass

    assert "itself a dict" in PolicyState(Table(), spaces.Discrete(2)).gap


def test_a_policy_that_cannot_be_looked_at_is_named() -> None:
    class Strange:
        @property
        def state_dict(self) -> object:
            raise ValueError("not yet")

    endless: list[Any] = []
    endless.append(endless)
    for policy, reason in ((Strange(), "ValueError: not yet"), (_Remembering(endless=endless), "RecursionError")):
        state = PolicyState(policy, spaces.Discrete(2))
        assert reason in state.gap
        assert state.capture() == b""


def test_generators_that_are_made_when_they_are_needed_are_kept() -> None:
    policy = _Remembering(rng=np.random.Generator(np.random.Philox(3)), other=random.Random(4), late=random.Random(5))
    policy.rng.random(5)  # type: ignore[attr-defined]  # given by name
    data = PolicyState(policy, spaces.Discrete(2)).capture()
    fresh: Any = _Remembering(rng=None, other=None)
    assert PolicyState(fresh, spaces.Discrete(2)).restore(data)
    held: Any = policy
    assert fresh.rng.random() == held.rng.random()
    assert fresh.other.random() == held.other.random()
    assert fresh.late.random() == held.late.random()


def test_nothing_else_of_numpy_is_called_for_a_generator() -> None:
    space = spaces.Discrete(2)
    data = PolicyState(_Remembering(rng=np.random.default_rng(1)), space).capture()
    fresh = _Remembering()
    before = repr(np.random.get_state())
    assert b'"PCG64"' in data
    assert not PolicyState(fresh, space).restore(b'"seed" '.join(data.rsplit(b'"PCG64"', 1)))
    assert repr(np.random.get_state()) == before
    assert not vars(fresh)
