"""Environments with one planted fault each, for the checks to find; they are built inside sandboxes.

``FAULTS`` says which row has to find which of them.
"""

from __future__ import annotations

import os
import random
import threading
import time
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

Step = tuple[Any, Any, Any, Any, dict[str, Any]]


class Sound(gymnasium.Env[Any, Any]):
    """Without a fault: a walk on a line, pushed by the action and by seeded noise, for 20 steps. Base of the others."""

    def __init__(self) -> None:
        self.observation_space = spaces.Box(-100.0, 100.0, (2,), np.float32)
        self.action_space: spaces.Space[Any] = spaces.Discrete(3)
        self.position, self.steps = 0.0, 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.steps = 0
        self.position = self.start()
        return self.observe(), {}

    def step(self, action: Any) -> Step:
        if not self.action_space.contains(action):
            raise ValueError(f"expected an action of {self.action_space}, got {action!r}")
        self.steps += 1
        self.position = float(np.clip(self.position + self.push(action) + self.noise(), -99.0, 99.0))
        return self.observe(), self.pay(), self.steps >= 20, False, {}

    def start(self) -> float:
        return float(self.np_random.uniform(-1.0, 1.0))

    def push(self, action: Any) -> float:
        return float(action) - 1.0

    def noise(self) -> float:
        return float(self.np_random.normal(0.0, 0.1))

    def observe(self) -> Any:
        return np.array([self.position, self.steps], np.float32)

    def pay(self) -> Any:
        return -abs(self.position)


class Unseeded(Sound):
    """A generator of its own, which no seed reaches."""

    def __init__(self) -> None:
        super().__init__()
        self.generator = np.random.default_rng()

    def noise(self) -> float:
        return float(self.generator.normal())


class UnseededEachTime(Sound):
    """A new generator of Python's in every reset."""

    def start(self) -> float:
        return random.Random().random()


class BuiltAtRandom(Sound):
    """What is drawn in the constructor stays."""

    def __init__(self) -> None:
        super().__init__()
        self.goal = float(np.random.default_rng().uniform(-5.0, 5.0))

    def pay(self) -> float:
        return -abs(self.position - self.goal)


class Survivor(Sound):
    """Starts where the last episode ended."""

    def start(self) -> float:
        return self.position


class GlobalNumpy(Sound):
    """Noise from numpy's global generator."""

    def noise(self) -> float:
        return float(np.random.normal())


class GlobalRandom(Sound):
    """Noise from Python's global generator."""

    def noise(self) -> float:
        return random.gauss(0.0, 1.0)


class GlobalRandomInConstructor(Sound):
    """A goal from Python's global generator, drawn once."""

    def __init__(self) -> None:
        super().__init__()
        self.goal = random.uniform(-5.0, 5.0)

    def pay(self) -> float:
        return -abs(self.position - self.goal)


class HashOrder(Sound):
    """Starts at the first of a set of texts."""

    def start(self) -> float:
        return float(next(iter({str(number) for number in range(90)})))


class Clock(Sound):
    """Noise from the time."""

    def noise(self) -> float:
        return time.time() % 1.0


class OutOfSpace(Sound):
    """Observes more than it declares."""

    def observe(self) -> Any:
        return np.array([self.position, 100.0 + self.steps], np.float32)


class WrongDtype(Sound):
    """Declares float32 and gives float64."""

    def observe(self) -> Any:
        return super().observe().astype(np.float64)


class WrongShape(Sound):
    """Declares two numbers and gives three."""

    def observe(self) -> Any:
        return np.zeros(3, np.float32)


class NanReward(Sound):
    """0 / 0 in the last step."""

    def pay(self) -> float:
        return float("nan") if self.steps == 20 else 1.0


class LargeReward(Sound):
    """Pays in millions."""

    def pay(self) -> float:
        return 1e6 * self.position


class CrashesOutOfRange(Sound):
    """Ends the process on an action that it does not know."""

    def step(self, action: Any) -> Step:
        if not self.action_space.contains(action):
            os._exit(11)
        return super().step(action)


class HarmedOutOfRange(Sound):
    """Lets an action push it out of its space."""

    def __init__(self) -> None:
        super().__init__()
        self.action_space = spaces.Box(-1.0, 1.0, (1,), np.float32)

    def step(self, action: Any) -> Step:
        self.steps += 1
        self.position = float(np.clip(self.position, -50.0, 50.0)) + 60.0 * max(0.0, abs(float(action[0])) - 1.0)
        return self.observe(), 0.0, self.steps >= 20, False, {}

    def start(self) -> float:
        return 80.0


class Unclipped(Sound):
    """Takes any push, however strong, without harm."""

    def __init__(self) -> None:
        super().__init__()
        self.action_space = spaces.Box(-1.0, 1.0, (), np.float32)

    def step(self, action: Any) -> Step:
        self.steps += 1
        self.position = float(np.clip(self.position + float(action), -99.0, 99.0))
        return self.observe(), 0.0, self.steps >= 20, False, {}


class CrashesAfterEnd(Sound):
    """Ends the process in the second step after the end."""

    def step(self, action: Any) -> Step:
        if self.steps > 20:
            os.abort()
        return super().step(action)


class Leak(Sound):
    """Keeps 8 kB of every step."""

    def __init__(self) -> None:
        super().__init__()
        self.kept: list[bytes] = []

    def observe(self) -> Any:
        self.kept.append(os.urandom(8192))
        return super().observe()


class OutOfMemory(Sound):
    """Keeps 1 MB of every step."""

    def __init__(self) -> None:
        super().__init__()
        self.kept: list[bytes] = []

    def observe(self) -> Any:
        self.kept.append(os.urandom(1 << 20))
        return super().observe()


class Unkeepable(Sound):
    """Has a lock, which cannot be pickled, and a thread, with which it must not be forked."""

    def __init__(self) -> None:
        super().__init__()
        self.lock = threading.Lock()
        threading.Thread(target=threading.Event().wait, daemon=True).start()


class RaisesInPlay(Sound):
    """A legal action that it does not survive."""

    def step(self, action: Any) -> Step:
        if self.steps == 7:
            raise LookupError("no such cell")
        return super().step(action)


class DiesInPlay(Sound):
    """Ends its process in its 150th step."""

    def __init__(self) -> None:
        super().__init__()
        self.total = 0

    def step(self, action: Any) -> Step:
        self.total += 1
        if self.total == 450:
            os._exit(5)
        return super().step(action)


class OldReset(Sound):
    """Returns the observation alone, as the old Gym did."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        return super().reset(seed=seed)[0]


class Refuses(Sound):
    """Cannot be built."""

    def __init__(self) -> None:
        raise FileNotFoundError("no map")


FAULTS: dict[type[Sound], tuple[str, str]] = {
    Unseeded: ("seed", "fail"),
    UnseededEachTime: ("seed", "fail"),
    BuiltAtRandom: ("instances", "fail"),
    Survivor: ("seed", "fail"),
    GlobalNumpy: ("numpy_random", "fail"),
    GlobalRandom: ("random", "fail"),
    GlobalRandomInConstructor: ("random", "fail"),
    HashOrder: ("hash_seed", "fail"),
    Clock: ("clock", "fail"),
    OutOfSpace: ("observation_range", "fail"),
    WrongDtype: ("observation_dtype", "fail"),
    WrongShape: ("observation_shape", "fail"),
    NanReward: ("reward", "fail"),
    LargeReward: ("reward", "warn"),
    CrashesOutOfRange: ("action_range", "fail"),
    HarmedOutOfRange: ("action_range", "fail"),
    Unclipped: ("action_range", "warn"),
    CrashesAfterEnd: ("after_end", "fail"),
    Leak: ("memory", "fail"),
    OutOfMemory: ("memory", "fail"),
    Unkeepable: ("state", "fail"),
    RaisesInPlay: ("play", "fail"),
    DiesInPlay: ("play", "fail"),
    OldReset: ("play", "fail"),
    Refuses: ("start", "fail"),
}
"""Each with the row that finds it and that row's verdict; no other row may be worse than ok."""
