"""Where each part of a space's value lies in a block of bytes.

Both sides compute the plan from the same space, so no offset ever crosses the boundary. Parts of fixed size (Box,
Discrete, MultiBinary, MultiDiscrete) get a place; parts of variable size (Text, Sequence, Graph, OneOf, classes of an
environment's own) are only numbered, and their values travel by the codec in ``agentenv.wire.values``.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any, Union

import numpy as np
from gymnasium import Space, spaces

Path = tuple[Union[str, int], ...]


@dataclass(frozen=True, eq=False)
class Leaf:
    """A part of fixed size.

    Attributes:
        path: Keys of Dict and positions of Tuple that lead to it from the root.
        dtype: Its elements' type.
        shape: Its shape; ``()`` for Discrete.
        offset: Where it begins, in bytes from the start of the block.
        nbytes: Its size in bytes; may be 0.
        space: The space it belongs to.
    """

    path: Path
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    offset: int
    nbytes: int
    space: Space[Any]


@dataclass(frozen=True, eq=False)
class VariableLeaf:
    """A part whose size depends on the value.

    Attributes:
        path: Keys of Dict and positions of Tuple that lead to it from the root.
        index: Its position among the variable parts.
        space: The space it belongs to.
    """

    path: Path
    index: int
    space: Space[Any]


@dataclass(frozen=True, eq=False)
class Branch:
    """A Dict or a Tuple.

    Attributes:
        path: Keys and positions that lead to it from the root.
        keys: The keys of a Dict in their order, or None for a Tuple.
        children: One part per key or position.
    """

    path: Path
    keys: tuple[Any, ...] | None
    children: tuple[Part, ...]


Part = Union[Leaf, VariableLeaf, Branch]


@dataclass(frozen=True, eq=False)
class SpaceLayout:
    """The plan of one space.

    Attributes:
        space: The space it was made from.
        root: The parts as a tree.
        leaves: The parts of fixed size in order.
        variables: The parts of variable size in order.
        nbytes: Size of the block, a multiple of 8.
    """

    space: Space[Any]
    root: Part
    leaves: tuple[Leaf, ...]
    variables: tuple[VariableLeaf, ...]
    nbytes: int

    @property
    def variable(self) -> bool:
        """Whether any part is of variable size."""
        return bool(self.variables)


def plan(space: Space[Any]) -> SpaceLayout:
    """Lay out a space.

    Leaves of 64 bytes and more begin at a multiple of 64, the others at a multiple of 8.
    """
    leaves: list[Leaf] = []
    variables: list[VariableLeaf] = []
    end = 0

    def place(part: Any, path: Path) -> Part:
        nonlocal end
        if isinstance(part, spaces.Dict):
            keys = tuple(part.spaces)
            return Branch(path, keys, tuple(place(part.spaces[key], (*path, key)) for key in keys))
        if isinstance(part, spaces.Tuple):
            return Branch(path, None, tuple(place(child, (*path, i)) for i, child in enumerate(part.spaces)))
        if not isinstance(part, (spaces.Box, spaces.Discrete, spaces.MultiBinary, spaces.MultiDiscrete)):
            variable = VariableLeaf(path, len(variables), part)
            variables.append(variable)
            return variable
        dtype, shape = np.dtype(part.dtype), tuple(part.shape or ())
        nbytes = prod(shape) * dtype.itemsize
        alignment = 64 if nbytes >= 64 else 8
        offset = -(-end // alignment) * alignment
        end = offset + nbytes
        leaf = Leaf(path, dtype, shape, offset, nbytes, part)
        leaves.append(leaf)
        return leaf

    root = place(space, ())
    return SpaceLayout(space, root, tuple(leaves), tuple(variables), -(-end // 8) * 8)


def name_path(path: Path, root: str = "value") -> str:
    """A path as it would be written in Python, such as ``observation['pos'][0]``."""
    return root + "".join(f"[{step!r}]" for step in path)
