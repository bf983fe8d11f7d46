"""Descriptions of spaces, written by somebody hostile, to Gymnasium spaces.

Every description that is wrong ends in a ``ProtocolError``, and what a space will allocate is counted before it does.
The count includes the copies Gymnasium makes: a stacked Sequence and a Graph hold a batched twin of their parts, so
thirty of them nested would otherwise double the memory thirty times.
"""

from __future__ import annotations

import base64
import binascii
import sys
from collections import OrderedDict
from collections.abc import Callable
from math import prod
from typing import Any

import numpy as np
from gymnasium import Space, spaces

from agentenv.errors import ProtocolError
from agentenv.wire.dtypes import parse_number_dtype
from agentenv.wire.foreign import ForeignSpace

MAX_NODES = 10_000
MAX_BYTES = 1 << 30
MAX_SPACE_DEPTH = 32


def rebuild(description: object, *, max_bytes: int = MAX_BYTES) -> Space[Any]:
    """Make the space that ``describe`` described, unseeded.

    Args:
        description: What came out of JSON.
        max_bytes: Most memory the space's arrays may take, in bytes, with the copies Gymnasium makes of them.

    Raises:
        ProtocolError: The description is malformed, describes a space Gymnasium refuses, or exceeds 10 000 nodes,
            32 levels or ``max_bytes``.
    """
    budget = _Budget(max_bytes)
    try:
        return _rebuild(description, budget, 0, 1)
    except ProtocolError:
        raise
    except Exception as error:
        # Gymnasium judges bounds and counts in its constructors, in assorted exceptions.
        raise ProtocolError(f"not the description of a space: {type(error).__name__}: {error}"[:500]) from None


class _Budget:
    """What may still be built."""

    __slots__ = ("nbytes", "nodes")

    def __init__(self, nbytes: int) -> None:
        self.nbytes = nbytes
        self.nodes = MAX_NODES

    def charge(self, nbytes: int, nodes: int = 0) -> None:
        self.nbytes -= nbytes
        self.nodes -= nodes
        if self.nodes < 0:
            raise ProtocolError(f"expected a space of at most {MAX_NODES} nodes, counting batched copies")
        if self.nbytes < 0:
            raise ProtocolError(f"expected a smaller space: its bounds need {-self.nbytes} bytes more than allowed")


class _Fields:
    """One description, read field by field with the type each must have."""

    __slots__ = ("budget", "copies", "depth", "record")

    def __init__(self, record: dict[Any, Any], budget: _Budget, depth: int, copies: int) -> None:
        self.record = record
        self.budget = budget
        self.depth = depth
        self.copies = copies

    def get(self, name: str, kind: type) -> Any:
        value = self.record.get(name)
        if type(value) is not kind:
            where = str(self.record.get("type"))[:40]
            raise ProtocolError(f"{where}.{name}: expected {kind.__name__}, got {type(value).__name__}")
        return value

    def integers(self, name: str) -> list[int]:
        values: list[int] = self.get(name, list)
        if any(type(value) is not int for value in values):
            raise ProtocolError(f"{name}: expected a list of integers")
        return values

    def shape(self, name: str) -> tuple[int, ...]:
        dims = self.integers(name)
        if len(dims) > 32 or any(not 0 <= dim < 1 << 48 for dim in dims):
            raise ProtocolError(f"{name}: expected at most 32 dimensions of 0 or more, got {str(dims)[:80]}")
        return tuple(dims)

    def array(self, name: str, dtype: np.dtype[Any], shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
        """An array packed by ``describe``; charged before it is made."""
        size = prod(shape)
        self.budget.charge(size * dtype.itemsize * self.copies)
        try:
            raw = _unpack(self.get(name, str))
        except ValueError as error:
            raise ProtocolError(f"{name}: expected base64: {error}") from None
        if size and len(raw) == dtype.itemsize:
            array = np.full(shape, np.frombuffer(raw, dtype)[0], dtype)
        elif len(raw) == size * dtype.itemsize:
            array = np.frombuffer(raw, dtype).reshape(shape).copy()
        else:
            raise ProtocolError(f"{name}: expected {size} or 1 elements of {dtype.str}, got {len(raw)} bytes")
        if dtype.kind == "b" and size and array.view(np.uint8).max() > 1:
            raise ProtocolError(f"{name}: expected bytes 0 and 1 in an array of bool")
        return array

    def space(self, description: object, copies: int = 1) -> Space[Any]:
        return _rebuild(description, self.budget, self.depth + 1, self.copies * copies)


def _unpack(text: str) -> bytes:
    if sys.version_info >= (3, 11):
        return binascii.a2b_base64(text, strict_mode=True)
    return base64.b64decode(text, validate=True)


def _rebuild(description: object, budget: _Budget, depth: int, copies: int) -> Space[Any]:
    if depth > MAX_SPACE_DEPTH:
        raise ProtocolError(f"expected a space of at most {MAX_SPACE_DEPTH} levels")
    budget.charge(0, nodes=copies)
    if type(description) is not dict:
        raise ProtocolError(f"expected the description of a space, got {type(description).__name__}")
    name = description.get("type")
    builder = _BUILDERS.get(name) if type(name) is str else None
    if builder is None:
        raise ProtocolError(f"expected the type of a space, one of {', '.join(_BUILDERS)}, got {str(name)[:60]!r}")
    return builder(_Fields(description, budget, depth, copies))


def _box(fields: _Fields) -> Space[Any]:
    dtype = parse_number_dtype(fields.record.get("dtype"))
    shape = fields.shape("shape")
    low, high = fields.array("low", dtype, shape), fields.array("high", dtype, shape)
    below = fields.array("bounded_below", np.dtype(np.bool_), shape)
    above = fields.array("bounded_above", np.dtype(np.bool_), shape)
    if dtype.kind == "f" and (np.isnan(low).any() or np.isnan(high).any()):
        raise ProtocolError("low and high: expected numbers, got nan")
    box = spaces.Box(low, high, dtype=dtype)
    box.bounded_below, box.bounded_above = below, above
    return box


def _integer_dtype(fields: _Fields) -> np.dtype[Any]:
    dtype = parse_number_dtype(fields.record.get("dtype"))
    if dtype.kind not in "iu":
        raise ProtocolError(f"dtype: expected integers, got {dtype.str!r}")
    return dtype


def _fitting(fields: _Fields, name: str, dtype: np.dtype[Any]) -> int:
    value: int = fields.get(name, int)
    info = np.iinfo(dtype)
    if not info.min <= value <= info.max:
        raise ProtocolError(f"{name}: expected a number that fits {dtype.str!r}, got one of {value.bit_length()} bits")
    return value


def _discrete(fields: _Fields) -> Space[Any]:
    dtype = _integer_dtype(fields)
    n, start = _fitting(fields, "n", dtype), _fitting(fields, "start", dtype)
    # Older releases of Gymnasium have no dtype here, and then no space that needs one.
    if dtype == np.int64:
        return spaces.Discrete(n, start=start)
    return spaces.Discrete(n, start=start, dtype=dtype)


def _multi_binary(fields: _Fields) -> Space[Any]:
    n = fields.record.get("n")
    shape = (n,) if type(n) is int else fields.shape("n")
    fields.budget.charge(abs(prod(shape)) * fields.copies)
    return spaces.MultiBinary(n if type(n) is int else shape)


def _multi_discrete(fields: _Fields) -> Space[Any]:
    dtype, shape = _integer_dtype(fields), fields.shape("shape")
    nvec, start = fields.array("nvec", dtype, shape), fields.array("start", dtype, shape)
    return spaces.MultiDiscrete(nvec, dtype=dtype, start=start)


def _text(fields: _Fields) -> Space[Any]:
    shortest, longest = fields.get("min_length", int), fields.get("max_length", int)
    if not 0 <= shortest <= longest < 1 << 48:
        raise ProtocolError(f"Text: expected 0 <= min_length <= max_length < 2**48, got {shortest} and {longest}"[:200])
    charset = fields.integers("charset")
    if len(charset) > 0x110000:
        raise ProtocolError("charset: expected no more characters than Unicode has")
    fields.budget.charge((shortest + 200 * len(charset)) * fields.copies)
    return spaces.Text(longest, min_length=shortest, charset="".join(map(chr, charset)))


def _dict(fields: _Fields) -> Space[Any]:
    parts: OrderedDict[Any, Space[Any]] = OrderedDict()  # an OrderedDict keeps its order whatever sort_keys says
    for pair in fields.get("spaces", list):
        if type(pair) is not list or len(pair) != 2 or type(pair[0]) not in (str, int) or pair[0] in parts:
            raise ProtocolError("Dict.spaces: expected pairs of a distinct key and a space")
        parts[pair[0]] = fields.space(pair[1])
    return spaces.Dict(parts) if fields.get("sort_keys", bool) else spaces.Dict(parts, sort_keys=False)


def _several(fields: _Fields) -> list[Space[Any]]:
    return [fields.space(part) for part in fields.get("spaces", list)]


def _sequence(fields: _Fields) -> Space[Any]:
    stack = fields.get("stack", bool)
    return spaces.Sequence(fields.space(fields.record.get("space"), copies=2 if stack else 1), stack=stack)


def _graph(fields: _Fields) -> Space[Any]:
    edges = fields.record.get("edges")
    nodes = fields.space(fields.record.get("nodes"), copies=2)
    return spaces.Graph(nodes, None if edges is None else fields.space(edges, copies=2))


def _foreign(fields: _Fields) -> Space[Any]:
    kind = fields.record.get("dtype")
    dtype = None if kind is None else np.dtype(np.str_) if kind == "str" else parse_number_dtype(kind)
    return ForeignSpace(fields.get("name", str)[:1024], fields.get("text", str)[:1024], dtype)


_BUILDERS: dict[str, Callable[[_Fields], Space[Any]]] = {
    "Box": _box,
    "Discrete": _discrete,
    "MultiBinary": _multi_binary,
    "MultiDiscrete": _multi_discrete,
    "Text": _text,
    "Dict": _dict,
    "Tuple": lambda fields: spaces.Tuple(_several(fields)),
    "Sequence": _sequence,
    "Graph": _graph,
    "OneOf": lambda fields: spaces.OneOf(_several(fields)),
    "Foreign": _foreign,
}
