"""MuJoCo's model and data in a capture: their memory, instead of the description of everything in them.

Pickled, a small robot is a megabyte and milliseconds, nearly all of it the model, which does not change. Here the data
is one block of memory (``mjData.buffer``, which holds every array of fixed size), and the model is left to the
environment that takes the capture on, as long as it is unchanged since it was first seen. A changed one (randomised
masses, say) is pickled like everything else.

Source of the layout: mjdata.h and mjmodel.h of MuJoCo, "buffer: main buffer; all pointers point in it".
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from agentenv.wire.digest import make_digest
from agentenv.wire.views import Bytes

_LARGEST = 1 << 30


class Physics:
    """The MuJoCo objects of one environment; inert where it has none.

    Args:
        base: The innermost environment, in its present state, taken for that in which its model is unchanged.
    """

    def __init__(self, base: Any) -> None:
        self._base = base
        self._model: Any = None
        self._data: Any = None
        self._digest: Callable[[int], int] | None = None
        self._unchanged = 0
        self._block: Bytes | None = None
        module = sys.modules.get("mujoco")
        model, data = base.__dict__.get("model"), base.__dict__.get("data")
        if module is None or not isinstance(model, module.MjModel) or not isinstance(data, module.MjData):
            return
        whole, block = _block_of(model), _block_of(data, int(data.nbuffer))
        if whole is None or block is None:
            return
        self._model, self._data, self._block = model, data, block
        self._digest = make_digest(whole)
        self._unchanged = self._digest(0)

    def observe(self) -> bool:
        """Before a capture: whether the memory may stand for the objects."""
        if self._digest is None:
            return False
        own = self._base.__dict__
        return own.get("data") is self._data and own.get("model") is self._model and self._digest(0) == self._unchanged

    def parts(self) -> dict[int, str]:
        """The names of the objects that stay with the environment, by their identity."""
        return {id(self._model): "model", id(self._data): "data"}

    def read(self) -> tuple[float, bytes]:
        """The data's time and memory."""
        assert self._block is not None  # only after observe()
        return float(self._data.time), self._block.tobytes()

    def write(self, held: tuple[float, bytes]) -> None:
        """Put them back.

        Raises:
            ValueError: They are of another model.
        """
        time, memory = held
        if self._block is None or len(memory) != self._block.size:
            raise ValueError("the saved physics are of another model")
        self._data.time = time
        self._block[:] = np.frombuffer(memory, np.uint8)


def _block_of(owner: Any, size: int | None = None) -> Bytes | None:
    """The memory from the first array of a MuJoCo object to its last, or to ``size`` bytes, as one array."""
    spans = []
    for name in dir(owner):
        if name.startswith("_"):
            continue
        try:
            value = getattr(owner, name)
        except Exception:
            continue  # some need what was never computed
        if isinstance(value, np.ndarray) and value.nbytes and value.flags.c_contiguous:
            first = value.__array_interface__["data"][0]
            spans.append((first, first + value.nbytes))
    if not spans:
        return None
    start = min(first for first, _ in spans) if size is None else owner.qpos.__array_interface__["data"][0]
    limit = start + (size or _LARGEST)
    end = max((last for first, last in spans if start <= first and last <= limit), default=start)
    if not 0 < end - start <= _LARGEST or (size is None and end - start > 4 * sum(b - a for a, b in spans)):
        return None  # not one block after all
    memory = (ctypes.c_uint8 * (end - start)).from_address(start)
    return np.frombuffer(memory, np.uint8)
