"""A complete agent for examples/command.toml: tabular Q-learning on GridWorld, run as one process inside a sandbox.

It is configured by the variables TRAINING_SEED, LEARNING_RATE and EPISODES, prints its progress, and writes result.json
into /out (elsewhere with: python train.py DIRECTORY).
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import numpy as np
from gymnasium.wrappers import TimeLimit

from agentenv.envs.gridworld import GridWorld

GAMMA = 0.98
MAX_STEPS = 200


def play_greedily(env: TimeLimit, values: np.ndarray) -> float:
    """Return the undiscounted return of one episode under the greedy policy."""
    state, _ = env.reset()
    total, done = 0.0, False
    while not done:
        state, reward, terminated, truncated, _ = env.step(int(values[state].argmax()))
        total += float(reward)
        done = terminated or truncated
    return total


def main() -> None:
    out = Path(sys.argv[1] if len(sys.argv) > 1 else os.environ.get("AGENTENV_OUT", "/out"))
    if not out.is_dir():
        sys.exit(f"train.py: expected the directory {out} to write into; outside a sandbox: python train.py DIRECTORY")
    seed = int(os.environ.get("TRAINING_SEED", "0"))
    learning_rate = float(os.environ.get("LEARNING_RATE", "0.2"))
    episodes = int(os.environ.get("EPISODES", "400"))

    grid = GridWorld(size=6)
    env = TimeLimit(grid, max_episode_steps=MAX_STEPS)
    rng = np.random.default_rng(seed)
    # Optimistic: every action is tried before any is preferred.
    values = np.ones((36, 4))
    returns: list[float] = []
    env.reset(seed=seed)
    for episode in range(episodes):
        state, _ = env.reset()
        total, done = 0.0, False
        explore = max(0.02, 1.0 - 2 * episode / episodes)
        while not done:
            action = int(rng.integers(4)) if rng.random() < explore else int(values[state].argmax())
            after, reward, terminated, truncated, _ = env.step(action)
            target = float(reward) + (0.0 if terminated else GAMMA * values[after].max())
            values[state, action] += learning_rate * (target - values[state, action])
            state, total, done = after, total + float(reward), terminated or truncated
        returns.append(total)
        if (episode + 1) % max(1, episodes // 10) == 0:
            print(f"episode {episode + 1}/{episodes}: mean return {np.mean(returns[-20:]):.3f}", flush=True)

    result = {
        "seed": seed,
        "learning_rate": learning_rate,
        "episodes": episodes,
        "greedy_return": play_greedily(env, values),
        "optimal_return": grid.optimal_return(),
    }
    (out / "result.json").write_text(json.dumps(result, indent=2) + "\n")
    print(f"greedy return {result['greedy_return']:.3f}, optimum {result['optimal_return']:.3f}")


if __name__ == "__main__":
    main()
