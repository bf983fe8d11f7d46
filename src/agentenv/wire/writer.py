"""One environment's value into its block of bytes.

Compiled from a plan once; what runs at every step is a closure that knows its array. A value is checked against its
place, since an array of the wrong shape would otherwise be broadcast silently.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from agentenv.errors import counted
from agentenv.wire.fitting import describe, fit
from agentenv.wire.plan import Branch, Leaf, Part, SpaceLayout, VariableLeaf, name_path
from agentenv.wire.views import Bytes, block_view, check_buffer

_Store = Callable[[Any, list[object]], None]


class Writer:
    """Stores values of a space into a block.

    Attributes:
        write: ``write(value)`` stores the parts of fixed size and returns the values of the variable parts in the
            layout's order, ``[]`` if it has none. Raises ``ValueError`` with the path, what was expected and what came,
            for a wrong shape or dtype, a missing or extra key, a wrong number of items. Lists and scalars are accepted.
            A value refused may leave the block partly written.
    """

    write: Callable[[Any], list[object]]

    def __init__(self, layout: SpaceLayout, buffer: Bytes, name: str = "value") -> None:
        """Compile the writer.

        Args:
            layout: What ``plan`` gave.
            buffer: Contiguous uint8 array of at least ``layout.nbytes``.
            name: What the value is called in error texts, such as ``"observation"``.

        Raises:
            ValueError: The buffer is too small or not contiguous bytes.
        """
        check_buffer(layout, buffer)
        root = layout.root
        self.write = _write_root(root, buffer, name) if isinstance(root, Leaf) else _write_tree(root, buffer, name)


def _write_root(leaf: Leaf, buffer: Bytes, name: str) -> Callable[[Any], list[object]]:
    view, dtype, shape = block_view(leaf, buffer), leaf.dtype, leaf.shape
    array_type = np.ndarray
    if not shape:
        store = _store_scalar(leaf, buffer, name)

        def write_scalar(value: Any) -> list[object]:
            spill: list[object] = []
            store(value, spill)
            return spill

        return write_scalar

    def write(value: Any) -> list[object]:
        # Identity of dtypes is the fast case: numpy's own dtypes exist once. Anything else takes the full check.
        if type(value) is array_type and value.dtype is dtype and value.shape == shape:
            view[...] = value
        else:
            view[...] = fit(value, dtype, shape, name)
        return []

    return write


def _write_tree(part: Part, buffer: Bytes, name: str) -> Callable[[Any], list[object]]:
    store = _store(part, buffer, name)

    def write(value: Any) -> list[object]:
        spill: list[object] = []
        store(value, spill)
        return spill

    return write


def _store(part: Part, buffer: Bytes, name: str) -> _Store:
    if isinstance(part, VariableLeaf):
        return lambda value, spill: spill.append(value)
    if isinstance(part, Leaf):
        return _store_array(part, buffer, name) if part.shape else _store_scalar(part, buffer, name)
    children = [_store(child, buffer, name) for child in part.children]
    return _store_dict(part, children, name) if part.keys is not None else _store_tuple(part, children, name)


def _store_array(leaf: Leaf, buffer: Bytes, name: str) -> _Store:
    view, dtype, shape, where = block_view(leaf, buffer), leaf.dtype, leaf.shape, name_path(leaf.path, name)
    array_type = np.ndarray

    def store(value: Any, spill: list[object]) -> None:
        if type(value) is array_type and value.dtype is dtype and value.shape == shape:
            view[...] = value
        else:
            view[...] = fit(value, dtype, shape, where)

    return store


def _store_scalar(leaf: Leaf, buffer: Bytes, name: str) -> _Store:
    view, dtype, where = block_view(leaf, buffer), leaf.dtype, name_path(leaf.path, name)
    scalar, number = dtype.type, {"i": int, "u": int, "f": float}.get(dtype.kind, bool)

    def store(value: Any, spill: list[object]) -> None:
        kind = type(value)
        if kind is scalar:
            view[...] = value
            return
        if kind is number:
            try:
                view[...] = value
                return
            except OverflowError:
                pass  # fit says what was expected
        view[...] = fit(value, dtype, (), where)

    return store


def _store_dict(branch: Branch, children: list[_Store], name: str) -> _Store:
    keys, where = branch.keys or (), name_path(branch.path, name)
    pairs = list(zip(keys, children))

    def store(value: Any, spill: list[object]) -> None:
        # SyncVectorEnv takes what the space names and lets the rest be; so do we. Actions are checked before.
        check_mapping(value, keys, where, allow_extra=True)
        for key, child in pairs:
            child(value[key], spill)

    return store


def _store_tuple(branch: Branch, children: list[_Store], name: str) -> _Store:
    where = name_path(branch.path, name)

    def store(value: Any, spill: list[object]) -> None:
        check_items(value, len(children), where)
        for child, item in zip(children, value):
            child(item, spill)

    return store


def check_mapping(value: Any, keys: Sequence[Any], where: str, *, allow_extra: bool = False) -> None:
    """Make sure that a value is a mapping with these keys, and no others unless allowed.

    Raises:
        ValueError: It is not; the text names the keys that are missing or extra.
    """
    if not isinstance(value, Mapping):
        raise ValueError(f"{where}: expected a dict with the keys {list(keys)}, got {describe(value)}")
    if (allow_extra or len(value) == len(keys)) and all(key in value for key in keys):
        return
    missing, extra = [k for k in keys if k not in value], [k for k in value if k not in keys]
    parts = [f"{word} {found}" for word, found in (("missing", missing), ("extra", extra)) if found]
    raise ValueError(f"{where}: expected the keys {list(keys)}, got {' and '.join(parts)}")


def check_items(value: Any, length: int, where: str) -> None:
    """Make sure that a value is a tuple, list or array of this length.

    Raises:
        ValueError: It is not.
    """
    if not isinstance(value, (tuple, list)) and not (isinstance(value, np.ndarray) and value.ndim):
        raise ValueError(f"{where}: expected a tuple of {counted(length, 'item')}, got {describe(value)}")
    if len(value) != length:
        raise ValueError(f"{where}: expected a tuple of {counted(length, 'item')}, got {len(value)}")
