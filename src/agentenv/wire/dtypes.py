"""Which numpy dtypes may cross the boundary, by their text.

The text comes from a sandbox, so it is looked up in a table or matched against one strict pattern before numpy sees
it. Object, structured and user-defined dtypes do not exist here: raw bytes never become pointers.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any

import numpy as np

from agentenv.errors import ProtocolError

_CODES = ("b1", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8", "c8", "c16")
_LONG_CODES = (np.dtype(np.longdouble).str[1:], np.dtype(np.clongdouble).str[1:])

_FIXED: dict[str, np.dtype[Any]] = {}
for _order in "<>":
    for _code in (*_CODES, *_LONG_CODES):
        _dtype = np.dtype(_order + _code)
        _FIXED[_dtype.str] = _dtype

# Widths and multiples start at 1: numpy turns a width of 0 into 1 when it allocates, so "no bytes" would cost memory.
_SIZED = re.compile(
    r"\|S[1-9][0-9]{0,8}|[<>]U[1-9][0-9]{0,7}"
    r"|[<>][mM]8(\[([1-9][0-9]{0,8})?(Y|M|W|D|h|m|s|ms|us|ns|ps|fs|as)\])?"
)


def parse_dtype(text: object) -> np.dtype[Any]:
    """Turn a dtype's ``str`` back into the dtype.

    Args:
        text: What ``dtype.str`` gave on the other side, such as ``"<f4"``.

    Raises:
        ProtocolError: It is not a string, or not one of the dtypes that may cross.
    """
    if type(text) is str:
        found = _FIXED.get(text)
        if found is not None:
            return found
        if len(text) <= 24:
            return _parse_sized(text)
    got = repr(text[:60]) if type(text) is str else type(text).__name__
    raise ProtocolError(f"expected the text of a numpy dtype such as '<f4', got {got}")


@lru_cache(maxsize=256)
def _parse_sized(text: str) -> np.dtype[Any]:
    if _SIZED.fullmatch(text) is None:
        raise ProtocolError(f"expected a dtype of kind b, i, u, f, c, S, U, M or m, got {text!r}")
    try:
        return np.dtype(text)
    except (TypeError, ValueError) as error:
        raise ProtocolError(f"numpy refuses the dtype {text!r}: {error}") from None


def parse_number_dtype(text: object) -> np.dtype[Any]:
    """Like ``parse_dtype``, for the dtypes a Box may have: bool, integers and floats.

    Raises:
        ProtocolError: It is anything else.
    """
    dtype = parse_dtype(text)
    if dtype.kind not in "biuf":
        raise ProtocolError(f"expected the dtype of a number (kind b, i, u or f), got {dtype.str!r}")
    return dtype
