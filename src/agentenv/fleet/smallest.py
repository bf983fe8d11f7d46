"""A small element of a space: what stands for the observation of an environment that is gone."""

from __future__ import annotations

from typing import Any

from gymnasium import Space, spaces
from gymnasium.vector.utils import create_empty_array

from agentenv.wire.foreign import ForeignSpace


def smallest(space: Space[Any]) -> Any:
    """The element of a space whose parts of variable size are as small as they may be.

    A random one may be as large as the space allows, which for a text can be more than there is memory for. The parts
    of fixed size are sampled. Of a space whose class only the sandbox has, nothing is known but whether it is of text:
    an empty text stands for it.
    """
    if isinstance(space, ForeignSpace):
        return ""
    if isinstance(space, spaces.Text):
        return "".join(space.character_list[:1]) * space.min_length
    if isinstance(space, spaces.Sequence):
        return create_empty_array(space.feature_space, 0) if space.stack else ()
    if isinstance(space, spaces.Graph):
        return space.sample(num_nodes=1)
    if isinstance(space, spaces.OneOf):
        return 0, smallest(space.spaces[0])
    if isinstance(space, spaces.Dict):
        return {key: smallest(part) for key, part in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(map(smallest, space.spaces))
    return space.sample()
