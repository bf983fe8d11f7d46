"""Hypothesis strategies for Gymnasium spaces and values in them.

For the conformance suites and for tests of environments: every kind of space, every dtype a Box may have, 0-d and empty
shapes, nested. Bounds stay small enough that Gymnasium's own ``sample`` and ``batch_space`` work on every space
generated; numbers at the edge of a dtype are a matter for tests that know their dtype.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from gymnasium import Space, spaces
from hypothesis import strategies as st

BOX_DTYPES = ("?", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8")
_INTEGER_DTYPES = BOX_DTYPES[1:9]
_NAMES = st.text("abcxyz_", min_size=1, max_size=4)

Strategy = st.SearchStrategy[Space[Any]]


def shapes(smallest: int = 0) -> st.SearchStrategy[tuple[int, ...]]:
    """Shapes of up to three dimensions, each ``smallest`` to 3 long, ``()`` included."""
    return st.lists(st.integers(smallest, 3), max_size=3).map(tuple)


@st.composite
def boxes(draw: st.DrawFn, empty: bool = True) -> Space[Any]:
    """A Box of any dtype, bounded, half-bounded or unbounded, with bounds per element.

    Args:
        draw: Given by hypothesis.
        empty: Whether a dimension may be 0.
    """
    dtype = np.dtype(draw(st.sampled_from(BOX_DTYPES)))
    shape = draw(shapes(0 if empty else 1))
    size = int(np.prod(shape))
    smallest, width = {"b": (0, 1), "u": (0, 100)}.get(dtype.kind, (-60, 60))
    lows = draw(st.lists(st.integers(smallest, width), min_size=size, max_size=size))
    highs = [draw(st.integers(low, 1 if dtype.kind == "b" else 120)) for low in lows]
    low, high = (np.array(bounds, np.float64).reshape(shape).astype(dtype) for bounds in (lows, highs))
    if dtype.kind == "f":
        if draw(st.booleans()):
            low = np.full(shape, -np.inf, dtype)
        if draw(st.booleans()):
            high = np.full(shape, np.inf, dtype)
    return spaces.Box(low, high, dtype=dtype)


@st.composite
def discretes(draw: st.DrawFn) -> Space[Any]:
    """A Discrete of any integer dtype, with a start."""
    dtype = np.dtype(draw(st.sampled_from(_INTEGER_DTYPES)))
    start = draw(st.integers(0 if dtype.kind == "u" else -20, 20))
    return spaces.Discrete(draw(st.integers(1, 50)), start=start, dtype=dtype)


@st.composite
def multi_discretes(draw: st.DrawFn) -> Space[Any]:
    """A MultiDiscrete of any integer dtype, with starts."""
    dtype = np.dtype(draw(st.sampled_from(_INTEGER_DTYPES)))
    shape = draw(st.lists(st.integers(1, 3), min_size=1, max_size=2).map(tuple))
    size = int(np.prod(shape))
    counts = draw(st.lists(st.integers(1, 50), min_size=size, max_size=size))
    starts = draw(st.lists(st.integers(0, 20), min_size=size, max_size=size))
    nvec, start = (np.array(numbers, dtype).reshape(shape) for numbers in (counts, starts))
    return spaces.MultiDiscrete(nvec, dtype=dtype, start=start)


def multi_binaries() -> Strategy:
    """A MultiBinary of one or more dimensions."""
    dimension = st.integers(1, 4)
    return (dimension | st.lists(dimension, min_size=1, max_size=2).map(tuple)).map(spaces.MultiBinary)


@st.composite
def texts(draw: st.DrawFn) -> Space[Any]:
    """A Text, also over characters that are not ASCII."""
    shortest = draw(st.integers(0, 3))
    charset = draw(st.sampled_from(["abc", "äß€", "\U0001f600x", '01 \n"\\']))
    return spaces.Text(shortest + draw(st.integers(1, 5)), min_length=shortest, charset=charset)


def fixed_leaves() -> Strategy:
    """A space whose values have one size: Box, Discrete, MultiBinary, MultiDiscrete."""
    return boxes() | discretes() | multi_binaries() | multi_discretes()


@st.composite
def graphs(draw: st.DrawFn) -> Space[Any]:
    """A Graph, with or without edges."""
    part = boxes(empty=False) | discretes()
    return spaces.Graph(draw(part), draw(st.none() | part))


def _branches(children: Strategy) -> Strategy:
    dicts = st.dictionaries(_NAMES, children, min_size=1, max_size=3)
    return (
        dicts.map(spaces.Dict)
        | dicts.map(lambda parts: spaces.Dict(parts, sort_keys=False))
        | st.lists(children, min_size=1, max_size=3).map(spaces.Tuple)
    )


def any_space(*, variable: bool = True, max_leaves: int = 5) -> Strategy:
    """Any space, nested.

    Args:
        variable: Whether Text, Sequence, Graph and OneOf may occur.
        max_leaves: Roughly how many leaves a nested space has at most.
    """
    leaves = fixed_leaves()
    branches: Callable[[Strategy], Strategy] = _branches
    if variable:
        stacked = (boxes(empty=False) | discretes()).map(lambda part: spaces.Sequence(part, stack=True))
        leaves = leaves | texts() | graphs() | stacked

        def branches(children: Strategy) -> Strategy:
            one_of = st.lists(children, min_size=1, max_size=3).map(spaces.OneOf)
            return _branches(children) | children.map(spaces.Sequence) | one_of

    return st.recursive(leaves, branches, max_leaves=max_leaves)


def samples(space: Space[Any], number: int) -> st.SearchStrategy[list[Any]]:
    """Lists of ``number`` values that the space itself sampled, from a seed that hypothesis chooses."""

    def draw(seed: int) -> list[Any]:
        space.seed(seed)
        return [space.sample() for _ in range(number)]

    return st.integers(0, 2**31 - 1).map(draw)
