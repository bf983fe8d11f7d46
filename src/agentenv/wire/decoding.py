"""Bytes to values: the half of the codec that reads what an attacker may have written.

Every way the bytes can be wrong ends in a ``ProtocolError``. Time is bounded by the length of the input: raw bytes are
consumed in order and once, nesting is measured before the JSON parser may recurse, long digit strings are refused
before they are converted, and hashed elements are counted. Memory is bounded by the longest input that is accepted:
what a message becomes takes at most eight times as much beside it, or 64 MiB where that is more. It is weighed before
it is parsed (``agentenv.wire.bounds``), and the parser's own lists and dicts become the values. Arrays are fresh
copies, never views of the input, which may be memory the sandbox still writes to. The form is described in
``agentenv.wire.values``.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from math import prod
from struct import Struct
from struct import error as StructError
from typing import Any

import numpy as np
from gymnasium.spaces import GraphInstance

from agentenv.errors import ProtocolError, counted
from agentenv.wire.bounds import check_header
from agentenv.wire.dtypes import parse_dtype
from agentenv.wire.opaque import Opaque
from agentenv.wire.sink import MAX_DEPTH
from agentenv.wire.source import Source

_MAX_DIMENSIONS = 64
_HEADER_LENGTH = Struct("<I")
_DOUBLE = Struct("<d")
_NESTING_TAGS = frozenset("ltmszcgo?")
_PLAIN = frozenset({int, str, float, bool, type(None)})
# The stubs do not have it.
_scan: Callable[[str, int], tuple[Any, int]] = vars(json.JSONDecoder())["scan_once"]


_Decoder = Callable[[list[Any], Source], Any]


def decode(data: bytes | memoryview, *, max_bytes: int) -> object:
    """Decode what ``encode`` wrote, or refuse it.

    Args:
        data: The whole message and nothing else. A memoryview must be flat bytes; it may lie in shared memory.
        max_bytes: Longest message accepted.

    Returns:
        The value; arrays are writable and own their memory.

    Raises:
        ProtocolError: The message is longer than ``max_bytes``, its values would take too much memory, or it is not in
            the form ``encode`` produces.
    """
    size = len(data)
    if size > max_bytes:
        raise ProtocolError(f"expected at most {max_bytes} bytes, got {size}")
    try:
        (length,) = _HEADER_LENGTH.unpack_from(data)
        payload = (length + 11) & ~7  # 4 + length, rounded up to 8
        if payload > size:
            raise ProtocolError(f"expected a header of at most {size - 4} bytes, got one that claims {length}")
        text = str(data[4 : 4 + length], "ascii")
        deep = length > MAX_DEPTH and check_header(text, size - payload, max_bytes)
        tree, end = _scan(text, 0)
        if end != length:
            raise ProtocolError(f"expected the header to end after {end} characters, got {length}")
        if deep and _levels(tree) > MAX_DEPTH:
            raise ProtocolError(f"expected values nested at most {MAX_DEPTH} levels deep")
        if "[" not in text and payload == size:
            return tree
        source = Source(data, payload, size)
        value = _value(tree, source)
    except ProtocolError:
        raise
    except StructError:
        raise ProtocolError(f"expected at least 8 bytes, got {size}") from None
    except Exception as error:
        # numpy and the JSON parser have many ways to say no; all of them mean that the bytes are wrong.
        raise ProtocolError(f"cannot decode a message of {size} bytes: {type(error).__name__}: {error}"[:500]) from None
    if source.cursor != size:
        raise ProtocolError(f"expected {source.cursor} bytes in all, got {size}")
    return value


def _levels(node: Any) -> int:
    """How many levels of values in values a header holds, counted as ``encode`` counts them."""
    if type(node) is dict:
        return 1 + max(map(_levels, node.values()), default=0)
    if type(node) is list and node and type(node[0]) is str and node[0] in _NESTING_TAGS:
        return 1 + max(map(_levels, node), default=0)
    return 0


def _value(node: Any, source: Source) -> Any:
    kind = type(node)
    if kind in _PLAIN:
        return node
    if kind is dict:
        for key, item in node.items():
            if type(item) not in _PLAIN:
                node[key] = _value(item, source)
        return node
    tag = node[0] if node else None
    decoder = _DECODERS.get(tag) if type(tag) is str else None
    if decoder is None:
        raise ProtocolError(f"expected a known tag, got {_shown(tag)}")
    return decoder(node, source)


def _values(node: list[Any], source: Source) -> list[Any]:
    """The values after the tag: the same list, so that nothing is there twice."""
    for index, item in enumerate(node):
        if type(item) not in _PLAIN:
            node[index] = _value(item, source)
    del node[0]
    return node


def _shown(node: Any) -> str:
    """What stands in a message, for an error; of what holds others the type: its text may be larger than itself."""
    return repr(node)[:40] if type(node) in (str, int, float, bool) else type(node).__name__


def _exactly(node: list[Any], length: int) -> None:
    if len(node) != length + 1:
        raise ProtocolError(f"expected {counted(length, 'part')} after the tag {node[0]!r}, got {len(node) - 1}")


def _of_types(node: list[Any], source: Source, *kinds: type) -> list[Any]:
    tag = node[0]
    parts = _values(node, source)
    if [type(part) for part in parts] != list(kinds):
        raise ProtocolError(f"expected {[kind.__name__ for kind in kinds]} after the tag {tag!r}")
    return parts


def _check_hashable(value: Any) -> None:
    if type(value) is tuple:
        for part in value:
            _check_hashable(part)
    elif not (type(value) in _PLAIN or isinstance(value, (complex, bytes, np.generic, Opaque))):
        raise ProtocolError(
            f"expected a scalar or a tuple of scalars as key or set element, got {type(value).__name__}"
        )


def _hashed(node: list[Any], source: Source) -> list[Any]:
    source.count_hashed(len(node) - 1)
    items = _values(node, source)
    for item in items:
        _check_hashable(item)
    return items


def _mapping(node: list[Any], source: Source) -> dict[Any, Any]:
    if len(node) % 2 == 0:
        raise ProtocolError("expected as many values as keys in a mapping")
    source.count_hashed(len(node) // 2)
    items = _values(node, source)
    for key in items[::2]:
        _check_hashable(key)
    return dict(zip(items[::2], items[1::2]))


def _shape(dims: object) -> tuple[int, ...]:
    if type(dims) is not list or len(dims) > _MAX_DIMENSIONS:
        raise ProtocolError(f"expected a shape of at most {_MAX_DIMENSIONS} dimensions, got {_shown(dims)}")
    for dim in dims:
        if type(dim) is not int or not 0 <= dim < 1 << 48:
            raise ProtocolError(f"expected a dimension of 0 or more, got {_shown(dim)}")
    return tuple(dims)


def _array(node: list[Any], source: Source) -> np.ndarray[Any, Any]:
    _exactly(node, 2)
    return source.take_array(parse_dtype(node[1]), _shape(node[2]))


def _object_array(node: list[Any], source: Source) -> np.ndarray[Any, Any]:
    shape = _shape(node[1] if len(node) > 1 else None)
    if len(node) - 2 != prod(shape):
        raise ProtocolError(f"expected {counted(prod(shape), 'object')} for the shape {shape}, got {len(node) - 2}")
    array = np.empty(shape, object)
    flat = array.reshape(-1)
    for index, item in enumerate(node[2:]):
        flat[index] = _value(item, source)
    return array


def _raw_scalar(node: list[Any], source: Source) -> Any:
    _exactly(node, 1)
    dtype = parse_dtype(node[1])
    if dtype.kind not in "biufcMm":
        raise ProtocolError(f"expected the dtype of a number or a time, got {dtype.str!r}")
    return source.take_array(dtype, ())[()]


def _limits(dtype: np.dtype[Any]) -> tuple[float, float]:
    if dtype.kind == "b":
        return 0, 1
    if dtype.kind == "f":
        return float(np.finfo(dtype).min), float(np.finfo(dtype).max)
    return int(np.iinfo(dtype).min), int(np.iinfo(dtype).max)


def _number(code: str) -> _Decoder:
    dtype = np.dtype(code)
    make: Callable[[Any], Any] = dtype.type
    kind = {"b": "bool", "f": "float"}.get(dtype.kind, "int")  # JSON yields no other types of these names
    low, high = _limits(dtype)

    def decode_number(node: list[Any], source: Source) -> Any:
        _tag, item = node
        if type(item).__name__ != kind or not low <= item <= high:
            raise ProtocolError(f"expected a finite {kind} that fits after the tag {code!r}")
        return make(item)

    return decode_number


def _text(node: list[Any], source: Source) -> str:
    _exactly(node, 1)
    return source.take_bytes(node[1]).decode("utf-8", "surrogatepass")


def _bytes(node: list[Any], source: Source) -> bytes:
    _exactly(node, 1)
    return source.take_bytes(node[1])


def _double(node: list[Any], source: Source) -> float:
    _exactly(node, 0)
    (value,) = _DOUBLE.unpack(source.take_bytes(8))
    return float(value)


def _graph(node: list[Any], source: Source) -> GraphInstance:
    _exactly(node, 3)
    return GraphInstance(*_values(node, source))


_DECODERS: dict[str, _Decoder] = {
    "l": _values,
    "t": lambda node, source: tuple(_values(node, source)),
    "m": _mapping,
    "s": lambda node, source: set(_hashed(node, source)),
    "z": lambda node, source: frozenset(_hashed(node, source)),
    "c": lambda node, source: complex(*_of_types(node, source, float, float)),
    "?": lambda node, source: Opaque(*_of_types(node, source, str, str)),
    "u": _text,
    "U": lambda node, source: np.str_(_text(node, source)),
    "b": _bytes,
    "S": lambda node, source: np.bytes_(_bytes(node, source)),
    "d": _double,
    "g": _graph,
    "a": _array,
    "o": _object_array,
    "n": _raw_scalar,
    **{code: _number(code) for code in ("b1", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8")},
}
