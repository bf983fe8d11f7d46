"""Actions as a person reads them, in records of what went wrong."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import Space
from numpy.typing import NDArray

from agentenv.wire.layout import Reader, plan


def legible_action(space: Space[Any], data: NDArray[np.uint8]) -> Any:
    """The fixed part of an action of a space as plain data; as hexadecimal digits where its size varies."""
    layout = plan(space)
    if layout.variable:
        return data.tobytes().hex()
    return _plain(Reader(layout, data).read(()))


def _plain(value: Any) -> Any:
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, list | tuple) else value
