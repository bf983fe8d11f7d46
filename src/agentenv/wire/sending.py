"""What a caller hands to an environment, held to plain data before it is sent.

What an environment returns may be anything, and what has no form on the wire arrives as a description. The other way
round a description would be taken for the value itself by code that knows nothing of it, so it is refused here.
"""

from __future__ import annotations

from collections.abc import Iterator
from struct import unpack_from
from typing import Any

import numpy as np

from agentenv.wire.opaque import describe_object
from agentenv.wire.slot import Op
from agentenv.wire.values import encode

_MARK = b'["?",'  # quotes inside of text are escaped in JSON, so that nothing else looks so
_NAMES = {Op.RESET: ("seed", "options"), Op.CALL: ("name", "args", "kwargs"), Op.SET: ("name", "value")}


def encode_request(op: Op, request: Any) -> bytes:
    """Encode a request whose values an environment is to receive as they are.

    Args:
        op: What is asked.
        request: What goes with it, as the guest expects it for ``op``.

    Raises:
        TypeError: A value is not plain data; says which, and what may be sent.
        ValueError: As ``encode`` does.
    """
    payload = encode(request)
    if _is_strange(payload):
        parts = zip(_NAMES.get(op, ()), request)
        where, found = next(strange for name, part in parts for strange in _strange(part, name))
        raise TypeError(
            f"{where} is a {describe_object(found).type_name}, which cannot be sent into a sandbox: send plain data"
            " (numbers, text, lists, tuples, sets, dicts, numpy arrays) and have the environment make the object of it"
        )
    return payload


def _is_strange(payload: bytes) -> bool:
    (length,) = unpack_from("<I", payload)
    return payload.find(_MARK, 4, 4 + length) >= 0


def _strange(value: Any, where: str) -> Iterator[tuple[str, object]]:
    """The innermost parts of a value that have no form on the wire, each with where it is."""
    if not _is_strange(encode(value)):
        return
    if isinstance(value, dict):
        for key, item in dict.items(value):
            if _is_strange(encode({key: None})):
                yield f"the key {key!r:.100} of {where}", key
            yield from _strange(item, f"{where}[{key!r:.100}]")
    elif isinstance(value, (list, tuple)) or (isinstance(value, np.ndarray) and value.dtype.kind == "O"):
        items = value.ravel().tolist() if isinstance(value, np.ndarray) else value
        for position, item in enumerate(items):
            yield from _strange(item, f"{where}[{position}]")
    elif isinstance(value, (set, frozenset)):
        for item in value:
            if _is_strange(encode({item})):
                yield f"an element of {where}", item
    yield where, value
