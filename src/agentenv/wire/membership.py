"""Whether an action lies in its space, before it is sent anywhere.

An action out of bounds is the commonest silent fault of a training that does not converge, so it is refused with the
index, the value, the bounds and the remedy. A Box can be clipped instead; a Discrete cannot, as the nearest action is
another action. Dtypes are not judged here, beyond integers where integers belong: values are.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import numpy as np
from gymnasium import Space, spaces

from agentenv.errors import InvalidAction
from agentenv.wire.contains import contains
from agentenv.wire.fitting import describe
from agentenv.wire.plan import Branch, Leaf, Part, name_path, plan
from agentenv.wire.writer import check_items, check_mapping

Mode = Literal["error", "clip"]
_Check = Callable[[Any], Any]
_CLIP_REMEDY = (
    'set invalid_action = "clip", or wrap the environment with gymnasium.wrappers.ClipAction or RescaleAction'
)
_FEW = 64


class ActionCheck:
    """Membership test for actions of one space.

    Attributes:
        apply: ``apply(actions)`` tests a batch as ``gymnasium.vector.utils.batch_space`` structures it, arrays of shape
            ``(n, *shape)``, and returns it, clipped where the mode says so. Raises ``InvalidAction`` otherwise.
        apply_one: The same for one action that is not batched.
    """

    apply: Callable[[Any], Any]
    apply_one: Callable[[Any], Any]

    def __init__(self, single_space: Space[Any], mode: Mode = "error") -> None:
        """Compile the test.

        Args:
            single_space: The action space of one environment.
            mode: ``"error"`` refuses what is outside; ``"clip"`` moves values of a Box to the nearest bound.

        Raises:
            ValueError: The mode is neither.
        """
        if mode not in ("error", "clip"):
            raise ValueError(f'expected the mode "error" or "clip", got {mode!r}')
        root = plan(single_space).root
        self.apply = _as_invalid_action(root, mode, True)
        self.apply_one = _as_invalid_action(root, mode, False)


def _as_invalid_action(root: Part, mode: Mode, batched: bool) -> _Check:
    check = _check(root, mode, batched)
    if isinstance(root, Leaf):
        return check

    def apply(actions: Any) -> Any:
        try:
            return check(actions)
        except InvalidAction:
            raise
        except ValueError as error:
            raise InvalidAction(str(error)) from None

    return apply


def _check(part: Part, mode: Mode, batched: bool) -> _Check:
    if isinstance(part, Branch):
        children = [_check(child, mode, batched) for child in part.children]
        return _check_branch(part, children)
    if not isinstance(part, Leaf):
        return _check_variable(part.space, name_path(part.path, "action"), batched)
    if isinstance(part.space, spaces.Discrete):
        return _check_discrete(part, batched)
    return _Bounds(part, mode, batched).check


def _check_branch(branch: Branch, children: list[_Check]) -> _Check:
    where, keys = name_path(branch.path, "action"), branch.keys
    if keys is None:

        def check_tuple(actions: Any) -> Any:
            check_items(actions, len(children), where)
            return tuple([child(item) for child, item in zip(children, actions)])

        return check_tuple
    pairs = list(zip(keys, children))

    def check_dict(actions: Any) -> Any:
        check_mapping(actions, keys, where)
        return {key: child(actions[key]) for key, child in pairs}

    return check_dict


def _check_variable(space: Space[Any], where: str, batched: bool) -> _Check:
    def check_one(value: Any) -> Any:
        if not contains(space, value):
            raise InvalidAction(f"{where}: expected a value of {space}, got {describe(value)}")
        return value

    def check_batch(values: Any) -> Any:
        if not isinstance(values, (tuple, list)):
            raise InvalidAction(f"{where}: expected a tuple with one value per environment, got {describe(values)}")
        for index, value in enumerate(values):
            if not contains(space, value):
                raise InvalidAction(f"{where}: action {index}: expected a value of {space}, got {describe(value)}")
        return values

    return check_batch if batched else check_one


def _as_array(value: Any, where: str, shape: tuple[int, ...], batched: bool, kinds: str) -> np.ndarray[Any, Any]:
    try:
        array = np.asarray(value)
    except Exception as error:  # __array__ may raise anything
        raise InvalidAction(f"{where}: expected an array, got {describe(value)}: {error}") from None
    if array.ndim != len(shape) + batched or array.shape[batched:] != shape:
        expected = f"({', '.join(map(str, ('n', *shape)))}{',' if not shape else ''})" if batched else str(shape)
        raise InvalidAction(f"{where}: expected shape {expected}, got {array.shape}")
    if array.dtype.kind not in kinds and array.size:
        raise InvalidAction(
            f"{where}: expected {'numbers' if 'f' in kinds else 'bool' if kinds == 'b' else 'integers'}, "
            f"got {array.dtype} ({describe(value)}); convert it with astype first"
        )
    return array


def _check_discrete(leaf: Leaf, batched: bool) -> _Check:
    space: Any = leaf.space
    where = name_path(leaf.path, "action")
    low, high = int(space.start), int(space.start) + int(space.n) - 1
    dtype = leaf.dtype
    array_type = np.ndarray

    def refuse(value: int, index: int | None) -> InvalidAction:
        place = where if index is None else f"{where}: action {index}"
        return InvalidAction(
            f"{place}: expected {low} to {high} (Discrete), got {value}; fix the policy's output range"
        )

    def check_one(value: Any) -> Any:
        number = value if type(value) is int else int(_as_array(value, where, (), False, "biu"))
        if not low <= number <= high:
            raise refuse(number, None)
        return value

    def check_batch(values: Any) -> Any:
        array = values
        if type(array) is not array_type or array.ndim != 1 or array.dtype.kind not in "iu":
            array = _as_array(values, where, (), True, "biu")
        size = len(array)
        if size == 0:
            return array
        # A list is quicker than numpy's reductions while it is short.
        numbers = array.tolist() if size <= _FEW else (int(array.min()), int(array.max()))
        if min(numbers) < low or max(numbers) > high:
            index = next(i for i, number in enumerate(array.tolist()) if not low <= number <= high)
            raise refuse(int(array[index]), index)
        return array if array.dtype == dtype else array.astype(dtype)  # loses nothing: the values are in range

    return check_batch if batched else check_one


class _Bounds:
    """The test for Box, MultiDiscrete and MultiBinary: a lower and an upper bound per element."""

    def __init__(self, leaf: Leaf, mode: Mode, batched: bool) -> None:
        space: Any = leaf.space
        self.low: np.ndarray[Any, Any]
        self.high: np.ndarray[Any, Any]
        if isinstance(space, spaces.Box):
            self.low, self.high = space.low, space.high
        elif isinstance(space, spaces.MultiDiscrete):
            self.low, self.high = space.start, space.start + (space.nvec - 1)
        else:
            self.low, self.high = np.zeros(leaf.shape, np.int8), np.ones(leaf.shape, np.int8)
        self.name = type(space).__name__
        self.dtype, self.shape, self.batched = leaf.dtype, leaf.shape, batched
        self.ndim = len(leaf.shape) + batched
        self.full_shape, self.full_low, self.full_high = self.shape, self.low, self.high
        self.kinds = {"f": "biuf", "b": "b"}.get(leaf.dtype.kind, "biu")
        self.where = name_path(leaf.path, "action")
        self.clips = mode == "clip" and isinstance(space, spaces.Box)

    def check(self, values: Any) -> Any:
        array = values
        if (
            type(array) is not np.ndarray
            or array.dtype is not self.dtype
            or array.ndim != self.ndim
            or array.shape[self.batched :] != self.shape
        ):
            array = _as_array(values, self.where, self.shape, self.batched, self.kinds)
            if array.dtype != self.dtype and self.dtype.kind == "f":
                # Judge what the environment will see: a float64 an ulp above a float32 bound is that bound.
                with np.errstate(over="ignore", under="ignore", invalid="ignore"):
                    array = array.astype(self.dtype)
        if array.shape != self.full_shape:
            self._expand(array.shape)
        # Measured for (10, 4): bounds of the batch's own shape take a third of the time of broadcast ones, and a search
        # for a zero byte a tenth of ndarray.all().
        above, below = array >= self.full_low, array <= self.full_high
        if 0 not in above.tobytes() and 0 not in below.tobytes():
            return self._cast(array)
        outside = ~(above & below)
        if self.clips:
            nans = np.isnan(array)
            if not nans.any():
                return self._cast(np.clip(array, self.low, self.high))
            outside = nans
        raise self._refuse(array, outside)

    def _expand(self, shape: tuple[int, ...]) -> None:
        """Repeat the bounds for a batch; the size of a batch rarely changes."""
        self.full_low = np.broadcast_to(self.low, shape).copy()
        self.full_high = np.broadcast_to(self.high, shape).copy()
        self.full_shape = shape

    def _cast(self, array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        # Loses nothing: the values are within bounds that have this dtype.
        return array if array.dtype is self.dtype else array.astype(self.dtype, copy=False)

    def _refuse(self, array: np.ndarray[Any, Any], outside: np.ndarray[Any, Any]) -> InvalidAction:
        index = tuple(int(i) for i in np.argwhere(outside)[0]) if self.ndim else ()
        element = index[1:] if self.batched else index
        low, high = self.low[element], self.high[element]
        place = f"{self.where}: action {index[0]}" if self.batched else self.where
        if element:
            place += f", element {list(element)}"
        value = array[index]
        remedy = "fix the policy's output range"
        if self.name == "Box" or self.clips:
            remedy = "the policy produced nan; look for diverged weights" if value != value else _CLIP_REMEDY
        return InvalidAction(f"{place}: expected {low} to {high} ({self.name}), got {value}; {remedy}")
