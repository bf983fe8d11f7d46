"""Spaces as JSON and back, so that the host knows them without importing the environment.

``describe`` runs in the sandbox, ``rebuild`` on the host with a description an attacker may have written, and
``first_difference`` puts into words where two spaces part. A subclass of a Gymnasium space is described as the class it
derives from. Bounds travel as base64 of their bytes (one element where all are the same), so they stay exact.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Callable
from typing import Any

import numpy as np
from gymnasium import Space, spaces

from agentenv.wire.differences import first_difference
from agentenv.wire.foreign import ForeignSpace
from agentenv.wire.oneof import ONE_OF
from agentenv.wire.opaque import describe_object
from agentenv.wire.rebuilding import rebuild

__all__ = ["ForeignSpace", "describe", "first_difference", "rebuild"]

Description = dict[str, Any]


def describe(space: Space[Any], *, allow_foreign: bool = False) -> Description:
    """Describe a space so that ``rebuild`` makes an equal one.

    Args:
        space: Box, Discrete, MultiBinary, MultiDiscrete, Text, Dict, Tuple, Sequence, Graph or OneOf, nested at will.
        allow_foreign: Describe a space of any other class by its name; ``rebuild`` makes a ``ForeignSpace`` of it.

    Returns:
        Nested dicts, lists, strings and numbers that JSON can carry.

    Raises:
        TypeError: A space, or one within it, is of another class. The text names the class.
    """

    def inner(part: Space[Any]) -> Description:
        for kind, describer in _DESCRIBERS:
            if isinstance(part, kind):
                return {"type": kind.__name__, **describer(part, inner)}
        if isinstance(part, ForeignSpace) or (allow_foreign and isinstance(part, Space)):
            return _foreign(part)
        name = f"{type(part).__module__}.{type(part).__qualname__}"
        known = ", ".join(kind.__name__ for kind, _ in _DESCRIBERS)
        raise TypeError(f"cannot send a space of class {name}; expected one of {known}, or a class derived from one")

    return inner(space)


_Inner = Callable[[Space[Any]], Description]


def _pack(array: np.ndarray[Any, Any]) -> str:
    raw = array.tobytes()
    one = raw[: array.itemsize]
    # Compared as bytes: 0.0 equals -0.0 as a number but is another bound for a bit-exact copy.
    if raw == one * array.size:
        raw = one
    return base64.b64encode(raw).decode("ascii")


def _box(space: Any, inner: _Inner) -> Description:
    low, high = np.asarray(space.low, space.dtype), np.asarray(space.high, space.dtype)
    return {
        "dtype": space.dtype.str,
        "shape": list(space.shape),
        "low": _pack(low),
        "high": _pack(high),
        # Not derivable from integer bounds, where infinity has become the smallest integer; sampling depends on it.
        "bounded_below": _pack(np.asarray(space.bounded_below, np.bool_)),
        "bounded_above": _pack(np.asarray(space.bounded_above, np.bool_)),
    }


def _discrete(space: Any, inner: _Inner) -> Description:
    return {"dtype": np.dtype(space.dtype).str, "n": int(space.n), "start": int(space.start)}


def _multi_binary(space: Any, inner: _Inner) -> Description:
    return {"n": space.n if isinstance(space.n, int) else list(space.n)}


def _multi_discrete(space: Any, inner: _Inner) -> Description:
    return {
        "dtype": space.dtype.str,
        "shape": list(space.shape),
        "nvec": _pack(np.asarray(space.nvec, space.dtype)),
        "start": _pack(np.asarray(space.start, space.dtype)),
    }


def _text(space: Any, inner: _Inner) -> Description:
    # Code points, since JSON would join neighbouring surrogates; in order, since sampling depends on it.
    charset = [ord(char) for char in space.character_list]
    return {"min_length": int(space.min_length), "max_length": int(space.max_length), "charset": charset}


def _dict(space: Any, inner: _Inner) -> Description:
    for key in space.spaces:
        if type(key) not in (str, int):
            raise TypeError(f"cannot send a Dict space with the key {key!r}; expected a str or an int")
    parts = [[key, inner(part)] for key, part in space.spaces.items()]
    return {"spaces": parts, "sort_keys": bool(getattr(space, "sort_keys", True))}


def _several(space: Any, inner: _Inner) -> Description:
    return {"spaces": [inner(part) for part in space.spaces]}


def _sequence(space: Any, inner: _Inner) -> Description:
    return {"space": inner(space.feature_space), "stack": bool(space.stack)}


def _graph(space: Any, inner: _Inner) -> Description:
    return {"nodes": inner(space.node_space), "edges": None if space.edge_space is None else inner(space.edge_space)}


def _foreign(space: Space[Any]) -> Description:
    if isinstance(space, ForeignSpace):
        name, text = space.type_name, space.text
    else:
        described = describe_object(space)
        # An address in a repr differs between processes that hold equal spaces.
        name, text = described.type_name, re.sub(r" at 0x[0-9a-fA-F]+", "", described.text)
    dtype = space.dtype if isinstance(space.dtype, np.dtype) and space.dtype.kind in "biufU" else None
    kind = None if dtype is None else "str" if dtype.kind == "U" else dtype.str
    return {"type": "Foreign", "name": name, "text": text, "dtype": kind}


_DESCRIBERS: tuple[tuple[type, Callable[[Any, _Inner], Description]], ...] = (
    (spaces.Box, _box),
    (spaces.Discrete, _discrete),
    (spaces.MultiBinary, _multi_binary),
    (spaces.MultiDiscrete, _multi_discrete),
    (spaces.Text, _text),
    (spaces.Dict, _dict),
    (spaces.Tuple, _several),
    (spaces.Sequence, _sequence),
    (spaces.Graph, _graph),
    *((kind, _several) for kind in ONE_OF),
)
