"""Tabular Q-learning through AgentENV: the learner runs here, the environment in a sandbox of its own.

    python examples/q_learning.py [episodes]

The environment is the first of examples/gridworld.toml; nothing in this file knows that it is isolated.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
from gymnasium.spaces import Discrete

from agentenv import AgentENV

CONFIG = Path(__file__).with_name("gridworld.toml")
GAMMA = 0.98
LEARNING_RATE = 0.2


def main(episodes: int = 300) -> None:
    rng = np.random.default_rng(0)
    with AgentENV(str(CONFIG)) as env:
        # Pessimistic enough to be corrected, optimistic enough to try everything once.
        cells, actions = env.observation_space, env.action_space
        assert isinstance(cells, Discrete)
        assert isinstance(actions, Discrete)
        values = np.full((cells.n, actions.n), 0.5)
        returns: list[float] = []
        for episode in range(episodes):
            # A seed for the first reset draws the grid; the later ones keep it.
            state, _ = env.reset(seed=0 if episode == 0 else None)
            total, done = 0.0, False
            explore = max(0.02, 0.5 - episode / episodes)
            while not done:
                action = int(rng.integers(4)) if rng.random() < explore else int(values[state].argmax())
                after, reward, terminated, truncated, _ = env.step(action)
                target = reward + (0.0 if terminated else GAMMA * values[after].max())
                values[state, action] += LEARNING_RATE * (target - values[state, action])
                state, total, done = after, total + reward, terminated or truncated
            returns.append(total)
            if (episode + 1) % 50 == 0:
                print(f"episode {episode + 1}: mean return of the last 50: {np.mean(returns[-50:]):.3f}", flush=True)
    first, last = np.mean(returns[:50]), np.mean(returns[-50:])
    print(f"mean return of the first 50 episodes {first:.3f}, of the last 50 {last:.3f}")


if __name__ == "__main__":
    main(*(int(argument) for argument in sys.argv[1:2]))
