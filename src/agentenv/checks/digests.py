"""Any value as a few bytes that differ when its type, dtype, shape or any bit of it differs.

Runs inside the sandbox. Dicts and sets count by what they hold, not by the order in which they hold it: that order is
not part of an observation. An object without a value of its own counts by its type, because its repr may be an address.
"""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np

SIZE = 8


def digest(value: object) -> bytes:
    """Returns ``SIZE`` bytes."""
    hasher = hashlib.blake2b(digest_size=SIZE)
    _feed(hasher, value, 0)
    return hasher.digest()


def _feed(hasher: Any, value: Any, depth: int) -> None:
    if depth > 64:
        return
    if isinstance(value, (np.ndarray, np.generic)):
        if value.dtype.hasobject:
            _feed(hasher, value.tolist(), depth + 1)
            return
        array = np.ascontiguousarray(value)
        hasher.update(f"{value.dtype.str}{value.shape}".encode())
        hasher.update(array.tobytes())
    elif isinstance(value, dict):
        hasher.update(b"{%d" % len(value))
        for key in sorted(value, key=lambda key: (type(key).__name__, repr(key))):
            hasher.update(repr(key).encode("utf-8", "replace"))
            _feed(hasher, value[key], depth + 1)
    elif isinstance(value, (set, frozenset)):
        hasher.update(b"s%d" % len(value))
        for part in sorted(digest(item) for item in value):
            hasher.update(part)
    elif isinstance(value, (list, tuple)):
        hasher.update(f"{'t' if isinstance(value, tuple) else 'l'}{len(value)}".encode())
        for item in value:
            _feed(hasher, item, depth + 1)
    elif value is None or isinstance(value, (bool, int, float, complex, str, bytes)):
        hasher.update(f"{type(value).__name__}{value!r};".encode("utf-8", "replace"))
    else:
        hasher.update(f"<{type(value).__module__}.{type(value).__qualname__}>".encode("utf-8", "replace"))
