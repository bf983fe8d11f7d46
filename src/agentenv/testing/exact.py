"""Equality without mercy, for parity and round trips: same types, same dtypes, same bits, same order of keys.

``==`` says that ``True == 1``, that ``nan != nan`` and that ``float32(1) == 1.0``; a comparison of two implementations
must see the first and the third and look past the second.
"""

from __future__ import annotations

import struct
from typing import Any

import numpy as np


def assert_same(got: Any, expected: Any, where: str = "value") -> None:
    """Compare two nested values exactly.

    Args:
        got: What was produced.
        expected: What it has to be.
        where: What to call the value in the message.

    Raises:
        AssertionError: They differ; names the place, what was expected and what came.
    """
    if type(got) is not type(expected):
        raise AssertionError(f"{where}: expected a {type(expected).__name__}, got a {type(got).__name__}: {got!r}")
    if isinstance(expected, dict):
        _assert_equal(list(map(repr, got)), list(map(repr, expected)), f"keys of {where}")
        for (key, item), wanted in zip(got.items(), expected.values(), strict=True):
            assert_same(item, wanted, f"{where}[{key!r}]")
    elif isinstance(expected, (list, tuple)):
        _assert_equal(len(got), len(expected), f"length of {where}")
        for index, (item, wanted) in enumerate(zip(got, expected, strict=True)):
            assert_same(item, wanted, f"{where}[{index}]")
    elif isinstance(expected, (np.ndarray, np.generic)):
        _assert_equal((got.dtype.str, got.shape), (expected.dtype.str, expected.shape), f"dtype and shape of {where}")
        if expected.dtype.kind == "O":
            assert_same(list(got.flat), list(expected.flat), where)
        elif got.tobytes() != expected.tobytes():
            raise AssertionError(f"{where}: expected {expected!r}, got {got!r}")
    elif isinstance(expected, complex):
        assert_same([got.real, got.imag], [expected.real, expected.imag], where)
    elif isinstance(expected, float):
        _assert_equal(struct.pack("<d", got).hex(), struct.pack("<d", expected).hex(), f"bits of {where}")
    else:
        _assert_equal(got, expected, where)


def _assert_equal(got: Any, expected: Any, where: str) -> None:
    if got != expected:
        raise AssertionError(f"{where}: expected {expected!r}, got {got!r}")
