"""What stands for an observation is in its space, and small however large the space is."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gymnasium import Space, spaces

from agentenv.fleet.smallest import smallest
from agentenv.wire.contains import contains
from agentenv.wire.foreign import ForeignSpace
from agentenv.wire.layout import Writer, check_variables, plan
from agentenv.wire.values import decode, encode

BOX = spaces.Box(-1, 1, (3,), np.float32)
HUGE = spaces.Text(1 << 40)
SPACES: list[Space[Any]] = [
    BOX,
    HUGE,
    spaces.Text(9, min_length=3),
    spaces.Sequence(BOX),
    spaces.Sequence(HUGE),
    spaces.Sequence(BOX, stack=True),
    spaces.Sequence(spaces.Dict(a=BOX, b=spaces.Discrete(3)), stack=True),
    spaces.Graph(BOX, None),
    spaces.Graph(BOX, spaces.Discrete(3)),
    spaces.OneOf([HUGE, BOX]),
    spaces.Dict(text=HUGE, place=BOX),
    spaces.Tuple([BOX, spaces.Tuple([spaces.Sequence(HUGE), spaces.Discrete(2)])]),
    ForeignSpace("a.Mission", "Mission()", np.dtype("U")),
    spaces.Dict(mission=ForeignSpace("a.Mission", "Mission()"), place=BOX),
]


@pytest.mark.parametrize("space", SPACES, ids=str)
def test_it_is_in_the_space_and_small(space: Space[Any]) -> None:
    value = smallest(space)
    assert contains(space, value)
    layout = plan(space)
    variable = Writer(layout, np.zeros(layout.nbytes, np.uint8)).write(value)
    sent: Any = decode(encode(variable), max_bytes=1 << 12)
    check_variables(layout, sent)
