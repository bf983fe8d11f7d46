"""Environments and policies that cannot be repeated, each in one way; named in the configurations of tests."""

from __future__ import annotations

import os
import time
from typing import Any

import numpy as np
from gymnasium import spaces

from misbehaving import Base


class Seeded(Base):
    """Everything it returns is drawn from its seed, with an info at every step."""

    observation_space = spaces.Dict({"count": spaces.Discrete(1 << 30), "noise": spaces.Box(0, 1, (2,), np.float64)})

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        return self.look(), {"words": {"to", "be", "or", "not", str(seed)}}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        _, _, ended, cut, _ = super().step(action)
        reward = float(self.np_random.normal()) + int(action)
        return self.look(), reward, ended, cut, {"words": {"a", "b", "c", str(self.n)}, **self.info()}

    def look(self) -> dict[str, Any]:
        return {"count": self.n, "noise": self.np_random.random(2)}


class Unseeded(Seeded):
    """Its observation is nobody's business at step ``at``."""

    def look(self) -> dict[str, Any]:
        value = super().look()
        if self.n == self.at:
            value["noise"] = np.frombuffer(os.urandom(2), np.uint8) / 256
        return value


class Clock(Seeded):
    """Its info tells the time."""

    def info(self) -> dict[str, Any]:
        return {"time": time.perf_counter()}


class Learner:
    """Remembers its observations over all episodes, in plain attributes."""

    def __init__(self, observation_space: Any, action_space: Any, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.total = np.zeros(2)
        self.seen = 0

    def __call__(self, observation: Any, action_space: Any) -> int:
        self.total += observation["noise"]
        self.seen += 1
        return int(self.rng.random() * (self.total.sum() * 1e3 % 7) + action_space.sample()) % 2


class Network:
    """Remembers in an object of its own, which it can give away and take back."""

    def __init__(self, observation_space: Any, action_space: Any, seed: int) -> None:
        self.layers = [object()]
        self.weights = np.full(2, 0.5)

    def state_dict(self) -> dict[str, Any]:
        return {"weights": self.weights}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.weights = state["weights"]

    def __call__(self, observation: Any, action_space: Any) -> int:
        self.weights = self.weights * 0.99 + observation["noise"] * 0.01
        return int(self.weights.sum() * 1e6) % 2


class Closed(Network):
    """Remembers as well, and tells nobody."""

    state_dict = None  # type: ignore[assignment]  # wrong on purpose


class Moody:
    """Decides otherwise in every process."""

    def __init__(self, observation_space: Any, action_space: Any, seed: int) -> None:
        self.mood = os.getpid()

    def __call__(self, observation: Any, action_space: Any) -> int:
        self.mood = self.mood * 1103515245 + 12345 & 0x7FFFFFFF
        return self.mood >> 16 & 1
