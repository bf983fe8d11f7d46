"""All environments' blocks as one strided array, on the host.

Row ``i`` is environment ``i``'s block, and rows lie a slot apart, so the leaf of all environments is one numpy view:
reading a batch of observations is one copy per leaf, and writing a batch of actions one assignment per leaf, however
many environments there are. What comes out has the structure, dtypes and containers of Gymnasium's ``SyncVectorEnv``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from agentenv.errors import ProtocolError, counted
from agentenv.wire.actions import ActionBatch
from agentenv.wire.membership import ActionCheck
from agentenv.wire.plan import Leaf, Part, SpaceLayout, VariableLeaf
from agentenv.wire.reader import load_leaf
from agentenv.wire.views import Bytes, batch_view, check_base

__all__ = ["ActionBatch", "ActionCheck", "BatchView"]

Variables = Sequence[Sequence[object]]
_Copy = Callable[..., Any]


class BatchView:
    """Reads values of all environments.

    Attributes:
        layout: The plan of one environment's space.
        num_envs: Number of rows.
        views: Numpy views in the structure of the space, leaves of shape ``(n, *shape)``, None for variable parts.
            They show memory the sandboxes write to.
        copy: ``copy(variable=None)`` returns the batched value, every array fresh. ``variable[i]`` are environment i's
            values of the variable parts, which become tuples over the environments. Raises ``ProtocolError`` where
            values are missing.
    """

    copy: Callable[..., Any]

    def __init__(self, layout: SpaceLayout, base: Bytes) -> None:
        """Make the views.

        Args:
            layout: The plan of one environment's space.
            base: uint8 of shape ``(n, nbytes or more)``; rows may lie any distance apart, bytes in a row may not.

        Raises:
            ValueError: ``base`` is not such an array.
        """
        check_base(layout, base)
        self.layout = layout
        self.num_envs = len(base)
        self.views = _views(layout.root, base)
        self._base = base
        expected = len(layout.variables)
        copy = _copy(layout.root, base)

        def copy_batch(variable: Variables | None = None) -> Any:
            if expected:
                _check_variables(variable, expected, len(base))
            return copy(variable)

        self.copy = copy_batch if expected else copy

    def take(self, index: int, variable: Sequence[object] = ()) -> Any:
        """One environment's value as ``Reader.read`` gives it: fresh arrays, Discrete as int.

        Args:
            index: The environment.
            variable: Its values of the variable parts, in order.

        Raises:
            ProtocolError: More or fewer variable values than the space has.
        """
        if len(variable) != len(self.layout.variables):
            raise ProtocolError(
                f"expected {counted(len(self.layout.variables), 'variable value')}, got {len(variable)}"
            )
        return _take(self.layout.root, self.views, index, variable)


def _check_variables(variable: Variables | None, expected: int, num_envs: int) -> None:
    if variable is None or len(variable) != num_envs or any(len(values) != expected for values in variable):
        raise ProtocolError(
            f"expected {counted(expected, 'variable value')} from each of {counted(num_envs, 'environment')}"
        )


def _views(part: Part, base: Bytes) -> Any:
    if isinstance(part, Leaf):
        return batch_view(part, base)
    if isinstance(part, VariableLeaf):
        return None
    children = [_views(child, base) for child in part.children]
    return tuple(children) if part.keys is None else dict(zip(part.keys, children))


def _copy(part: Part, base: Bytes) -> _Copy:
    if isinstance(part, VariableLeaf):
        return _copy_variable(part.index)
    if isinstance(part, Leaf):
        return _copy_leaf(part, base)
    children = [_copy(child, base) for child in part.children]
    if part.keys is None:

        def copy_tuple(variable: Variables | None = None) -> Any:
            return tuple([child(variable) for child in children])

        return copy_tuple
    pairs = list(zip(part.keys, children))

    def copy_dict(variable: Variables | None = None) -> Any:
        return {key: child(variable) for key, child in pairs}

    return copy_dict


def _copy_variable(index: int) -> _Copy:
    def copy(variable: Variables | None = None) -> Any:
        return tuple([values[index] for values in variable or ()])

    return copy


def _copy_leaf(leaf: Leaf, base: Bytes) -> _Copy:
    view = batch_view(leaf, base)
    raw = view.view(np.uint8) if leaf.dtype.kind == "b" else None

    def copy(variable: Variables | None = None) -> Any:
        return view.copy()

    def copy_bool(variable: Variables | None = None) -> Any:
        return raw != 0  # a sandbox may have written 2 where a bool belongs

    return copy if raw is None else copy_bool


def _take(part: Part, views: Any, index: int, variable: Sequence[object]) -> Any:
    if isinstance(part, VariableLeaf):
        return variable[part.index]
    if isinstance(part, Leaf):
        return load_leaf(part, views[index : index + 1].reshape(part.shape), False)(())
    if part.keys is None:
        return tuple([_take(child, views[i], index, variable) for i, child in enumerate(part.children)])
    pairs = zip(part.keys, part.children)
    return {key: _take(child, views[key], index, variable) for key, child in pairs}
