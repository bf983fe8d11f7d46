"""Plain data in which one object stands in several places, taken apart so that it is put together the same way.

Written down as it is, a list that two others hold would come back as two lists, and what is changed in one would no
longer show in the other.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from agentenv.wire.opaque import Opaque

_HERE = "shared"


def fold(value: Any) -> tuple[Any, list[Any]]:
    """Take a value apart.

    Args:
        value: Plain data that does not contain itself.

    Returns:
        The value, with a placeholder for each object that stands in it more than once; and these objects, whose own
        parts may be placeholders for later ones.
    """
    seen = Counter(id(part) for part in _changeable(value))
    numbers: dict[int, int] = {}
    shared: list[Any] = []

    def folded(part: Any) -> Any:
        if seen[id(part)] < 2:
            return _rebuilt(part, folded)
        if id(part) not in numbers:
            numbers[id(part)] = len(shared)
            shared.append(None)
            shared[numbers[id(part)]] = _rebuilt(part, folded)
        return Opaque(_HERE, str(numbers[id(part)]))

    return folded(value), shared


def unfold(value: Any, shared: Sequence[Any] = ()) -> Any:
    """Put together what ``fold`` took apart."""
    whole: dict[int, Any] = {}

    def unfolded(part: Any) -> Any:
        if not isinstance(part, Opaque):
            return _rebuilt(part, unfolded)
        number = int(part.text)
        if number not in whole:
            whole[number] = _rebuilt(shared[number], unfolded)
        return whole[number]

    return unfolded(value)


def overlapping(value: Any) -> bool:
    """Whether two arrays in a value are different windows on the same memory, which cannot be taken apart."""
    arrays = {id(part): part for part in _changeable(value) if isinstance(part, np.ndarray)}
    places = sorted(_bounds(array) for array in arrays.values() if array.nbytes)
    return any(after[0] < before[1] for before, after in pairwise(places))


def _bounds(array: np.ndarray[Any, Any]) -> tuple[int, int]:
    start = end = array.__array_interface__["data"][0]
    for length, stride in zip(array.shape, array.strides, strict=True):
        reach = (length - 1) * stride
        start, end = start + min(reach, 0), end + max(reach, 0)
    return start, end + array.itemsize


def _changeable(value: Any) -> Iterator[Any]:
    """Every place of a value that holds something which can be changed; what stands in two places comes twice."""
    waiting, met = [value], set()
    while waiting:
        part = waiting.pop()
        if isinstance(part, list | dict | set | np.ndarray):
            yield part
        if id(part) not in met and isinstance(part, list | tuple | dict):
            met.add(id(part))
            waiting.extend(part.values() if isinstance(part, dict) else part)


def _rebuilt(part: Any, build: Any) -> Any:
    if isinstance(part, dict):
        return {key: build(item) for key, item in part.items()}
    if isinstance(part, list | tuple):
        return type(part)(build(item) for item in part)
    return part
