"""Whether an observation comes out of its block as the very thing that went in, type for type.

A block holds values as the space declares them: an ``np.int64`` for a Discrete comes back as an int, a list as an
array. That is what ``step`` returns, but ``SyncVectorEnv`` hands out final observations untouched. The guest asks here,
once an episode, whether it must send such a value as it is.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces

from agentenv.wire.plan import Leaf, Part, VariableLeaf


def is_read_back(part: Part, value: Any) -> bool:
    """Whether reading the block gives a value of the same types and dtypes; the value was stored there before."""
    if isinstance(part, VariableLeaf):
        return True  # the codec keeps types
    if isinstance(part, Leaf):
        if isinstance(part.space, spaces.Discrete):
            return type(value) is int
        return type(value) is np.ndarray and bool(value.dtype == part.dtype)
    if part.keys is None:
        return type(value) is tuple and all(map(is_read_back, part.children, value))
    if type(value) is not dict or tuple(value) != part.keys:
        return False
    return all(is_read_back(child, value[key]) for key, child in zip(part.keys, part.children))


def is_plain(part: Part, value: Any) -> bool:
    """Whether the codec carries the value without losing a type: containers, arrays, numbers of the usual classes."""
    if isinstance(part, VariableLeaf):
        return True
    if isinstance(part, Leaf):
        return _is_number(value)
    if part.keys is None:
        return type(value) in (tuple, list) and all(map(is_plain, part.children, value))
    return type(value) is dict and all(is_plain(c, value[k]) for k, c in zip(part.keys, part.children))


def _is_number(value: Any) -> bool:
    if type(value) in (list, tuple):
        return all(map(_is_number, value))
    return type(value) in (np.ndarray, bool, int, float) or isinstance(value, np.generic)
