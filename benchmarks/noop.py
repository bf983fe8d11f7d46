"""An environment that does nothing, so that only the way to it and back is measured."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np


class Noop(gymnasium.Env[Any, Any]):
    """Box(4) float32 observations, two actions, no work."""

    def __init__(self) -> None:
        self.observation_space = gymnasium.spaces.Box(-1.0, 1.0, (4,), np.float32)
        self.action_space = gymnasium.spaces.Discrete(2)
        self._observation = np.zeros(4, np.float32)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        return self._observation, {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return self._observation, 1.0, False, False, {}
