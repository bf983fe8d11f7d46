"""An environment whose observations and actions have parts of variable size, drawn from its seed."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces


class Variable(gymnasium.Env[Any, Any]):
    observation_space = spaces.Dict(
        {
            "words": spaces.Text(20),
            "many": spaces.Sequence(spaces.Box(0, 1, (2,), np.float32)),
            "n": spaces.Discrete(99),
        }
    )
    action_space = spaces.Dict({"say": spaces.Text(8), "turn": spaces.Box(-1, 1, (2,), np.float32)})

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.n, self.heard = 0, ""
        return self.look(), {"heard": {"nothing", "yet"}}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.n += 1
        self.heard += action["say"]
        return self.look(), float(action["turn"].sum()), False, False, {"heard": self.heard}

    def look(self) -> dict[str, Any]:
        count = int(self.np_random.integers(4))
        many = tuple(self.np_random.random(2, np.float32) for _ in range(count))
        return {"words": self.heard[-20:] or "a", "many": many, "n": self.n}
