"""Values to bytes: the half of the codec that runs on whatever object an environment returned.

Builds the header's text directly, one function per exact type, because a small info dict is sent with every step and
has to cost microseconds. The form is described in ``agentenv.wire.values``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import lru_cache
from json.encoder import encode_basestring_ascii
from struct import Struct
from typing import Any

import numpy as np
from gymnasium.spaces import GraphInstance

from agentenv.wire.opaque import Opaque, describe_object
from agentenv.wire.sink import MAX_DEPTH, PADS, Sink, has_surrogates

_HEADER_LENGTH = Struct("<I")
_DOUBLE = Struct("<d")
_EMPTY_DICT = _HEADER_LENGTH.pack(2) + b"{}" + PADS[2]
_quote: Callable[[str], str] = encode_basestring_ascii


_Encoder = Callable[[Any, int, Sink], str]


def encode(value: object, *, extra_levels: int = 0) -> bytes:
    """Encode a value so that ``decode`` gives it back with its types.

    Kept exactly: None, bool, int (up to 4300 digits), float, complex, str, bytes, list, tuple, dict, set, frozenset,
    numpy arrays of kinds b i u f c S U M m and of objects, numpy scalars, ``GraphInstance`` and ``Opaque``. A subclass
    of one of the Python types becomes that type (an ``IntEnum`` an int). Everything else becomes an ``Opaque``.

    Args:
        value: The value.
        extra_levels: Levels that it may have beyond those that ``decode`` takes: for bytes that nobody decodes.

    Raises:
        ValueError: The value is nested deeper than 64 levels or contains itself, or holds more than 4096 set elements
            and non-string keys.
    """
    if type(value) is dict and not value:
        return _EMPTY_DICT
    sink = Sink()
    header = _text(value, -extra_levels, sink).encode("ascii")
    length = len(header)
    head = _HEADER_LENGTH.pack(length) + header + PADS[(4 - length) % 8]
    return b"".join((head, *sink.chunks)) if sink.chunks else head


def _check_depth(depth: int) -> None:
    if depth >= MAX_DEPTH:
        raise ValueError(f"cannot send a value nested deeper than {MAX_DEPTH} levels, or one that contains itself")


def _text(value: Any, depth: int, sink: Sink) -> str:
    return (_ENCODERS.get(type(value)) or _inherited(value))(value, depth, sink)


def _items(tag: str, values: Iterable[Any], depth: int, sink: Sink) -> str:
    _check_depth(depth)
    depth += 1
    get = _ENCODERS.get
    return ",".join([f'["{tag}"', *[(get(type(v)) or _inherited(v))(v, depth, sink) for v in values]]) + "]"


def _dict(value: dict[Any, Any], depth: int, sink: Sink) -> str:
    _check_depth(depth)
    parts = []
    get = _ENCODERS.get
    for key, item in dict.items(value):
        if type(key) is not str or (name := _key(key)) is None:
            return _mapping(value, depth, sink)
        # No item is encoded before every key is known to be a plain string: its chunks could not be taken back.
        parts.append((name, get(type(item)) or _inherited(item), item))
    depth += 1
    return "{" + ",".join([name + encoder(item, depth, sink) for name, encoder, item in parts]) + "}"


@lru_cache(maxsize=4096)
def _key(key: str) -> str | None:
    """The key as it stands in JSON with its colon, or None if JSON cannot carry it."""
    return None if has_surrogates(key) else _quote(key) + ":"


def _mapping(value: dict[Any, Any], depth: int, sink: Sink) -> str:
    sink.count_hashed(len(value))
    return _items("m", [part for key, item in dict.items(value) for part in (_hashable(key, depth), item)], depth, sink)


def _hashable(key: Any, depth: int) -> Any:
    """A key as it can be hashed again on the other side."""
    if isinstance(key, tuple) and not isinstance(key, GraphInstance):
        _check_depth(depth)
        return tuple(_hashable(part, depth + 1) for part in tuple.__iter__(key))
    if key is None or isinstance(key, (bool, int, float, complex, str, bytes, np.generic, Opaque)):
        return key
    return describe_object(key)


def _set(tag: str) -> _Encoder:
    def encode_set(value: Any, depth: int, sink: Sink) -> str:
        sink.count_hashed(len(value))
        return _items(tag, [_hashable(item, depth) for item in value], depth, sink)

    return encode_set


def _str(value: str, depth: int, sink: Sink) -> str:
    return _raw_text("u", value, sink) if has_surrogates(value) else _quote(value)


def _raw_text(tag: str, value: str, sink: Sink) -> str:
    raw = value.encode("utf-8", "surrogatepass")
    sink.add(raw, len(raw))
    return f'["{tag}",{len(raw)}]'


def _raw_bytes(tag: str) -> _Encoder:
    def encode_bytes(value: bytes, depth: int, sink: Sink) -> str:
        sink.add(bytes(value), len(value))
        return f'["{tag}",{len(value)}]'

    return encode_bytes


def _int(value: int, depth: int, sink: Sink) -> str:
    try:
        return int.__repr__(value)
    except ValueError:  # Python refuses to print more than 4300 digits
        return _opaque(Opaque("builtins.int", f"<an int of {value.bit_length()} bits>"), depth, sink)


def _float(value: float, depth: int, sink: Sink) -> str:
    if value - value == 0.0:
        return float.__repr__(value)
    if value == value:
        return "Infinity" if value > 0 else "-Infinity"
    sink.add(_DOUBLE.pack(value), 8)  # a NaN has a sign and a payload, and JSON has neither
    return '["d"]'


def _opaque(value: Opaque, depth: int, sink: Sink) -> str:
    return _items("?", [str(value.type_name), str(value.text)], depth, sink)


def _graph(value: GraphInstance, depth: int, sink: Sink) -> str:
    return _items("g", [value.nodes, value.edges, value.edge_links], depth, sink)


def _array(value: np.ndarray[Any, Any], depth: int, sink: Sink) -> str:
    dtype = value.dtype
    shape = ",".join(map(str, value.shape))
    if dtype.kind == "O":
        _check_depth(depth)
        items = [_text(item, depth + 1, sink) for item in value.ravel().tolist()]
        return ",".join([f'["o",[{shape}]', *items]) + "]"
    if dtype.kind not in "biufcSUMm":
        return _opaque(describe_object(value), depth, sink)
    if dtype.itemsize == 0:
        value = value.astype(dtype.kind + "1")  # an empty text still has a width of one when it arrives
        dtype = value.dtype
    if value.nbytes:
        sink.add(np.ascontiguousarray(value).reshape(-1).view(np.uint8), value.nbytes)
    return f'["a","{dtype.str}",[{shape}]]'


def _number(code: str) -> _Encoder:
    start = f'["{code}",'

    def encode_number(value: np.generic, depth: int, sink: Sink) -> str:
        item = value.item()
        if item - item == 0:
            return f"{start}{item!r}]"
        return _raw_scalar(value, depth, sink)

    return encode_number


def _numpy_bool(value: np.bool_, depth: int, sink: Sink) -> str:
    return '["b1",true]' if value else '["b1",false]'


def _raw_scalar(value: np.generic, depth: int, sink: Sink) -> str:
    if value.dtype.kind not in "biufcMm":
        return _opaque(describe_object(value), depth, sink)
    raw = value.tobytes()
    sink.add(raw, len(raw))
    return f'["n","{value.dtype.str}"]'


def _sequence(tag: str) -> _Encoder:
    def encode_sequence(value: Any, depth: int, sink: Sink) -> str:
        return _items(tag, value, depth, sink)

    return encode_sequence


def _constant(text: str) -> _Encoder:
    return lambda value, depth, sink: text


_ENCODERS: dict[type, _Encoder] = {
    type(None): _constant("null"),
    bool: lambda value, depth, sink: "true" if value else "false",
    int: _int,
    float: _float,
    complex: lambda value, depth, sink: _items("c", (value.real, value.imag), depth, sink),
    str: _str,
    bytes: _raw_bytes("b"),
    list: _sequence("l"),
    tuple: _sequence("t"),
    dict: _dict,
    set: _set("s"),
    frozenset: _set("z"),
    Opaque: _opaque,
    GraphInstance: _graph,
    np.ndarray: _array,
    np.bool_: _numpy_bool,
    np.str_: lambda value, depth, sink: _raw_text("U", value, sink),
    np.bytes_: _raw_bytes("S"),
    **{
        np.dtype(code).type: _number(code)
        for code in ("i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8")
    },
}


def _as(base: type, convert: Callable[[Any], Any]) -> _Encoder:
    return lambda value, depth, sink: _ENCODERS[base](convert(value), depth, sink)


# For subclasses, in this order: a numpy float64 is a float and a bool an int. The base class's own methods are used,
# since the subclass may have replaced them.
_INHERITED: tuple[tuple[type, _Encoder], ...] = (
    (np.ma.MaskedArray, lambda value, depth, sink: _opaque(describe_object(value), depth, sink)),
    (np.ndarray, _as(np.ndarray, np.asarray)),
    (np.generic, _raw_scalar),
    (int, _as(int, int.__int__)),
    (float, _as(float, float.__float__)),
    (complex, _as(complex, complex.__pos__)),
    (str, _as(str, str.__str__)),
    (bytes, _as(bytes, lambda value: bytes.__getitem__(value, slice(None)))),
    (list, _as(list, list.copy)),
    (tuple, _as(tuple, lambda value: list(tuple.__iter__(value)))),
    (dict, _dict),
    (set, _as(set, set.__iter__)),
    (frozenset, _as(frozenset, frozenset.__iter__)),
)


def _inherited(value: Any) -> _Encoder:
    for base, encoder in _INHERITED:
        if isinstance(value, base):
            return encoder
    return lambda value, depth, sink: _opaque(describe_object(value), depth, sink)
