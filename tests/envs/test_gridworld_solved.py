"""The optimum of GridWorld, found three ways: the closed form, its model, and only by playing it."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentenv.envs.gridworld import GridWorld
from agentenv.envs.gridworld_dynamics import Transitions


def solve(model: Transitions, gamma: float) -> dict[int, float]:
    """Value iteration until nothing moves any more."""
    values = dict.fromkeys(model, 0.0)
    for _ in range(10_000):
        change = 0.0
        for cell, actions in model.items():
            best = max(
                sum(p * (reward + (0.0 if end else gamma * values[after])) for p, after, reward, end in outcomes)
                for outcomes in actions.values()
            )
            change = max(change, abs(best - values[cell]))
            values[cell] = best
        if change < 1e-12:
            return values
    raise AssertionError("value iteration did not converge")


def model_from_outside(env: gym.Env[Any, Any], steps: int) -> tuple[int, Transitions]:
    """Estimate the start and the model from reset and step alone, by playing random actions."""
    rng = np.random.default_rng(0)
    seen: dict[tuple[int, int], Counter[tuple[int, float, bool]]] = defaultdict(Counter)
    start = cell = int(env.reset(seed=0)[0])
    for _ in range(steps):
        action = int(rng.integers(4))
        after, reward, terminated, truncated, _ = env.step(action)
        seen[cell, action][int(after), float(reward), bool(terminated)] += 1
        cell = int(env.reset()[0]) if terminated or truncated else int(after)
    model: Transitions = defaultdict(dict)
    for (cell, action), outcomes in seen.items():
        model[cell][action] = [(count / outcomes.total(), *outcome) for outcome, count in outcomes.items()]
    for _, action_outcomes in list(model.items()):
        for outcomes_of in action_outcomes.values():
            for _, after, _, _ in outcomes_of:
                model.setdefault(after, {0: [(1.0, after, 0.0, True)]})
    return start, model


@given(
    rows=st.integers(1, 6),
    columns=st.integers(2, 6),
    gamma=st.sampled_from([0.0, 0.5, 0.95, 1.0]),
    step_reward=st.sampled_from([0.0, -0.01, -1.0]),
    goal_reward=st.sampled_from([0.0, 1.0, 10.0]),
    seed=st.integers(0, 1000),
)
def test_closed_form_is_what_value_iteration_finds(
    rows: int, columns: int, gamma: float, step_reward: float, goal_reward: float, seed: int
) -> None:
    env = GridWorld(
        size=(rows, columns),
        goals=1,
        start=None,
        step_reward=step_reward,
        goal_reward=goal_reward,
        layout_seed=seed,
    )
    value = solve(env.transitions(), gamma)[env.layout.start]
    assert env.optimal_return(gamma) == pytest.approx(value, abs=1e-9)


def test_closed_form_by_hand() -> None:
    env = GridWorld(size=5)
    assert env.optimal_return() == pytest.approx(7 * -0.01 + 1.0)
    assert env.optimal_return(0.5) == pytest.approx(-0.01 * (1 - 0.5**7) / 0.5 + 0.5**7)


@pytest.mark.parametrize(
    "arguments",
    [
        {"walls": 1, "layout_seed": 0},
        {"traps": 1, "layout_seed": 0},
        {"slip": 0.1},
        {"goals": 2, "layout_seed": 0},
        {"step_reward": 0.1},
        {"goal_reward": -1.0},
    ],
)
def test_closed_form_is_refused_where_it_does_not_hold(arguments: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="the closed form needs one goal"):
        GridWorld(**arguments).optimal_return()


def test_discount_is_checked() -> None:
    with pytest.raises(ValueError, match=r"gamma: expected a number from 0 to 1, got 1\.5"):
        GridWorld().optimal_return(1.5)


@given(slip=st.floats(0, 1), seed=st.integers(0, 100))
def test_every_distribution_sums_to_one(slip: float, seed: int) -> None:
    env = GridWorld(size=4, walls=3, traps=2, slip=slip, layout_seed=seed)
    for actions in env.transitions().values():
        assert sorted(actions) == [0, 1, 2, 3]
        for outcomes in actions.values():
            assert sum(outcome[0] for outcome in outcomes) == pytest.approx(1.0)
            assert all(outcome[0] > 0 for outcome in outcomes)


def test_playing_shows_the_model_it_declares() -> None:
    env = GridWorld(size=3, walls=[[1, 1]], slip=0.3, traps=[[0, 2]])
    start, played = model_from_outside(env, steps=40_000)
    declared = env.transitions()
    assert start == 0
    for cell, actions in played.items():
        if declared[cell][0][0][3] and declared[cell][0][0][1] == cell:
            continue
        for action, outcomes in actions.items():
            expected: dict[tuple[int, float, bool], float] = defaultdict(float)
            for chance, *outcome in declared[cell][action]:
                expected[tuple(outcome)] += chance  # type: ignore[index]  # a tuple of two
            found = {(after, reward, end): chance for chance, after, reward, end in outcomes}
            assert found.keys() == expected.keys()
            for outcome_key, chance in found.items():
                # Each pair was played over 500 times: a standard deviation is at most 0.023.
                assert chance == pytest.approx(expected[outcome_key], abs=0.1)


def solved_from_outside(env: gym.Env[Any, Any]) -> float:
    start, model = model_from_outside(env, steps=4_000)
    return solve(model, 1.0)[start]


def test_optimum_found_by_playing_the_bare_environment() -> None:
    assert solved_from_outside(GridWorld(size=4)) == pytest.approx(GridWorld(size=4).optimal_return())


def test_optimum_found_by_playing_an_isolated_environment() -> None:
    from agentenv import AgentENV

    with AgentENV.from_env("agentenv/GridWorld-v0", env_kwargs={"size": 4}) as env:
        assert solved_from_outside(env) == pytest.approx(GridWorld(size=4).optimal_return())
