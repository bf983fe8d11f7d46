"""The verdicts, as tables over what was recorded: no environment is started."""

from __future__ import annotations

import json
import random
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given
from hypothesis import strategies as st

from agentenv.checks import edges, growth, played, repeated
from agentenv.checks.digests import SIZE, digest
from agentenv.checks.observed import faults
from agentenv.checks.repeated import Rollout, Trial
from agentenv.checks.rows import ROWS, Verdict, count, fail, ok, skip, warn, worst


def rollout(*states: int, error: str = "") -> Rollout:
    return Rollout(tuple(bytes([state]) for state in states), ({},) * len(states), error)


A, B, C = rollout(1, 2, 3), rollout(1, 9, 3), rollout(7, 8, 9)


def verdicts(*trials: tuple[tuple[str, ...], Trial]) -> dict[str, str]:
    rows = repeated.judge_repeats(dict(trials), {}, 1.2)
    return {row.name: row.verdict.value for row in rows}


def test_a_difference_is_the_first_one() -> None:
    assert repeated.difference(A, A) is None
    assert repeated.difference(A, B) == 1
    assert repeated.difference(A, C) == 0
    assert repeated.difference(A, rollout(1, 2)) == 2
    assert repeated.difference(A, rollout(1, 2, 3, error="ValueError")) == 3


@pytest.mark.parametrize(
    ("trials", "expected"),
    [
        ({(): Trial(A, A, A)}, ("ok", "ok", "ok")),
        ({(): Trial(A, B, A)}, ("fail", "ok", "ok")),
        ({(): Trial(A, A, B), ("clock",): Trial(A, A, A)}, ("ok", "ok", "fail")),
        ({(): Trial(A, B, C), ("clock",): Trial(A, A, A)}, ("ok", "ok", "fail")),
        ({(): Trial(A, B, C), ("clock",): Trial(A, B, A)}, ("fail", "ok", "fail")),
        ({(): Trial(A, B, C), ("clock",): Trial(A, B, C), ("entropy",): Trial(A, B, A)}, ("fail", "ok", "ok")),
        ({(): Trial(A, A, C), ("clock",): Trial(A, A, C), ("entropy",): Trial(A, A, A)}, ("ok", "fail", "ok")),
        ({held: Trial(A, B, C) for held in repeated.HOLDS}, ("fail", "skip", "skip")),
        ({held: Trial(A, A, C) for held in repeated.HOLDS}, ("ok", "fail", "skip")),
    ],
)
def test_what_a_difference_follows(trials: dict[tuple[str, ...], Trial], expected: tuple[str, ...]) -> None:
    assert tuple(verdicts(*trials.items())[name] for name in ("seed", "instances", "clock")) == expected


def test_infos_that_differ_are_named_and_fail_nothing() -> None:
    one = Rollout((b"1",), ({"t": b"1", "same": b"0"},))
    two = Rollout((b"1",), ({"t": b"2", "same": b"0"},))
    rows = repeated.judge_repeats({(): Trial(one, two, two)}, {}, 1.2)
    assert {row.verdict for row in rows} == {Verdict.OK}
    assert rows[0].evidence["infos_differ"] == ["t"]
    assert "t" in rows[0].found


def test_a_variation_fails_where_any_differs() -> None:
    def row(*others: Rollout, drawn: bool = False) -> Any:
        return repeated.judge_variation("random", "it", "do that", A, others, drawn=drawn)

    assert row(A, A).verdict is Verdict.OK
    assert row(A, B).verdict is Verdict.FAIL
    assert row(A, B).evidence["first_difference"] == 1
    assert "draws from" in row(A, drawn=True).found


def readings(increments: list[int]) -> list[int]:
    total, out = 50 << 20, [50 << 20]
    for increment in increments:
        total += increment
        out.append(total)
    return out


@pytest.mark.parametrize(
    ("increments", "verdict"),
    [
        ([0] * 20, "ok"),
        ([0] * 9 + [64 << 20] + [0] * 10, "ok"),  # one large allocation is not a leak
        ([4096, 0] * 10, "ok"),  # pages come one by one
        ([400 * 8192] * 20, "fail"),
        ([400 * 200, 400 * 210] * 10, "warn"),
        ([-(1 << 20)] * 20, "ok"),
    ],
)
def test_growth_of_memory(increments: list[int], verdict: str) -> None:
    assert growth.judge_memory(readings(increments), 400, 512).verdict.value == verdict


def test_memory_is_not_judged_over_a_few_steps_or_readings() -> None:
    assert growth.judge_memory(readings([0] * 20), 4, 512).verdict is Verdict.SKIP
    assert growth.judge_memory(readings([0] * 3), 400, 512).verdict is Verdict.SKIP
    with pytest.raises(ValueError, match="expected 21 readings, got 4"):
        growth.estimate(readings([0] * 3), 400)


@given(st.integers(0, 1 << 16), st.integers(0, 2**32))
def test_the_interval_holds_the_growth_of_a_noisy_leak(bytes_per_step: int, seed: int) -> None:
    rng = random.Random(seed)
    noise = [rng.randrange(-4096, 4097) for _ in range(21)]
    values = [400 * bytes_per_step * i + noise[i] for i in range(21)]
    found = growth.estimate(values, 400)
    # Readings are at most 4 kB wrong each, so that the mean over 8000 steps is at most 8 kB / 8000 wrong.
    assert abs(found.mean - bytes_per_step) <= 8192 / 8000 + 1e-6
    assert found.low <= found.mean <= found.high


BOX = spaces.Box(-1.0, 1.0, (2,), np.float32)


@pytest.mark.parametrize(
    ("space", "value", "kinds"),
    [
        (BOX, np.zeros(2, np.float32), []),
        (BOX, np.zeros(3, np.float32), ["shape"]),
        (BOX, np.zeros(2, np.float64), ["dtype"]),
        (BOX, np.zeros(2, np.float16), ["castable"]),
        (BOX, [0.0, 0.0], ["castable"]),
        (BOX, [[0.0], [0.0, 1.0]], ["shape"]),
        (BOX, np.array([0.0, 2.0], np.float32), ["range"]),
        (BOX, np.array([0.0, np.nan], np.float32), ["range"]),
        (BOX, np.array(["a", "b"]), ["dtype"]),
        (BOX, np.array([0.0, 1.0 + 1e-9]), ["dtype"]),  # 1.0 in the declared dtype
        (spaces.Discrete(3), 2, []),
        (spaces.Discrete(3), np.int64(2), []),
        (spaces.Discrete(3, start=5), 3, ["range"]),
        (spaces.Discrete(3), 1.0, ["dtype"]),
        (spaces.MultiBinary(2), np.array([0, 2]), ["range"]),
        (spaces.MultiDiscrete([2, 2]), np.array([0.0, 1.0]), ["dtype"]),
        (spaces.MultiDiscrete([2, 2]), np.array([0, 1, 1]), ["shape"]),
        (spaces.Dict({"a": BOX}), {"a": np.zeros(2, np.float32)}, []),
        (spaces.Dict({"a": BOX}), {"b": np.zeros(2, np.float32)}, ["shape", "shape"]),
        (spaces.Dict({"a": BOX}), np.zeros(2, np.float32), ["shape"]),
        (spaces.Tuple([BOX, spaces.Discrete(2)]), (np.zeros(2, np.float32), 5), ["range"]),
        (spaces.Tuple([BOX, spaces.Discrete(2)]), (1,), ["shape"]),
        (spaces.Text(3), "abcd", ["range"]),
    ],
)
def test_faults_of_an_observation_are_told_apart(space: Any, value: Any, kinds: list[str]) -> None:
    assert [kind for kind, _text in faults(space, value)] == kinds


@pytest.mark.parametrize(
    ("space", "value", "told"),
    [
        (BOX, np.float32([0.0, 1.0000001]), "observation[1]: expected -1 to 1, got 1.0000001"),
        (
            spaces.Box(0, 2**40, (), np.int64),
            np.array(2**40 + 1),
            f"observation: expected 0 to {2**40}, got {2**40 + 1}",
        ),
        (BOX, np.float32([0.5, 1e6]), "observation[1]: expected -1 to 1, got 1e+06"),
    ],
)
def test_a_value_outside_does_not_look_like_its_bound(space: Any, value: Any, told: str) -> None:
    assert [text for _kind, text in faults(space, value)] == [told]


def test_nobody_is_told_to_widen_bounds_for_what_is_no_number() -> None:
    for value, remedy in ((np.nan, "division by zero"), (7.0, "widen the bounds")):
        [(kind, text)] = faults(BOX, np.float32([0.0, value]))
        rows = played.judge_observations({kind: [1, 0, text]}, 10)
        assert remedy in rows[-1].remedy


@pytest.mark.parametrize(
    "space",
    [
        spaces.Box(-2.0, 2.0, (3,), np.float32),
        spaces.Box(np.array([0.0, -np.inf]), np.array([1.0, np.inf]), dtype=np.float64),
        spaces.Box(0, 100, (2,), np.uint8),
        spaces.Box(-5, 5, (), np.int64),
        spaces.Discrete(4, start=-1),
        spaces.MultiDiscrete([2, 3]),
        spaces.MultiBinary(3),
        spaces.Tuple([spaces.Discrete(2), BOX]),
        spaces.Dict({"a": spaces.Discrete(2), "b": BOX}),
    ],
    ids=str,
)
def test_actions_outside_are_outside_and_their_neighbours_inside(space: Any) -> None:
    space.seed(1)
    tried = list(edges.outside(space, space.sample()))
    assert tried
    for one in tried:
        assert not space.contains(one.action), one
        assert space.contains(one.legal), one


def test_a_space_without_an_outside_is_skipped() -> None:
    everything = [spaces.Box(0, 255, (2,), np.uint8), spaces.Box(-np.inf, np.inf, (2,), np.float32), spaces.Text(3)]
    for space in everything:
        assert list(edges.outside(space, space.sample())) == []
    assert edges.judge_actions([]).verdict is Verdict.SKIP


def attempt(**keys: Any) -> dict[str, Any]:
    return {"error": None, "state": b"1", "finite": True, "faults": [], **keys}


@pytest.mark.parametrize(
    ("bad", "good", "verdict"),
    [
        (attempt(error=["ValueError", "no", ""]), attempt(), "ok"),
        (attempt(), attempt(), "ok"),
        (attempt(state=b"2"), attempt(), "warn"),
        (attempt(state=b"2", finite=False), attempt(), "fail"),
        (attempt(state=b"2", faults=["too far"]), attempt(), "fail"),
        (attempt(state=b"2", faults=["too far"]), attempt(faults=["too far"]), "warn"),  # it does so anyway
    ],
)
def test_outcomes_of_an_action_outside(bad: dict[str, Any], good: dict[str, Any], verdict: str) -> None:
    assert edges.judge_actions([edges.judge_outcome("5", bad, good)]).verdict.value == verdict


def test_death_by_an_action_is_a_failure() -> None:
    assert edges.judge_actions([edges.Outcome("5", death="the process ended")]).verdict is Verdict.FAIL


def test_steps_after_the_end() -> None:
    raised = attempt(error=["gymnasium.error.ResetNeeded", "no", ""])
    assert edges.judge_after_end([raised], "", True).verdict is Verdict.OK
    assert edges.judge_after_end([attempt()], "", None).verdict is Verdict.OK
    assert edges.judge_after_end([attempt()], "", False).verdict is Verdict.FAIL
    assert edges.judge_after_end([], "the process ended", None).verdict is Verdict.FAIL
    assert edges.judge_after_end([attempt()], "", True, "KeyError: 1").verdict is Verdict.FAIL


PICKLES = {"by": "pickle", "error": None, "same": True, "nbytes": 10}
FRESH = {"by": "pickle", "error": None, "same": False, "nbytes": 10}
REFUSES = {"by": "", "error": ["TypeError", "cannot pickle", ""], "same": False, "nbytes": 0}
FORKS = {"threads": 1, "forked": True, "same": True, "error": ""}
THREADS = {"threads": 3, "forked": False, "same": False, "error": "3 threads"}


@pytest.mark.parametrize(
    ("pickled", "forked", "verdict"),
    [
        (PICKLES, FORKS, "ok"),
        (PICKLES, THREADS, "ok"),
        (FRESH, FORKS, "ok"),
        (REFUSES, FORKS, "ok"),
        (REFUSES, THREADS, "fail"),
        (FRESH, THREADS, "fail"),
    ],
)
def test_one_way_to_keep_a_state_is_enough(pickled: dict[str, Any], forked: dict[str, Any], verdict: str) -> None:
    assert edges.judge_state(pickled, forked, {}).verdict.value == verdict


def test_a_death_while_pickling_is_told() -> None:
    row = edges.judge_state({}, FORKS, {"pickled": "the process ended"})
    assert row.verdict is Verdict.OK
    assert "the process ended" in row.found


@pytest.mark.parametrize(
    ("found", "rewards", "verdict"),
    [
        ({}, [0.0, 1.0], "ok"),
        ({}, [], "ok"),
        ({}, [0.0, -2000.0], "warn"),
        ({"reward_finite": [1, 4, "got nan"]}, [0.0], "fail"),
        ({"reward_type": [1, 4, "expected one number"]}, [], "fail"),
    ],
)
def test_rewards(found: dict[str, Any], rewards: list[float], verdict: str) -> None:
    row = played.judge_rewards(found, rewards, 10)
    assert row.verdict.value == verdict
    json.dumps(row.to_json(), allow_nan=False)


@pytest.mark.parametrize(("longest", "verdict"), [(0.1, "ok"), (0.3, "warn"), (1.5, "fail")])
def test_times_are_judged_by_the_limit_of_the_configuration(longest: float, verdict: str) -> None:
    row = played.judge_times("step_time", [0.001, longest], 1.0, "step_timeout_s")
    assert row.verdict.value == verdict
    assert row.evidence["max_s"] == longest


def test_an_error_in_play_is_told_with_its_place() -> None:
    trace = 'Traceback\n  File "guest.py", line 1, in f\n  File "mine.py", line 7, in step\nKeyError: 3\n'
    row = played.judge_error(["KeyError", "3", trace], 12, 100)
    assert row.verdict is Verdict.FAIL
    assert "mine.py" in row.remedy


def test_the_worst_verdict_counts_and_skips_do_not() -> None:
    rows = [ok("start", "a"), skip("seed", "b"), warn("reward", "c", "d"), fail("memory", "e", "f")]
    assert worst(row.verdict for row in rows) is Verdict.FAIL
    assert worst(row.verdict for row in rows[:3]) is Verdict.WARN
    assert worst(row.verdict for row in rows[:2]) is Verdict.OK
    assert count(rows) == {"ok": 1, "skip": 1, "warn": 1, "fail": 1}
    assert set(ROWS) > {row.name for row in rows}


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner) | st.tuples(inner, inner),
    max_leaves=10,
)


@given(VALUES, VALUES)
def test_digests_are_equal_for_equal_values_alone(one: Any, two: Any) -> None:
    assert len(digest(one)) == SIZE
    assert digest(one) == digest(one)
    assert (digest(one) == digest(two)) == (_typed(one) == _typed(two))


def _typed(value: Any) -> Any:
    if isinstance(value, dict):
        return "dict", sorted((key, repr(_typed(item))) for key, item in value.items())
    if isinstance(value, (list, tuple)):
        return type(value).__name__, [_typed(item) for item in value]
    return type(value).__name__, repr(value)


def test_digests_see_dtype_and_shape_and_not_the_order_of_a_dict() -> None:
    zeros = np.zeros(4, np.float32)
    assert len({digest(v) for v in (zeros, zeros.astype(np.int32), zeros.reshape(2, 2), zeros.tolist())}) == 4
    assert digest({"a": 1, "b": 2}) == digest({"b": 2, "a": 1})
    assert digest({"x", "y"}) == digest({"y", "x"})
    assert digest(object()) == digest(object())
