"""Real environments through agentenv and without it, compared bit for bit."""

from __future__ import annotations

from typing import Any

import pytest

from agentenv.testing import check_parity, check_single_parity

MODES = ("NextStep", "SameStep", "Disabled")

# name -> what makes its episodes end within the steps compared
ENVIRONMENTS: dict[str, dict[str, Any]] = {
    "CartPole-v1": {"steps": 300},
    "Pendulum-v1": {"steps": 100, "max_episode_steps": 11},
    "Taxi-v4": {"steps": 100, "max_episode_steps": 11},
    "Blackjack-v1": {"steps": 100},
    "HalfCheetah-v5": {"steps": 60, "max_episode_steps": 7},
    "ALE/Breakout-v5": {"steps": 30, "max_episode_steps": 7},
    "MiniGrid-Empty-5x5-v0": {"steps": 40, "max_episode_steps": 7},
    "highway-fast-v0": {
        "steps": 12,
        "max_episode_steps": 3,
        "wrappers": ["envs.samples:WithoutDrawnAction"],
    },
    "agentenv/GridWorld-v0": {"steps": 60, "max_episode_steps": 9, "env_kwargs": {"slip": 0.3, "walls": 4}},
}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_a_vector_equals_sync_vector_env(name: str, mode: str) -> None:
    parity = check_parity(name, autoreset_mode=mode, seed=11, **ENVIRONMENTS[name])
    assert parity.episodes >= 6


@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_a_single_environment_equals_the_bare_one(name: str) -> None:
    assert check_single_parity(name, seed=12, **ENVIRONMENTS[name]).episodes >= 3


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("num_envs", [3, 5])
def test_environments_that_share_a_sandbox_equal_sync_vector_env(num_envs: int, mode: str) -> None:
    """Three in one, and five as three and two."""
    parity = check_parity("Blackjack-v1", autoreset_mode=mode, num_envs=num_envs, envs_per_sandbox=3, steps=60)
    assert parity.episodes > 30


@pytest.mark.parametrize("name", ["MiniGrid-Empty-5x5-v0", "Taxi-v4"])
def test_environments_with_a_wall_of_their_own_each_equal_sync_vector_env(name: str) -> None:
    assert check_parity(name, nested="never", num_envs=2, steps=30, max_episode_steps=7).episodes >= 4


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", ["CartPole-v1", "MiniGrid-Empty-5x5-v0"])
def test_environments_without_isolation_equal_sync_vector_env(name: str, mode: str) -> None:
    parity = check_parity(
        name, autoreset_mode=mode, runtime="process", steps=40, max_episode_steps=7, envs_per_sandbox=2
    )
    assert parity.episodes >= 6


@pytest.mark.parametrize("name", ["Pendulum-v1", "Blackjack-v1"])
def test_a_single_environment_without_isolation_equals_the_bare_one(name: str) -> None:
    assert check_single_parity(name, runtime="process", steps=40, max_episode_steps=7).episodes >= 3


def test_a_difference_is_found_and_named() -> None:
    """The suite can fail: an environment that counts its own constructions differs from one built elsewhere."""
    with pytest.raises(AssertionError, match=r"reset\(seed=0\).*expected"):
        check_parity("envs.samples:Unrepeatable", steps=2)
    with pytest.raises(AssertionError, match=r"reset\(seed=0\).*expected"):
        check_single_parity("envs.samples:Unrepeatable", steps=2)
