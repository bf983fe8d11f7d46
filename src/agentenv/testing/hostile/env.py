"""The environment the suite puts into sandboxes: harmless, until it is told what to do.

Its observation counts its steps and its reward is half of that, so that a neighbour can be seen to carry on with the
values it should have.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import Any

import gymnasium
from gymnasium import spaces

from agentenv.testing.hostile import (
    introductions,
    lies,
    reaching_files,
    reaching_kernel,
    reaching_network,
    reaching_processes,
    wrecks,
)

ATTEMPTS = {
    **reaching_files.ATTEMPTS,
    **reaching_processes.ATTEMPTS,
    **reaching_kernel.ATTEMPTS,
    **reaching_network.ATTEMPTS,
}
DEEDS = {**wrecks.WRECKS, **lies.LIES, **introductions.INTRODUCTIONS}
CEILING = 1 << 40


class Subject(gymnasium.Env[Any, Any]):
    """Counts its steps; does a deed at the moment that is set.

    Attributes:
        deed: ``moment:name``, with moment one of construct, reset, step, close; "" for nothing. Cleared when done.
    """

    metadata = {"render_modes": ["ansi"]}  # noqa: RUF012  # Gymnasium declares it so

    def __init__(self, deed: str = "") -> None:
        self.observation_space = spaces.Discrete(CEILING)
        self.action_space = spaces.Discrete(2)
        self.deed = deed
        self.count = 0
        self._do("construct")

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[int, dict[str, Any]]:
        super().reset(seed=seed)
        self.count = 0
        self._do("reset")
        return 0, {}

    def step(self, action: int) -> tuple[int, float, bool, bool, dict[str, Any]]:
        self.count += 1
        info = self._do("step")
        return self.count, self.count / 2, False, False, info

    def close(self) -> None:
        self._do("close")

    def attempt(self, name: str, hints: Mapping[str, str]) -> list[str]:
        """Make an attempt; returns what was reached."""
        return [text for text in ATTEMPTS[name](hints) if text]

    def plant(self) -> None:
        """Leave this environment's marks for neighbours to look for."""
        reaching_files.plant()
        reaching_processes.plant()

    def pid(self) -> int:
        """Its process id, as it sees it."""
        return os.getpid()

    def _do(self, moment: str) -> dict[str, Any]:
        at, _, name = self.deed.partition(":")
        if at != moment:
            return {}
        self.deed = ""
        print(f"about to do: {name}", file=sys.stderr, flush=True)
        done = DEEDS[name](self)
        return done if isinstance(done, dict) else {}
