"""Final observations as a sandbox may send them, honestly or not."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from agentenv.errors import ProtocolError
from agentenv.fleet.finals import Finals
from agentenv.wire.layout import Writer, plan
from agentenv.wire.values import encode

SPACE = spaces.Dict({"cell": spaces.Discrete(5), "row": spaces.Box(-1, 1, (2,), np.float32), "text": spaces.Text(4)})
ROW = np.array([0.5, -0.5], np.float32)


@pytest.fixture
def finals() -> Finals:
    layout = plan(SPACE)
    base = np.zeros((2, layout.nbytes), np.uint8)
    Writer(layout, base[1]).write({"cell": 3, "row": ROW, "text": "abc"})
    return Finals(layout, base, max_bytes=1 << 20)


def test_it_is_read_from_its_own_area_and_the_variable_parts(finals: Finals) -> None:
    observation, info = finals.read(1, encode([{"k": 1}, ["abc"], None]))
    assert (observation["cell"], observation["text"], info) == (3, "abc", {"k": 1})
    assert type(observation["cell"]) is int
    np.testing.assert_array_equal(observation["row"], ROW)


def test_it_may_come_as_the_environment_gave_it(finals: Finals) -> None:
    given = {"cell": np.int64(2), "row": [0, 0.5], "text": "ab"}
    observation, _ = finals.read(0, encode([{}, ["ab"], [given]]))
    assert observation == given
    assert type(observation["cell"]) is np.int64


@pytest.mark.parametrize(
    "value",
    [
        [{}, ["abc"]],
        [{}, ["abc"], None, None],
        {"info": {}},
        [{}, [], None],
        [{}, ["abc"], []],
        [{}, ["abc"], [1, 2]],
        [{}, ["abc"], [{"cell": 1, "row": ROW}]],
        [{}, ["abc"], [{"cell": 1, "row": np.zeros(3, np.float32), "text": "abc"}]],
        [{}, ["abc"], [{"cell": "1", "row": ROW, "text": "abc"}]],
        [{}, ["abc"], [{"cell": 1, "row": ROW, "text": 7}]],
        [[], ["abc"], None],
        [{1: 2}, ["abc"], None],
    ],
)
def test_lies_are_refused(finals: Finals, value: Any) -> None:
    with pytest.raises(ProtocolError):
        finals.read(0, encode(value))


def test_what_is_no_record_at_all_is_refused(finals: Finals) -> None:
    for payload in (None, 5, b"", b"\xff" * 40, encode([{}, ["abc"], None])[:-1] + b"\x00\x00"):
        with pytest.raises(ProtocolError):
            finals.read(0, payload)
