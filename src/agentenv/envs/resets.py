"""What a reset of many environments is given: seeds for each, and a mask of those it is for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from agentenv.config import EnvironmentConfig
from agentenv.fleet.seeds import Seeds


def first_seeds(
    members: Sequence[EnvironmentConfig], root: int | None, seeds: Seeds
) -> tuple[list[int | None], int | None]:
    """The seeds of the first reset, and the action space's, as far as the configuration gives any.

    Args:
        members: The environments.
        root: The run's seed; None where the configuration has none.
        seeds: Derives them.
    """
    own = members[0].seed
    actions = seeds.actions("vector", seed=own) if root is not None or own is not None else None
    each = [
        seeds.environment(member.id, seed=member.seed) if member.seed is not None or root is not None else None
        for member in members
    ]
    return each, actions


def spread_seed(seed: int | Sequence[int | None], count: int) -> list[int | None]:
    """A seed for each of ``count`` environments: consecutive ones from an int.

    Raises:
        ValueError: Another number of seeds.
    """
    if isinstance(seed, int | np.integer):
        return [int(seed) + index for index in range(count)]
    seeds = [None if value is None else int(value) for value in seed]
    if len(seeds) != count:
        raise ValueError(f"expected one seed or {count}, one for each environment; got {len(seeds)}")
    return seeds


def split_mask(options: dict[str, Any] | None, count: int) -> tuple[list[int] | None, dict[str, Any] | None]:
    """The positions that ``reset_mask`` chooses (None: all), and the options without it.

    Raises:
        TypeError, ValueError: It is not a bool array of shape (count,) with at least one True.
    """
    if options is None or "reset_mask" not in options:
        return None, options
    rest = {key: value for key, value in options.items() if key != "reset_mask"}
    mask = options["reset_mask"]
    if not isinstance(mask, np.ndarray) or mask.dtype != np.bool_:
        found = f"an array of {mask.dtype}" if isinstance(mask, np.ndarray) else type(mask).__name__
        raise TypeError(f"options['reset_mask']: expected a numpy array of bool, got {found}")
    if mask.shape != (count,):
        raise ValueError(f"options['reset_mask']: expected shape ({count},), got {mask.shape}")
    if not mask.any():
        raise ValueError("options['reset_mask']: expected at least one True")
    return np.flatnonzero(mask).tolist(), rest
