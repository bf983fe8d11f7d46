"""PPO of Stable-Baselines3 on CartPole, with the environment isolated by AgentENV.

pip install "agentenv[sb3]"
python examples/ppo_sb3.py [timesteps]
"""

from __future__ import annotations

import sys

import torch
from stable_baselines3 import PPO
from stable_baselines3.common.monitor import Monitor

from agentenv import AgentENV


def main(timesteps: int = 6_000) -> None:
    # One thread is faster than many for a network of this size, and leaves the cores to the environments.
    torch.set_num_threads(1)
    with AgentENV.from_env("CartPole-v1", memory_mb=256, seed=0) as isolated:
        env = Monitor(isolated)
        model = PPO("MlpPolicy", env, n_steps=512, batch_size=128, gae_lambda=0.9, seed=0, device="cpu")
        model.learn(total_timesteps=timesteps)
        returns = env.get_episode_rewards()
    first, last = sum(returns[:20]) / 20, sum(returns[-10:]) / 10
    print(f"mean return of the first 20 episodes {first:.1f}, of the last 10 after {timesteps} steps {last:.1f}")


if __name__ == "__main__":
    main(*(int(argument) for argument in sys.argv[1:2]))
