"""Numpy views of a leaf: in one environment's block, and in the blocks of all environments."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from agentenv.wire.plan import Leaf, SpaceLayout

if TYPE_CHECKING:
    Bytes = np.ndarray[Any, np.dtype[np.uint8]]
else:  # numpy before 1.22 has nothing to put between the brackets
    Bytes = np.ndarray


def check_buffer(layout: SpaceLayout, buffer: Bytes) -> None:
    """Make sure that an array can hold one block.

    Raises:
        ValueError: It is not contiguous uint8 of at least the layout's size.
    """
    if buffer.dtype != np.uint8 or buffer.ndim != 1 or not buffer.flags.c_contiguous or buffer.size < layout.nbytes:
        raise ValueError(
            f"expected a contiguous uint8 array of {layout.nbytes} bytes or more, got {buffer.dtype} of {buffer.shape}"
        )


def block_view(leaf: Leaf, buffer: Bytes) -> np.ndarray[Any, Any]:
    """The leaf's array in one block, without a copy."""
    return buffer[leaf.offset : leaf.offset + leaf.nbytes].view(leaf.dtype).reshape(leaf.shape)


def check_base(layout: SpaceLayout, base: Bytes) -> None:
    """Make sure that an array can be viewed as the blocks of several environments.

    Raises:
        ValueError: It is not uint8 of shape ``(n, nbytes or more)`` with the bytes of a row side by side.
    """
    if base.dtype != np.uint8 or base.ndim != 2 or len(base) < 1 or base.shape[1] < layout.nbytes:
        raise ValueError(f"expected uint8 of shape (n, {layout.nbytes} or more), got {base.dtype} of {base.shape}")
    if base.shape[1] > 1 and base.strides[1] != 1:
        raise ValueError(f"expected the bytes of a row side by side, got a stride of {base.strides[1]}")


def batch_view(leaf: Leaf, base: Bytes) -> np.ndarray[Any, Any]:
    """One leaf of all environments, shape ``(n, *shape)``, without a copy."""
    shape = (len(base), *leaf.shape)
    if leaf.nbytes == 0:
        return np.empty(shape, leaf.dtype)
    # The last axis is contiguous, so neither call copies, whatever the distance between rows.
    view: np.ndarray[Any, Any] = base[:, leaf.offset : leaf.offset + leaf.nbytes].view(leaf.dtype).reshape(shape)
    if not np.may_share_memory(view, base):
        raise AssertionError("a view of the slots became a copy")
    return view
