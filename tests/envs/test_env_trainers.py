"""Stable-Baselines3 trains through it, one environment and several."""

from __future__ import annotations

from pathlib import Path

import pytest

from agentenv import AgentENV

stable_baselines3 = pytest.importorskip("stable_baselines3", reason="pip install stable-baselines3")

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning:torch.*"),
    pytest.mark.filterwarnings("ignore:.*torch.*:UserWarning"),
]


@pytest.fixture(autouse=True)
def _logs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It makes a folder for each training, which stays."""
    monkeypatch.setenv("SB3_LOGDIR", str(tmp_path))


def test_ppo_trains_on_one_environment() -> None:
    with AgentENV.from_env("CartPole-v1", seed=1) as env:
        model = stable_baselines3.PPO("MlpPolicy", env, n_steps=500, batch_size=100, seed=1, device="cpu")
        model.learn(2000)
        episodes = list(model.ep_info_buffer)
    assert model.num_timesteps == 2000
    assert len(episodes) > 20
    assert all(episode["r"] == episode["l"] for episode in episodes)  # CartPole pays 1 a step


def test_ppo_trains_on_several_through_its_own_vector() -> None:
    from stable_baselines3.common.env_util import make_vec_env

    vec = make_vec_env(lambda: AgentENV.from_env("CartPole-v1"), n_envs=3, seed=1)
    try:
        model = stable_baselines3.PPO("MlpPolicy", vec, n_steps=200, batch_size=100, seed=1, device="cpu")
        model.learn(1800)
        assert model.num_timesteps == 1800
        assert len(model.ep_info_buffer) > 20
    finally:
        vec.close()


def test_training_repeats_itself() -> None:
    """The same seed gives the same weights, and the same as on the bare environment."""
    import gymnasium

    weights = []
    for make in (lambda: AgentENV.from_env("CartPole-v1"), lambda: gymnasium.make("CartPole-v1")):
        with make() as env:
            model = stable_baselines3.PPO("MlpPolicy", env, n_steps=200, batch_size=100, seed=7, device="cpu")
            model.learn(400)
        weights.append([value.numpy().tobytes() for value in model.policy.state_dict().values()])
    assert weights[0] == weights[1]
