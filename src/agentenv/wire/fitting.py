"""Whether a value fits a part of a space, and the words for it when it does not.

The rule for dtypes is that of ``np.stack(..., out=, casting="same_kind")``, which is what Gymnasium's own vector
environments apply, with one difference: an integer that would wrap around is refused instead of changed.
"""

from __future__ import annotations

from typing import Any

import numpy as np


def fit(value: object, dtype: np.dtype[Any], shape: tuple[int, ...], where: str) -> np.ndarray[Any, Any]:
    """Return the value as an array that can be assigned to one of this dtype and shape.

    Args:
        value: An array, numpy or Python scalar, list, or anything with ``__array__``.
        dtype: The dtype it will be assigned to.
        shape: The shape it must have, exactly.
        where: The value's name for error texts.

    Raises:
        ValueError: It is no array of numbers, or of another shape, or its dtype cannot be cast, or an integer is out of
            the dtype's range.
    """
    try:
        array = np.asarray(value)
    except Exception as error:  # __array__ may raise anything: torch tensors that require grad, ragged lists
        raise ValueError(
            f"{where}: expected an array of dtype {dtype} and shape {shape}, got {describe(value)} that numpy cannot "
            f"convert: {error}"
        ) from None
    if array.shape != shape:
        raise ValueError(f"{where}: expected shape {shape}, got shape {array.shape} ({describe(value)})")
    if array.dtype == dtype or np.can_cast(array.dtype, dtype, "safe"):
        return array
    if array.size == 0:
        return np.empty(shape, dtype)
    # Only numpy objects carry a dtype the caller chose; an int in a list is just a number.
    chosen = hasattr(value, "dtype") or hasattr(value, "__array__")
    if array.dtype.kind in "iu" and dtype.kind in "iu":
        if not chosen or np.can_cast(array.dtype, dtype, "same_kind"):
            info = np.iinfo(dtype)
            low, high = int(array.min()), int(array.max())
            if info.min <= low and high <= info.max:
                return array
            raise ValueError(
                f"{where}: expected {dtype}, {info.min} to {info.max}, got {low if low < info.min else high}"
            )
    elif array.dtype.kind in "biufc" and np.can_cast(array.dtype, dtype, "same_kind"):
        return array
    raise ValueError(f"{where}: expected dtype {dtype}, got {array.dtype} ({describe(value)}); convert it first")


def describe(value: object) -> str:
    """Name a value's type, and the value itself where that is short."""
    name = type(value).__name__
    if isinstance(value, (bool, int, float, str, np.generic)) or value is None:
        return f"{name} {str(value)[:60]}"
    return name
