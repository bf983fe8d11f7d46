"""Where two recordings part, and in what, told from what was recorded."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.spaces import GraphInstance

from agentenv.errors import ProtocolError
from agentenv.fleet.differences import (
    Difference,
    EpisodeRecord,
    compare_environments,
    compare_episodes,
    compare_rows,
    unlike,
)
from agentenv.fleet.digests import Digester, StepDigest, canonical
from agentenv.wire.layout import Writer, plan
from agentenv.wire.opaque import Opaque
from agentenv.wire.slot import Flag
from agentenv.wire.values import MAX_DEPTH, decode, encode

SPACE = spaces.Dict({"place": spaces.Box(-1, 1, (3,), np.float32), "key": spaces.Discrete(4)})
VALUE = {"place": np.array([0.1, 0.2, 0.3], np.float32), "key": 2}


def digest(value=VALUE, reward=1.0, flags=0, info=None) -> StepDigest:
    layout = plan(SPACE)
    block = np.zeros(layout.nbytes, np.uint8)
    Writer(layout, block).write(value)
    return Digester(layout, block).read(reward, flags, info or {})


NAMES = ("observation['key']", "observation['place']")


class Listed:
    """Rows in a list."""

    def __init__(self, *rows: tuple[bytes, StepDigest]) -> None:
        self.rows = rows

    def __len__(self) -> int:
        return len(self.rows)

    def action(self, row: int) -> tuple[bytes, bytes]:
        return self.rows[row][0], b""

    def step(self, row: int) -> StepDigest:
        return self.rows[row][1]


@pytest.mark.parametrize(
    ("changed", "what"),
    [
        ({}, ()),
        ({"value": VALUE | {"key": 3}}, ("observation['key']",)),
        ({"value": VALUE | {"place": np.array([0.1, 0.2, 0.30001], np.float32)}}, ("observation['place']",)),
        ({"value": {"place": -VALUE["place"], "key": 0}}, NAMES),
        ({"reward": np.nextafter(1.0, 2.0)}, ("reward",)),
        ({"flags": int(Flag.TERMINATED)}, ("terminated",)),
        ({"flags": int(Flag.TRUNCATED)}, ("truncated",)),
        ({"info": {"a": 1}}, ("info",)),
        ({"reward": 0.0, "info": {"a": 1}}, ("reward", "info")),
    ],
)
def test_what_differs_between_two_answers(changed: dict, what: tuple[str, ...]) -> None:
    assert unlike(NAMES, digest(), digest(**changed)) == what


def test_names_are_those_of_the_spaces_parts_in_its_own_order() -> None:
    layout = plan(SPACE)
    names = Digester(layout, np.zeros(layout.nbytes, np.uint8)).names
    assert sorted(names) == sorted(NAMES)
    assert names == tuple(f"observation[{key!r}]" for key in SPACE.spaces)


def test_flags_that_say_how_an_answer_travelled_do_not_count() -> None:
    assert digest(flags=int(Flag.RECORD | Flag.SPILLED)) == digest()


@pytest.mark.parametrize("size", [3, 2000])
def test_large_observations_count_whole(size: int) -> None:
    space = spaces.Box(-1, 1, (size,), np.float64)
    layout = plan(space)
    block = np.zeros(layout.nbytes, np.uint8)
    reader = Digester(layout, block)
    seen = {reader.read(0.0, 0, {}).digest}
    for at in range(0, layout.nbytes, 97):
        block[at] ^= 0x80
        seen.add(reader.read(0.0, 0, {}).digest)
    assert len(seen) == 1 + len(range(0, layout.nbytes, 97))


def test_the_order_of_a_set_and_the_address_of_an_object_do_not_count() -> None:
    one, other = {f"w{n}" for n in range(50)}, set()
    for n in reversed(range(50)):
        other.add(f"w{n}")
    for n in range(1000):  # other insertions, other collisions: another order
        other.add(n)
    for n in range(1000):
        other.discard(n)
    assert canonical({"seen": one}) == canonical({"seen": other})
    assert canonical({"seen": one}) != canonical({"seen": one - {"w1"}})
    objects = [Opaque("a.B", f"<a.B object at 0x7f{n}>") for n in (1, 2)]
    assert canonical(objects[0]) == canonical(objects[1]) != canonical(Opaque("a.C", "<a.C object at 0x7f1>"))


def test_neither_do_they_count_in_keys_and_in_arrays_of_objects() -> None:
    def held(value: object) -> list[object]:
        array = np.empty((1, 2), object)
        array[0, 0] = value
        return [array, GraphInstance(array, None, None), [{"in": array}]]

    words = [f"w{n}" for n in range(50)]
    one, other = set(words), set(range(1000))  # type: set[object], set[object]
    other.update(reversed(words))
    other -= set(range(1000))
    objects = [Opaque("a.B", f"<a.B object at 0x7f{n}>") for n in (1, 2, 3)]
    first, second, third = objects
    for same, alike, unlike_it in ((one, other, {"w1"}), (first, second, 1)):
        for a, b, c in zip(held(same), held(alike), held(unlike_it), strict=True):
            assert canonical(a) == canonical(b) != canonical(c)
    assert canonical({first: 1}) == canonical({second: 1}) != canonical({first: 2})
    assert canonical({(1, first): 1}) == canonical({(1, second): 1}) != canonical({(2, first): 1})
    assert canonical({first: 1, second: 2}) == canonical({second: 1, third: 2}) != canonical({first: 2})
    assert canonical({1: one}) != canonical({"1": one})


def test_what_may_be_sent_has_a_digest_however_deep_it_is() -> None:
    value: object = {1, 2}
    for _ in range(MAX_DEPTH - 1):
        value = [value]
    assert encode(value)
    assert canonical(value) == canonical(decode(encode(value), max_bytes=1 << 16))
    with pytest.raises(ValueError, match="nested deeper"):
        encode([value])
    told = digest(info={"deep": value[0]})  # type: ignore[index]  # a list
    assert told.info != digest(info={"deep": value[0][0]}).info  # type: ignore[index]  # a list of lists


def test_an_answer_that_cannot_be_put_in_order_is_a_breach_of_the_protocol() -> None:
    cycle: list[object] = []
    cycle.append(cycle)
    with pytest.raises(ProtocolError, match="cannot be put in order: ValueError"):
        digest(info={"cycle": cycle})


def test_the_first_row_that_differs() -> None:
    rows = [(b"", digest(reward=0.0)), (b"a", digest()), (b"b", digest(reward=2.0))]
    same = Listed(*rows)
    assert compare_rows("e", 3, NAMES, same, Listed(*rows)) is None
    other = Listed(rows[0], rows[1], (b"b", digest(reward=3.0)))
    assert compare_rows("e", 3, NAMES, same, other) == Difference("e", 3, 2, ("reward",), "reward: 2.0 against 3.0")
    acted = Listed(rows[0], (b"x", digest()), rows[2])
    found = compare_rows("e", 3, NAMES, same, acted)
    assert found is not None
    assert (found.step, found.what) == (1, ("action",))
    shorter = compare_rows("e", 3, NAMES, same, Listed(*rows[:2]))
    assert shorter is not None
    assert (shorter.step, shorter.what) == (2, ("length",))
    timed = Listed(rows[0], (b"a", digest(info={"t": 1.5})), rows[2])
    assert compare_rows("e", 3, NAMES, same, timed, with_info=False) is None
    told = compare_rows("e", 3, NAMES, same, timed)
    assert told is not None
    assert (told.step, told.what) == (1, ("info",))


def test_episodes_and_environments() -> None:
    one = EpisodeRecord("ab", 7, 10, 1.0, "terminated")
    held = {0: one, 1: one}
    assert compare_episodes("e", held, dict(held)) is None
    changed = compare_episodes("e", held, {0: one, 1: replace(one, digest="cd", length=11)})
    assert changed == Difference("e", 1, None, ("episode",), "length 10 against 11")
    reseeded = compare_episodes("e", held, {0: replace(one, digest="cd", seed=8), 1: one})
    assert reseeded is not None
    assert (reseeded.episode, reseeded.what) == (0, ("seed",))
    short = compare_episodes("e", held, {0: one})
    assert short is not None
    assert "second run has not finished" in short.detail
    assert compare_environments(["a", "b"], ["b", "a"]) is None
    lone = compare_environments(["a"], ["a", "c"])
    assert lone is not None
    assert (lone.env_id, lone.detail) == ("c", "only the second run has this environment")
