"""One environment's value out of its block of bytes.

Whatever is read is a fresh copy, since the block is memory the other side still writes to. Values of variable size come
from elsewhere and are put back in their places here; whether they are in their spaces is for the caller to ask.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from gymnasium import Space, spaces

from agentenv.errors import ProtocolError, counted
from agentenv.wire.contains import contains
from agentenv.wire.fitting import describe
from agentenv.wire.plan import Leaf, Part, SpaceLayout, VariableLeaf
from agentenv.wire.views import Bytes, block_view, check_buffer

_Load = Callable[[Sequence[object]], Any]


class Reader:
    """Makes values of a space from a block.

    Attributes:
        read: ``read(variable=())`` returns the value: arrays as fresh copies, Discrete as int, Dict as dict, Tuple as
            tuple, and ``variable`` put back in the layout's order. Raises ``ProtocolError`` if there are more or fewer
            of these than the layout has.
    """

    read: Callable[..., Any]

    def __init__(
        self, layout: SpaceLayout, buffer: Bytes, numpy_scalars: bool = False, keep_zero_d: bool = False
    ) -> None:
        """Compile the reader.

        Args:
            layout: What ``plan`` gave.
            buffer: Contiguous uint8 array of at least ``layout.nbytes``.
            numpy_scalars: Return Discrete and 0-d values as numpy scalars, as iterating over a batch of actions does.
            keep_zero_d: With ``numpy_scalars``, only Discrete; 0-d values of other spaces stay arrays, as sampled.

        Raises:
            ValueError: The buffer is too small or not contiguous bytes.
        """
        check_buffer(layout, buffer)
        load = _load(layout.root, buffer, numpy_scalars, keep_zero_d)
        expected = len(layout.variables)

        def read(variable: Sequence[object] = ()) -> Any:
            if len(variable) != expected:
                raise ProtocolError(f"expected {counted(expected, 'value')} of variable size, got {len(variable)}")
            return load(variable)

        self.read = read


def check_variable(space: Space[Any], value: object) -> None:
    """Make sure that a value from a sandbox is in the space it claims to be from.

    Of a text only that it is one: many environments return sentences from a ``Text`` whose charset, by default letters
    and digits, has no blank, and Gymnasium lets them.

    Raises:
        ProtocolError: It is not.
    """
    if not (isinstance(value, str) if isinstance(space, spaces.Text) else contains(space, value)):
        raise ProtocolError(f"expected a value of {space}, got {describe(value)}"[:500])


def check_variables(layout: SpaceLayout, values: Sequence[object]) -> None:
    """Make sure that the values of all variable parts are in their spaces.

    Raises:
        ProtocolError: One is not, or there are more or fewer than the layout has.
    """
    if len(values) != len(layout.variables):
        raise ProtocolError(f"expected {counted(len(layout.variables), 'value')} of variable size, got {len(values)}")
    for leaf, value in zip(layout.variables, values):
        check_variable(leaf.space, value)


def _load(part: Part, buffer: Bytes, numpy_scalars: bool, keep_zero_d: bool) -> _Load:
    if isinstance(part, VariableLeaf):
        index = part.index
        return lambda variable: variable[index]
    if isinstance(part, Leaf):
        scalar = numpy_scalars and (isinstance(part.space, spaces.Discrete) or not keep_zero_d)
        return load_leaf(part, block_view(part, buffer), scalar)
    children = [_load(child, buffer, numpy_scalars, keep_zero_d) for child in part.children]
    if part.keys is None:
        return lambda variable: tuple([child(variable) for child in children])
    pairs = list(zip(part.keys, children))
    return lambda variable: {key: child(variable) for key, child in pairs}


def load_leaf(leaf: Leaf, view: np.ndarray[Any, Any], numpy_scalars: bool) -> _Load:
    """A function that copies one fixed part out of its view, as int, numpy scalar or fresh array."""
    if leaf.dtype.kind == "b":
        # The sandbox may have written 2 where a bool belongs, and numpy computes nonsense with that.
        raw = view.view(np.uint8)
        if leaf.shape or numpy_scalars:
            return lambda variable: raw != 0
        return lambda variable: np.asarray(raw != 0)
    if leaf.shape:
        return lambda variable: view.copy()
    if numpy_scalars:
        return lambda variable: view[()]
    if isinstance(leaf.space, spaces.Discrete):
        return lambda variable: view.item()
    return lambda variable: view.copy()
