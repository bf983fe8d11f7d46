"""A batch of actions to all environments' blocks: one assignment per leaf, however many environments there are.

The split is that of ``gymnasium.vector.utils.iterate`` over the batched space. Everything is checked before anything is
written, so a refused batch has reached no environment.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from gymnasium import Space

from agentenv.errors import InvalidAction, counted
from agentenv.wire.fitting import describe, fit
from agentenv.wire.plan import Branch, Leaf, Part, SpaceLayout, VariableLeaf, name_path
from agentenv.wire.views import Bytes, batch_view, check_base
from agentenv.wire.writer import check_items, check_mapping

_Assignments = list[tuple[Any, Any]]
_Gather = Callable[[Any, _Assignments, list[Sequence[object]]], None]


class ActionBatch:
    """Splits a batch of actions among all environments.

    Attributes:
        write: ``write(actions)`` stores a batch, structured as ``batch_space(single_space, n)`` has it, and returns
            each environment's values of the variable parts, or None if the space has none. Everything is checked
            before anything is written; raises ``InvalidAction`` for a wrong number of actions, shape, dtype or
            structure.
    """

    write: Callable[[Any], list[list[object]] | None]

    def __init__(self, single_space: Space[Any], layout: SpaceLayout, base: Bytes) -> None:
        """Compile the writer.

        Args:
            single_space: The action space of one environment.
            layout: Its plan.
            base: uint8 of shape ``(n, nbytes or more)``, as for ``BatchView``.

        Raises:
            ValueError: ``base`` is not such an array, or the layout is of another space.
        """
        check_base(layout, base)
        if layout.space != single_space:
            raise ValueError(f"expected the layout of {single_space}, got that of {layout.space}")
        root = layout.root
        self.write = _write_leaf(root, base) if isinstance(root, Leaf) else _write_tree(root, layout, base)


def _write_leaf(leaf: Leaf, base: Bytes) -> Callable[[Any], None]:
    view = batch_view(leaf, base)
    dtype, shape = leaf.dtype, view.shape
    array_type = np.ndarray

    def write(actions: Any) -> None:
        if type(actions) is array_type and actions.dtype is dtype and actions.shape == shape:
            view[...] = actions
        else:
            view[...] = _fit_batch(actions, dtype, shape, "actions")

    return write


def _fit_batch(actions: Any, dtype: np.dtype[Any], shape: tuple[int, ...], where: str) -> np.ndarray[Any, Any]:
    try:
        return fit(actions, dtype, shape, where)
    except ValueError as error:
        try:
            count = len(actions)
        except TypeError:
            count = shape[0]
        if count != shape[0]:
            raise InvalidAction(
                f"{where}: expected {counted(shape[0], 'action')}, one per environment, got {count}"
            ) from None
        raise InvalidAction(str(error)) from None


def _write_tree(root: Part, layout: SpaceLayout, base: Bytes) -> Callable[[Any], list[list[object]] | None]:
    gather = _gather(root, base)
    num_envs, variable = len(base), layout.variable

    def write(actions: Any) -> list[list[object]] | None:
        assignments: list[tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]] = []
        columns: list[Sequence[object]] = []
        try:
            gather(actions, assignments, columns)
        except InvalidAction:
            raise
        except ValueError as error:
            raise InvalidAction(str(error)) from None
        for view, array in assignments:
            view[...] = array
        return [[column[i] for column in columns] for i in range(num_envs)] if variable else None

    return write


def _gather(part: Part, base: Bytes) -> _Gather:
    if isinstance(part, Leaf):
        return _gather_leaf(part, base)
    if isinstance(part, VariableLeaf):
        return _gather_variable(part, len(base))
    return _gather_branch(part, [_gather(child, base) for child in part.children])


def _gather_leaf(leaf: Leaf, base: Bytes) -> _Gather:
    view, where = batch_view(leaf, base), name_path(leaf.path, "actions")

    def gather(actions: Any, assignments: list[Any], columns: list[Any]) -> None:
        assignments.append((view, _fit_batch(actions, leaf.dtype, view.shape, where)))

    return gather


def _gather_variable(leaf: VariableLeaf, num_envs: int) -> _Gather:
    where = name_path(leaf.path, "actions")

    def gather(actions: Any, assignments: list[Any], columns: list[Any]) -> None:
        if not isinstance(actions, (tuple, list)):
            raise InvalidAction(f"{where}: expected a tuple of {counted(num_envs, 'value')}, got {describe(actions)}")
        if len(actions) != num_envs:
            raise InvalidAction(
                f"{where}: expected {counted(num_envs, 'action')}, one per environment, got {len(actions)}"
            )
        columns.append(actions)

    return gather


def _gather_branch(branch: Branch, children: list[_Gather]) -> _Gather:
    keys, where = branch.keys, name_path(branch.path, "actions")
    steps: Sequence[Any] = range(len(children)) if keys is None else keys
    pairs = list(zip(steps, children))

    def gather(actions: Any, assignments: list[Any], columns: list[Any]) -> None:
        if keys is None:
            check_items(actions, len(children), where)
        else:
            check_mapping(actions, keys, where)
        for step, child in pairs:
            child(actions[step], assignments, columns)

    return gather
