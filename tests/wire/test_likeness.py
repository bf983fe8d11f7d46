"""Which values come back out of a block as they went in, and which must travel as they are."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gymnasium import Space, spaces
from hypothesis import given
from hypothesis import strategies as st

from agentenv.testing.exact import assert_same
from agentenv.testing.spaces import any_space, samples
from agentenv.wire.layout import Reader, Writer, plan
from agentenv.wire.likeness import is_plain, is_read_back
from agentenv.wire.values import decode, encode

DISCRETE = spaces.Discrete(3)
BOX = spaces.Box(-1, 1, (2,), np.float32)
DICT = spaces.Dict({"a": DISCRETE, "b": BOX})
ROW = np.zeros(2, np.float32)


class Own(np.ndarray[Any, Any]):
    """An array class that only the environment has."""


@pytest.mark.parametrize(
    ("space", "value", "same", "plain"),
    [
        (DISCRETE, 1, True, True),
        (DISCRETE, np.int64(1), False, True),
        (DISCRETE, True, False, True),
        (BOX, ROW, True, True),
        (BOX, ROW.astype(np.float64), False, True),
        (BOX, [0.0, 1], False, True),
        (BOX, ROW.view(Own), False, False),
        (BOX, [0.0, "x"], False, False),
        (spaces.Box(0, 1, ()), np.float32(0), False, True),
        (DICT, {"a": 1, "b": ROW}, True, True),
        (DICT, {"b": ROW, "a": 1}, False, True),
        (DICT, {"a": 1, "b": ROW.view(Own)}, False, False),
        (spaces.Tuple([DISCRETE, DISCRETE]), (1, 2), True, True),
        (spaces.Tuple([DISCRETE, DISCRETE]), [1, 2], False, True),
        (spaces.Text(5), "abc", True, True),
    ],
)
def test_values(space: Space[Any], value: Any, same: bool, plain: bool) -> None:
    root = plan(space).root
    assert (is_read_back(root, value), is_plain(root, value)) == (same, plain)


@given(st.data())
def test_what_is_said_to_come_back_does_and_what_is_plain_survives_the_codec(data: st.DataObject) -> None:
    space = data.draw(any_space())
    layout = plan(space)
    buffer = np.zeros(layout.nbytes, np.uint8)
    for value in data.draw(samples(space, 2)):
        variable = Writer(layout, buffer).write(value)
        if is_read_back(layout.root, value):
            assert_same(Reader(layout, buffer).read(variable), value)
        assert is_plain(layout.root, value)
        assert_same(decode(encode(value), max_bytes=1 << 24), value)
