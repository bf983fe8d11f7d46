"""Random streams inside a sandbox: the global generators, an environment's own, and those of its copies."""

from __future__ import annotations

import os
import random
from typing import Any

import numpy as np
from gymnasium.utils import seeding


def seed_globals(seed: int | None) -> None:
    """Give this process its own global random state: a forked one would share it with its siblings."""
    value = int.from_bytes(os.urandom(4), "little") if seed is None else seed
    random.seed(value)
    np.random.seed(value % (1 << 32))


def seed_unseeded(env: Any, seed: int | None) -> None:
    """Give the environment's own generators, where nothing has seeded them, a state that a repetition can have again.

    Gymnasium draws it from the system at the first use; until a reset with a seed, nothing could be repeated.
    """
    if seed is None:
        return
    base = getattr(env, "unwrapped", env)
    if getattr(base, "_np_random", False) is None:
        base._np_random, base._np_random_seed = seeding.np_random(seed)
    for offset, space in enumerate((base.observation_space, base.action_space)):
        for number, part in enumerate(_spaces(space)):
            if getattr(part, "_np_random", False) is None:
                part._np_random, _ = seeding.np_random(seed + 1 + offset + 2 * number)


def _spaces(space: Any) -> list[Any]:
    """A space and those it is made of."""
    parts = getattr(space, "spaces", ())
    inner = list(parts.values() if isinstance(parts, dict) else parts)
    inner += [part for name in ("feature_space", "stack_feature_space", "node_space", "edge_space")
              if (part := getattr(space, name, None)) is not None]  # fmt: skip
    return [space, *(found for part in inner for found in _spaces(part))]


def reseed(env: Any, seed: int) -> None:
    """A stream of its own for a copy of an environment."""
    seed_globals(seed)
    base = getattr(env, "unwrapped", env)
    base._np_random, base._np_random_seed = seeding.np_random(seed)
