"""The infos of many environments as one dict of arrays with masks, key by key instead of environment by environment.

The result is exactly what ``gymnasium.vector.VectorEnv._add_info`` builds; where the infos are alike - the usual case
of a simulator that reports the same numbers at every step - each array is filled at once. Whatever is not alike is
left to that method.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

AddInfo = Callable[[dict[str, Any], dict[str, Any], int], dict[str, Any]]


def gather(
    found: Sequence[tuple[int, dict[str, Any]]], num_envs: int, add_info: AddInfo, into: dict[str, Any]
) -> dict[str, Any]:
    """Add infos to those of a step.

    Args:
        found: Position and info of each environment that has one, in order.
        num_envs: Length of the arrays.
        add_info: ``VectorEnv._add_info``.
        into: What was gathered before; may be changed.

    Returns:
        Arrays of length ``num_envs`` by key, and their masks by ``_key``.
    """
    if into or len(found) < 2 or not _alike([info for _, info in found]):
        for index, info in found:
            into = add_info(into, info, index)
        return into
    positions = [index for index, _ in found]
    for key in found[0][1]:
        values = [info[key] for _, info in found]
        kind = type(values[0])
        if (kind in (int, float, bool) or issubclass(kind, np.number)) and all(type(value) is kind for value in values):
            array = np.zeros(num_envs, kind)
            array[positions] = values
            mask = np.zeros(num_envs, np.bool_)
            mask[positions] = True
            into[key], into[f"_{key}"] = array, mask
        else:
            for index, value in zip(positions, values, strict=True):
                into = add_info(into, {key: value}, index)
    return into


def _alike(infos: Sequence[dict[str, Any]]) -> bool:
    """Whether all have the same keys in the same order, none of which could be taken for a mask."""
    keys = list(infos[0])
    return all(list(info) == keys for info in infos) and not any(key.startswith("_") for key in keys)
