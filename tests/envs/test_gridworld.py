"""GridWorld against its own promises: the contract, the dynamics, what is refused, what a state carries."""

from __future__ import annotations

import copy
import json
import pickle
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from agentenv.envs.gridworld import GridWorld
from agentenv.envs.registration import GRIDWORLD_ID, GRIDWORLD_MAX_EPISODE_STEPS, register_envs

register_envs()

KINDS: dict[str, dict[str, Any]] = {
    "plain": {},
    "slippery": {"slip": 0.3, "traps": 2, "size": 6},
    "coordinates": {"observation": "coordinates", "size": [3, 7], "walls": [[0, 1], [1, 3]]},
    "image": {"observation": "image", "walls": 0.2, "goals": 2},
    "relayout": {"walls": 5, "traps": 2, "start": None, "goals": 2, "relayout": True},
    "smallest": {"size": [1, 2], "observation": "coordinates"},
}


def trajectory(env: GridWorld, steps: int, seed: int = 0) -> list[tuple[Any, ...]]:
    """Play seeded random actions, with a reset after each end, and return everything that came back."""
    rng = np.random.default_rng(seed)
    seen: list[tuple[Any, ...]] = []
    for _ in range(steps):
        observation, reward, terminated, truncated, info = env.step(rng.integers(4))
        seen.append((np.asarray(observation).tolist(), reward, terminated, truncated, info))
        if terminated:
            seen.append((np.asarray(env.reset()[0]).tolist(),))
    return seen


@pytest.mark.parametrize("kind", KINDS)
def test_gymnasium_checker_finds_nothing(kind: str) -> None:
    check_env(gym.make(GRIDWORLD_ID, **KINDS[kind]).unwrapped)


@pytest.mark.parametrize("kind", KINDS)
def test_stable_baselines_checker_finds_nothing(kind: str) -> None:
    checker = pytest.importorskip("stable_baselines3.common.env_checker")
    checker.check_env(GridWorld(**KINDS[kind]))


def test_registered_with_a_time_limit_and_only_once() -> None:
    register_envs()
    env = gym.make("agentenv/GridWorld-v0", size=9)
    assert env.spec is not None
    assert env.spec.max_episode_steps == GRIDWORLD_MAX_EPISODE_STEPS == 200
    env.reset(seed=0)
    steps = 1
    while not env.step(0)[3]:
        steps += 1
    assert steps == 200


def test_moves_walls_edges_and_ends() -> None:
    env = GridWorld(size=[2, 3], walls=[[0, 1]], goals=[[1, 2, 5.0]], traps=[[0, 2, -7]], step_reward=-0.5)
    assert env.reset(seed=1) == (0, {})
    assert env.step(1) == (0, -0.5, False, False, {}), "a wall stops a move"
    assert env.step(0) == (0, -0.5, False, False, {}), "an edge stops a move"
    assert env.step(np.int64(2)) == (3, -0.5, False, False, {})
    assert env.step(1) == (4, -0.5, False, False, {})
    assert env.step(0) == (4, -0.5, False, False, {}), "the wall stops it from below as well"
    assert env.step(1) == (5, 5.0, True, False, {})
    assert env.step(3) == (5, 0.0, True, False, {}), "the end is absorbing"
    env.reset()
    for action in (2, 1, 1):
        env.step(action)
    env = GridWorld(size=[1, 3], start=[0, 1], traps=[[0, 0, -7]])
    env.reset()
    assert env.step(3) == (0, -7.0, True, False, {})


def test_slip_one_never_goes_where_it_was_meant_to() -> None:
    env = GridWorld(size=3, start=[1, 1], slip=1.0, observation="coordinates")
    env.reset(seed=0)
    seen = set()
    for _ in range(60):
        env.reset()
        seen.add(tuple(env.step(0)[0].tolist()))
    assert seen == {(1, 0), (1, 2)}


def test_observations_show_the_same_cell() -> None:
    common: dict[str, Any] = {"size": [4, 5], "walls": 4, "traps": 1, "layout_seed": 3, "slip": 0.2}
    index, coordinates, image = (GridWorld(observation=o, **common) for o in ("index", "coordinates", "image"))
    picture = GridWorld(render_mode="rgb_array", **common)
    for env in (index, coordinates, image, picture):
        env.reset(seed=9)
    for action in np.random.default_rng(0).integers(4, size=200):
        cell = index.step(action)[0]
        row_column = coordinates.step(action)[0]
        pixels = image.step(action)[0]
        picture.step(action)
        assert row_column.dtype == np.int64
        assert divmod(cell, 5) == tuple(row_column)
        assert np.array_equal(pixels, picture.render())
        blue = (pixels == (38, 92, 188)).all(axis=-1)
        assert {(y // 8, x // 8) for y, x in np.argwhere(blue)} == {divmod(cell, 5)}


def test_image_observations_are_not_shared() -> None:
    env = GridWorld(observation="image")
    first, _ = env.reset(seed=0)
    kept = first.copy()
    second = env.step(1)[0]
    second[:] = 0
    assert np.array_equal(first, kept)
    assert np.array_equal(env.reset()[0], kept)


def test_ansi_rendering() -> None:
    env = GridWorld(size=[2, 3], walls=[[0, 1]], traps=[[0, 2]], render_mode="ansi")
    env.reset()
    assert env.render() == "A#X\n..G\n"
    env.step(2)
    assert env.render() == "S#X\nA.G\n"


def test_render_without_a_mode_says_what_to_do() -> None:
    env = GridWorld()
    env.reset()
    with pytest.warns(UserWarning, match="Give one"):
        assert env.render() is None


@pytest.mark.parametrize("kind", KINDS)
def test_same_seed_same_trajectory(kind: str) -> None:
    runs = []
    for _ in range(2):
        env = GridWorld(**KINDS[kind])
        env.reset(seed=5)
        runs.append(trajectory(env, 200))
    assert runs[0] == runs[1]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("via", ["state", "pickle", "deepcopy"])
def test_a_copy_continues_the_same_trajectory(kind: str, via: str) -> None:
    env = GridWorld(**KINDS[kind])
    env.reset(seed=5)
    trajectory(env, 50)
    if via == "state":
        state = json.loads(json.dumps(env.get_state()))
        other = GridWorld(**KINDS[kind])
        other.set_state(state)
    else:
        other = pickle.loads(pickle.dumps(env)) if via == "pickle" else copy.deepcopy(env)
    expected = trajectory(env, 200, seed=1)
    assert trajectory(other, 200, seed=1) == expected


def test_a_state_does_not_follow_the_environment() -> None:
    env = GridWorld(slip=0.5)
    env.reset(seed=1)
    state = env.get_state()
    frozen = copy.deepcopy(state)
    expected = trajectory(env, 30)
    assert state == frozen
    env.set_state(state)
    assert trajectory(env, 30) == expected


def test_refused_states_change_nothing() -> None:
    env = GridWorld(walls=[[1, 1]], slip=0.5)
    env.reset(seed=1)
    good = env.get_state()
    layout = good["layout"]
    bad: list[Any] = [
        None,
        {},
        {**good, "more": 1},
        {**good, "agent": 25},
        {**good, "agent": 6},
        {**good, "agent": "0"},
        {**good, "layout": None},
        {**good, "layout": {**layout, "rows": 4}},
        {**good, "layout": {**layout, "start": 99}},
        {**good, "layout": {**layout, "walls": [0]}},
        {**good, "layout": {**layout, "goals": []}},
        {**good, "layout": {**layout, "goals": [[24]]}},
        {**good, "rng": {}},
        {**good, "rng": {**good["rng"], "bit_generator": "MT19937"}},
        {**good, "rng": {**good["rng"], "state": {"state": -1, "inc": 1}}},
        {**good, "rng": {**good["rng"], "state": {"state": 2**200, "inc": 1}}},
    ]
    for state in bad:
        with pytest.raises(ValueError, match="expected"):
            env.set_state(state)
        assert env.get_state() == good


def test_state_needs_a_reset_and_numpys_own_generator() -> None:
    env = GridWorld()
    with pytest.raises(gym.error.ResetNeeded, match="reset"):
        env.get_state()
    env.reset(seed=0)
    env.np_random = np.random.Generator(np.random.MT19937(1))
    with pytest.raises(ValueError, match="expected np_random to use PCG64, got MT19937"):
        env.get_state()


@pytest.mark.parametrize("action", [-1, 4, 1.0, "up", None, np.array([1]), np.float32(2)])
def test_actions_outside_the_space_are_refused(action: Any) -> None:
    env = GridWorld()
    env.reset()
    with pytest.raises(ValueError, match="expected an action 0"):
        env.step(action)
