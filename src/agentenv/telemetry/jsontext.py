"""JSON for what a run leaves: strict, ASCII only, and never stopped by a numpy scalar or a NaN.

ASCII: U+2028 and lone surrogates travel as escapes, so that no reader can split a line in the wrong place. Strict:
JSON has no NaN and no infinity; they become the strings "NaN", "Infinity" and "-Infinity", as in the JSON form of
protocol buffers, which ``float()`` reads back. This is for records of ours; it is not how observations travel.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import PurePath

import numpy as np

_TOO_DEEP = "expected a value that JSON can hold, got one that contains itself or is nested too deeply"


def to_json(value: object, *, indent: int | None = None) -> bytes:
    """Returns the value as JSON.

    Mappings, sequences, sets, numpy scalars and arrays become their plain counterparts, bytes and unknown objects
    their ``repr`` (at most 200 characters), paths and keys strings.

    Raises:
        ValueError: the value contains itself, or is nested too deeply.
    """
    try:
        return _dump(value, indent)
    except (ValueError, TypeError):
        # Something the encoder has no hook for: a NaN, or a key that is not a string. Rare, so paid for only then.
        pass
    except RecursionError:
        raise ValueError(_TOO_DEEP) from None
    try:
        return _dump(_plain(value), indent)
    except RecursionError:
        raise ValueError(_TOO_DEEP) from None


def _dump(value: object, indent: int | None) -> bytes:
    separators = (",", ":") if indent is None else (",", ": ")
    return json.dumps(value, default=_plain, allow_nan=False, indent=indent, separators=separators).encode()


def _plain(value: object) -> object:
    if value is None or isinstance(value, str | bool | int):
        return value
    if isinstance(value, float):
        return _number(value)
    if isinstance(value, np.generic):
        item: object = value.item()
        return _short(value) if isinstance(item, np.generic) else _plain(item)
    if isinstance(value, np.ndarray):
        return _plain(value.tolist())
    if isinstance(value, Mapping):
        return {str(key): _plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    if isinstance(value, set | frozenset):
        return sorted((_plain(inner) for inner in value), key=repr)
    return str(value) if isinstance(value, PurePath) else _short(value)


def _number(value: float) -> float | str:
    if math.isfinite(value):
        return float(value)
    return "NaN" if math.isnan(value) else ("Infinity" if value > 0 else "-Infinity")


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 200 else text[:197] + "..."
