"""Environments that leak one thing each, built inside sandboxes by name. They leak by the clock, not by the step, so
that a fast and a slow machine see the same growth."""

from __future__ import annotations

import os
import sys
import time
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces


class Leaky(gymnasium.Env[Any, Any]):
    """Episodes of 50 steps; ``leak`` is called in every step with the seconds since the last."""

    observation_space = spaces.Box(0.0, 1e6, (1,), np.float64)
    action_space = spaces.Discrete(2)

    def __init__(self, **rates: float) -> None:
        self.rates, self.n, self.at = rates, 0, time.monotonic()

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.n = 0
        return np.array([0.0]), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.n += 1
        now = time.monotonic()
        passed_s, self.at = now - self.at, now
        self.leak(passed_s)
        return np.array([float(self.n)]), 1.0, self.n >= 50, False, {}

    def leak(self, passed_s: float) -> None:
        """What goes wrong."""


class Clean(Leaky):
    pass


class Memory(Leaky):
    """Keeps 1 MiB a second."""

    def __init__(self, mb_per_s: float = 1.0) -> None:
        super().__init__()
        self.kept, self.owed, self.mb_per_s = [], 0.0, mb_per_s

    def leak(self, passed_s: float) -> None:
        self.owed += passed_s * self.mb_per_s * 2**20
        if self.owed >= 2**16:
            self.kept.append(np.ones(int(self.owed), np.uint8))
            self.owed = 0.0


class Prints(Leaky):
    """Prints lines, by default 0.5 MiB a second."""

    def __init__(self, mb_per_s: float = 0.5) -> None:
        super().__init__()
        self.owed, self.mb_per_s = 0.0, mb_per_s

    def leak(self, passed_s: float) -> None:
        self.owed += passed_s * self.mb_per_s * 2**20
        if self.owed >= 2**14:
            sys.stdout.write(("x" * 127 + "\n") * int(self.owed / 128))
            sys.stdout.flush()
            self.owed = 0.0


class Slows(Leaky):
    """Every step takes two microseconds longer than the one before."""

    def __init__(self) -> None:
        super().__init__()
        self.all = 0

    def leak(self, passed_s: float) -> None:
        self.all += 1
        time.sleep(2e-6 * self.all)


class Descriptors(Leaky):
    """Opens five files a second and closes none, and keeps 1 MiB a second in /tmp."""

    def __init__(self) -> None:
        super().__init__()
        self.files, self.owed, self.scratch = [], 0.0, open("/tmp/grows", "wb")  # noqa: SIM115  # that is the leak

    def leak(self, passed_s: float) -> None:
        self.owed += passed_s
        if self.owed >= 0.2:
            self.files.append(os.open("/dev/null", os.O_RDONLY))
            self.scratch.write(b"\0" * int(self.owed * 2**20))
            self.scratch.flush()
            self.owed = 0.0


class Raises(Leaky):
    """An exception a second."""

    def __init__(self) -> None:
        super().__init__()
        self.owed = 0.0

    def leak(self, passed_s: float) -> None:
        self.owed += passed_s
        if self.owed >= 1.0:
            self.owed = 0.0
            raise ZeroDivisionError("once a second")
