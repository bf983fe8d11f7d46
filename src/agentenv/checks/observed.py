"""What is wrong with an observation, told apart: its structure and shape, its dtype, its values.

Runs inside the sandbox, on what the environment really returned, before anything converts it. The rules are those of
Gymnasium's ``Space.contains``, which only says yes or no.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from gymnasium import Space, spaces

from agentenv.wire.contains import contains

SHAPE, DTYPE, RANGE, CASTABLE = "shape", "dtype", "range", "castable"
"""Kinds of faults; CASTABLE is a dtype that every value of fits into the declared one."""

Fault = tuple[str, str]


def faults(space: Space[Any], value: Any, path: str = "observation") -> Iterator[Fault]:
    """The faults of a value, as (kind, text)."""
    if isinstance(space, spaces.Dict):
        yield from _dict_faults(space, value, path)
    elif isinstance(space, spaces.Tuple):
        if not isinstance(value, (tuple, list)) or len(value) != len(space.spaces):
            length = f" of {len(value)}" if isinstance(value, (tuple, list)) else ""
            yield SHAPE, f"{path}: expected a tuple of {len(space.spaces)}, got {type(value).__name__}{length}"
            return
        for index, (part, item) in enumerate(zip(space.spaces, value)):
            yield from faults(part, item, f"{path}[{index}]")
    elif isinstance(space, spaces.Box):
        yield from _box_faults(space, value, path)
    elif isinstance(space, (spaces.MultiBinary, spaces.MultiDiscrete)):
        array = np.asarray(value)
        if array.shape != space.shape:
            yield SHAPE, f"{path}: expected shape {space.shape}, got {array.shape}"
        elif array.dtype.kind not in "iub":
            yield DTYPE, f"{path}: expected integers such as {space.dtype}, got {array.dtype}"
        elif not contains(space, array):
            yield RANGE, f"{path}: {_short(value)} is not in {space}"
    elif isinstance(space, spaces.Discrete):
        if not isinstance(value, (int, np.integer)) and not (
            isinstance(value, np.ndarray) and value.shape == () and value.dtype.kind in "iu"
        ):
            yield DTYPE, f"{path}: expected an integer, got {type(value).__name__} {_short(value)}"
        elif not space.start <= int(value) < space.start + space.n:
            last = space.start + space.n - 1
            yield RANGE, f"{path}: expected {space.start} to {last}, got {int(value)}"
    elif not contains(space, value):
        yield RANGE, f"{path}: {type(value).__name__} {_short(value)} is not in {_short(space)}"


def _dict_faults(space: spaces.Dict, value: Any, path: str) -> Iterator[Fault]:
    if not isinstance(value, dict):
        yield SHAPE, f"{path}: expected a dict, got {type(value).__name__}"
        return
    missing = [repr(key) for key in space.spaces if key not in value]
    extra = [repr(key) for key in value if key not in space.spaces]
    if missing:
        yield SHAPE, f"{path}: lacks the key {', '.join(missing)}"
    if extra:
        yield SHAPE, f"{path}: has the key {', '.join(extra)}, which its space has not"
    for key, part in space.spaces.items():
        if key in value:
            yield from faults(part, value[key], f"{path}[{key!r}]")


def _box_faults(space: spaces.Box, value: Any, path: str) -> Iterator[Fault]:
    try:
        array = np.asarray(value)
    except ValueError:
        yield SHAPE, f"{path}: expected an array of shape {space.shape}, got a ragged {type(value).__name__}"
        return
    if array.shape != space.shape:
        yield SHAPE, f"{path}: expected shape {space.shape}, got {array.shape}"
        return
    if array.dtype.kind not in "biufc":
        yield DTYPE, f"{path}: expected {space.dtype}, got {array.dtype}"
        return
    wanted: np.dtype[Any] = np.dtype(space.dtype)
    if not isinstance(value, (np.ndarray, np.generic)):
        yield CASTABLE, f"{path}: expected an array of {wanted}, got {type(value).__name__}"
    elif array.dtype != wanted:
        kind = CASTABLE if np.can_cast(array.dtype, wanted) else DTYPE
        yield kind, f"{path}: expected {wanted}, got {array.dtype}"
    if array.dtype != wanted and array.dtype.kind == wanted.kind == "f":
        with np.errstate(over="ignore"):
            array = array.astype(wanted)
    inside = (array >= space.low) & (array <= space.high)
    if not inside.all():
        index = tuple(int(part) for part in np.argwhere(~inside)[0])
        place = f"[{', '.join(map(str, index))}]" if index else ""
        low, high = space.low[index], space.high[index]
        yield RANGE, f"{path}{place}: expected {_exact(low)} to {_exact(high)}, got {_exact(array[index])}"


def _exact(number: Any) -> str:
    """A number as short as it can be without looking like another one, the bound beside it for example."""
    text = f"{number:g}"
    return text if number.dtype.kind != "c" and float(text) == number else str(number)


def _short(value: object) -> str:
    try:
        text = repr(value)
    except Exception:
        return "<its repr() raised>"
    return text if len(text) <= 120 else text[:117] + "..."
