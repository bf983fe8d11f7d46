"""The last observation and info of an episode that was reset in the same step, out of what a sandbox sent.

Both were stored before the environment was reset. The observation lies in an area of its own, as the space declares it,
or travels as the environment gave it where that is of other types; then it must still fit the space's structure.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from agentenv.errors import ProtocolError
from agentenv.wire.batch import BatchView
from agentenv.wire.layout import SpaceLayout, Writer, check_variables
from agentenv.wire.values import decode
from agentenv.wire.views import Bytes


class Finals:
    """Reads final observations and infos of all environments."""

    def __init__(self, layout: SpaceLayout, base: Bytes, *, max_bytes: int) -> None:
        """View the areas of the final observations.

        Args:
            layout: The plan of one environment's observation space.
            base: uint8 of shape ``(n, layout.nbytes)``, one row for each environment.
            max_bytes: The most that one payload may decode to.
        """
        self._layout = layout
        self._view = BatchView(layout, base)
        self._max_bytes = max_bytes
        self._fit = Writer(layout, np.zeros(layout.nbytes, np.uint8), "final observation").write

    def read(self, index: int, payload: object) -> tuple[Any, dict[str, Any]]:
        """The final observation and info of environment ``index``.

        Raises:
            ProtocolError: The payload is not one, or the observation does not fit its space.
        """
        if not isinstance(payload, bytes):
            raise ProtocolError(f"a final record that is not bytes but {type(payload).__name__}")
        value = decode(payload, max_bytes=self._max_bytes)
        if not (isinstance(value, list) and len(value) == 3):
            raise ProtocolError("a final record that is not three parts")
        info, variable, raw = value
        if raw is None:
            check_variables(self._layout, variable)
            return self._view.take(index, variable), as_info(info)
        if not (isinstance(raw, list) and len(raw) == 1):
            raise ProtocolError("a final observation that is not one value")
        try:
            check_variables(self._layout, self._fit(raw[0]))
        except ValueError as error:
            raise ProtocolError(str(error)) from error
        return raw[0], as_info(info)


def as_info(value: object) -> dict[str, Any]:
    """The value, if it can be an info dict.

    Raises:
        ProtocolError: It is not a dict with text keys.
    """
    if not isinstance(value, dict) or not all(isinstance(key, str) for key in value):
        raise ProtocolError("an info that is not a dict with text keys")
    return value
