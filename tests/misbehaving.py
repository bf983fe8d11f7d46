"""Environments that go wrong in one way each, named in the configurations of tests and built inside sandboxes."""

from __future__ import annotations

import os
import signal
import sys
import time
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces


class Base(gymnasium.Env[Any, Any]):
    """Counts to ``length`` and pays 1 a step."""

    observation_space = spaces.Box(0.0, 1e6, (1,), np.float64)
    action_space = spaces.Discrete(2)

    def __init__(self, length: int = 5, at: int = 3, delay_s: float = 0.0) -> None:
        self.length, self.at, self.delay_s, self.n = length, at, delay_s, 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.n = 0
        return np.array([0.0]), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.n += 1
        if self.delay_s:
            time.sleep(self.delay_s)
        if self.n == self.at:
            self.misbehave()
        return np.array([float(self.n)]), 1.0, self.n >= self.length, False, self.info()

    def misbehave(self) -> None:
        """What goes wrong."""

    def info(self) -> dict[str, Any]:
        """What the info holds."""
        return {}


class Fine(Base):
    pass


class Hangs(Base):
    def misbehave(self) -> None:
        while True:
            time.sleep(3600)


class Exits(Base):
    def misbehave(self) -> None:
        print("about to exit", flush=True)
        os._exit(3)


class Segfaults(Base):
    def misbehave(self) -> None:
        os.kill(os.getpid(), signal.SIGSEGV)


class Raises(Base):
    def misbehave(self) -> None:
        raise LookupError("no such \x1b[31mcell")


class Hungry(Base):
    def misbehave(self) -> None:
        self.eaten = [np.ones(1 << 20) for _ in range(1000)]


class FailsToBuild(Base):
    def __init__(self, **kwargs: Any) -> None:
        raise RuntimeError("the level is missing")


class Talks(Base):
    def misbehave(self) -> None:
        sys.stdout.write("grüße 世界 \x1b]0;owned\x07\x1b[2Jplain\x1b[31m red\n")
        sys.stdout.write("x" * (1 << 20) + "\n")
        sys.stdout.flush()
        sys.stderr.write("a warning\n")
        sys.stderr.flush()


class TalksWhenBuilt(Base):
    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        print("built")


class LargeInfo(Base):
    def info(self) -> dict[str, Any]:
        return {"blob": "y" * (1 << 20)}


class DeepInfo(Base):
    def info(self) -> dict[str, Any]:
        info: dict[str, Any] = {"seen": {1}}  # nested as deeply as may be sent
        for _ in range(62):
            info = {"in": info}
        return info


def always_one(observation: Any, action_space: Any) -> int:
    return 1


def breaks(observation: Any, action_space: Any) -> int:
    raise ZeroDivisionError("my policy")


def leaves(observation: Any, action_space: Any) -> int:
    sys.exit(3)


def outside(observation: Any, action_space: Any) -> int:
    return 17


class Remembering:
    def __init__(self, observation_space: Any, action_space: Any, seed: int) -> None:
        self.rng = np.random.default_rng(seed)

    def __call__(self, observation: Any, action_space: Any) -> int:
        assert observation.shape == (1,)
        return int(self.rng.integers(action_space.n))


def ponder(observation: Any, space: Any) -> Any:
    """A policy that takes its time."""
    time.sleep(2.5)
    return space.sample()
