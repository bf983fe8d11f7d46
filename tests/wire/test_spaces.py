"""Spaces survive their description, and a hostile description is refused before it costs anything."""

from __future__ import annotations

import copy
import json
import tracemalloc
from typing import Any

import numpy as np
import pytest
from gymnasium import Space, spaces
from hypothesis import given
from hypothesis import strategies as st

from agentenv.errors import ProtocolError
from agentenv.testing.exact import assert_same
from agentenv.testing.spaces import any_space
from agentenv.wire.spaces import ForeignSpace, describe, first_difference, rebuild


class Mission(Space[str]):
    def __init__(self) -> None:
        super().__init__(dtype=str)

    def contains(self, x: Any) -> bool:
        return x == "go"

    def __repr__(self) -> str:
        return "Mission(go)"


class Narrow(spaces.Box):
    pass


def through_json(space: Space[Any], **options: bool) -> Space[Any]:
    return rebuild(json.loads(json.dumps(describe(space, **options))))


@given(any_space())
def test_any_space_survives(space: Space[Any]) -> None:
    got = through_json(space)
    assert got == space
    assert first_difference(got, space) is None
    assert describe(got) == describe(space)


@given(any_space(), st.integers(0, 1000))
def test_rebuilt_space_samples_the_same(space: Space[Any], seed: int) -> None:
    got = through_json(space)
    space.seed(seed)
    got.seed(seed)
    for _ in range(3):
        assert_same(got.sample(), space.sample())


@pytest.mark.parametrize(
    "space",
    [
        spaces.Box(-np.inf, np.inf, (2,), np.float16),
        spaces.Box(-np.inf, 5, (2,), np.int32),
        spaces.Box(0, 2**64 - 1, (2,), np.uint64),
        spaces.Box(-(2**63), 2**63 - 1, (), np.int64),
        spaces.Box(np.array([-0.0, 0.0], ">f8"), np.array([0.1, np.inf], ">f8"), dtype=">f8"),
        spaces.Box(0, 1, (0, 4)),
        spaces.Text(3, charset="zyx\ud83d\ude00"),
        spaces.Text(4, min_length=0, charset=""),
        spaces.Dict({"b": spaces.Discrete(2), "a": spaces.Discrete(3)}, sort_keys=False),
        spaces.Dict({1: spaces.Discrete(2), 2: spaces.Tuple([])}),
        spaces.Dict({}),
        spaces.MultiDiscrete(np.array([[2, 3], [4, 5]], np.uint8), dtype=np.uint8),
        spaces.Discrete(2**62, start=-(2**62)),
    ],
    ids=str,
)
def test_edge_survives_exactly(space: Space[Any]) -> None:
    got = through_json(space)
    assert got == space
    assert_same(attributes(got), attributes(space))


def attributes(space: Space[Any]) -> dict[str, Any]:
    """The numbers and texts a space is made of; not its generator, nor what its repr has cached."""
    kinds = (np.ndarray, np.generic, int, str)
    return {k: v for k, v in sorted(vars(space).items()) if isinstance(v, kinds) and not k.endswith("_repr")}


def test_unsorted_keys_stay_unsorted_in_batches() -> None:
    from gymnasium.vector.utils import batch_space

    for sort_keys in (True, False):
        space = spaces.Dict({"b": spaces.Discrete(2), "a": spaces.Discrete(3)}, sort_keys=sort_keys)
        assert list(batch_space(through_json(space), 2)) == list(batch_space(space, 2))


def test_one_repeated_bound_is_sent_once() -> None:
    text = json.dumps(describe(spaces.Box(0, 255, (210, 160, 3), np.uint8)))
    assert len(text) < 300


def test_subclass_is_described_as_its_base() -> None:
    got = through_json(Narrow(0, 1, (2,)))
    assert type(got) is spaces.Box


def test_unknown_class_is_named() -> None:
    with pytest.raises(TypeError, match=r"class .*Mission; expected one of Box, Discrete"):
        describe(spaces.Dict({"mission": Mission()}))
    with pytest.raises(TypeError, match=r"key \(1, 2\)"):
        describe(spaces.Dict({(1, 2): spaces.Discrete(2)}))


def test_foreign_space_stands_in_when_allowed() -> None:
    got = through_json(spaces.Dict({"mission": Mission()}), allow_foreign=True)
    foreign = got["mission"]  # type: ignore[index]  # a Dict space
    assert isinstance(foreign, ForeignSpace)
    assert foreign.type_name.endswith("Mission")
    assert repr(foreign) == "ForeignSpace(Mission(go))"
    assert foreign.contains("anything")
    assert not foreign.contains(1)
    assert got == through_json(got)
    assert first_difference(got, through_json(got)) is None
    assert copy.deepcopy(foreign) == foreign
    with pytest.raises(NotImplementedError, match="only inside the sandbox"):
        foreign.sample()


BOX = describe(spaces.Box(0, 1, (2,)))
STACKED: dict[str, Any] = {"type": "Sequence", "stack": True, "space": BOX}
HOSTILE: dict[str, object] = {
    "not a dict": [1],
    "no type": {},
    "unknown type": {"type": "os.system"},
    "type not text": {"type": ["Box"]},
    "object dtype": BOX | {"dtype": "|O"},
    "text dtype": BOX | {"dtype": "<U4"},
    "shape not a list": BOX | {"shape": 2},
    "negative shape": BOX | {"shape": [-2]},
    "bool in shape": BOX | {"shape": [True]},
    "huge shape": BOX | {"shape": [1 << 40]},
    "overflowing shape": BOX | {"shape": [1 << 47] * 30},
    "too many dimensions": BOX | {"shape": [1] * 33},
    "bound of the wrong size": BOX | {"low": "AAAAAAAA" * 3},
    "bound not base64": BOX | {"low": "\u00e9"},
    "bound not text": BOX | {"low": 0},
    "bound nan": BOX | {"low": "AADAfw=="},
    "low above high": BOX | {"low": BOX["high"], "high": BOX["low"]},
    "flag that is 2": BOX | {"bounded_below": "AgI="},
    "n zero": {"type": "Discrete", "dtype": "<i8", "n": 0, "start": 0},
    "n too large": {"type": "Discrete", "dtype": "|i1", "n": 300, "start": 0},
    "n enormous": {"type": "Discrete", "dtype": "<i8", "n": 10**5000, "start": 0},
    "n float": {"type": "Discrete", "dtype": "<i8", "n": 2.0, "start": 0},
    "n bool": {"type": "Discrete", "dtype": "<i8", "n": True, "start": 0},
    "discrete floats": {"type": "Discrete", "dtype": "<f8", "n": 2, "start": 0},
    "binary of 2**60": {"type": "MultiBinary", "n": 1 << 60},
    "binary of -1": {"type": "MultiBinary", "n": -1},
    "binary of a product": {"type": "MultiBinary", "n": [1 << 20, 1 << 20]},
    "text inverted": {"type": "Text", "min_length": 3, "max_length": 2, "charset": [97]},
    "text that must be long": {"type": "Text", "min_length": 1 << 40, "max_length": 1 << 41, "charset": [97]},
    "character beyond Unicode": {"type": "Text", "min_length": 0, "max_length": 2, "charset": [1 << 40]},
    "characters as text": {"type": "Text", "min_length": 0, "max_length": 2, "charset": "abc"},
    "dict key twice": {"type": "Dict", "sort_keys": True, "spaces": [["a", BOX], ["a", BOX]]},
    "dict key a list": {"type": "Dict", "sort_keys": True, "spaces": [[["a"], BOX]]},
    "dict without sort_keys": {"type": "Dict", "spaces": []},
    "empty OneOf": {"type": "OneOf", "spaces": []},
    "sequence of nothing": {"type": "Sequence", "stack": False, "space": None},
    "graph of nothing": {"type": "Graph", "nodes": None, "edges": None},
    "too many nodes": {"type": "Tuple", "spaces": [{"type": "Tuple", "spaces": []}] * 10_000},
    "nvec zero": {
        "type": "MultiDiscrete",
        "dtype": "<i8",
        "shape": [1],
        "nvec": "AAAAAAAAAAA=",
        "start": "AAAAAAAAAAA=",
    },
    "foreign with an object dtype": {"type": "Foreign", "name": "a", "text": "b", "dtype": "|O"},
}


@pytest.mark.parametrize("name", HOSTILE)
def test_malformed_description_is_a_protocol_error(name: str) -> None:
    with pytest.raises(ProtocolError):
        rebuild(HOSTILE[name])


def wrap(levels: int, make: Any) -> Any:
    inner: Any = BOX
    for _ in range(levels):
        inner = make(inner)
    return inner


@pytest.mark.parametrize(
    "make",
    [
        lambda inner: {"type": "Tuple", "spaces": [inner]},
        lambda inner: {"type": "Sequence", "stack": True, "space": inner},
        lambda inner: {"type": "Graph", "nodes": inner, "edges": None},
    ],
    ids=["Tuple", "stacked Sequence", "Graph"],
)
@pytest.mark.parametrize("levels", [20, 100, 100_000])
def test_deep_description_stays_cheap(make: Any, levels: int) -> None:
    description = wrap(levels, make)
    tracemalloc.start()
    try:
        if levels == 20 and make(BOX)["type"] == "Tuple":
            rebuild(description)
        else:
            with pytest.raises(ProtocolError):
                rebuild(description)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
        while type(description) is dict:  # freed level by level, since nested deallocation recurses
            description = (
                description.get("nodes") or description.get("space") or (description.get("spaces") or [None])[0]
            )
    assert peak < 1 << 24


def test_memory_limit_counts_what_will_be_allocated() -> None:
    description = describe(spaces.Box(0, 1, (1000,), np.float32))
    assert rebuild(description, max_bytes=10_000) == spaces.Box(0, 1, (1000,), np.float32)
    with pytest.raises(ProtocolError, match="1 bytes more than allowed"):
        rebuild(description, max_bytes=9_999)
    with pytest.raises(ProtocolError, match="bytes more than allowed"):
        rebuild(STACKED | {"space": description}, max_bytes=10_000)


@given(any_space(), st.data())
def test_mutated_description_is_refused_or_rebuilt(space: Space[Any], data: st.DataObject) -> None:
    description = describe(space)
    node: Any = description
    while True:
        keys = list(node) if isinstance(node, dict) else list(range(len(node)))
        key = data.draw(st.sampled_from(keys))
        if isinstance(node[key], (dict, list)) and node[key] and data.draw(st.booleans()):
            node = node[key]
            continue
        node[key] = data.draw(
            st.none()
            | st.booleans()
            | st.integers(-3, 300)
            | st.floats()
            | st.text(max_size=3)
            | st.just([])
            | st.just({})
        )
        break
    try:
        got = rebuild(description)
    except ProtocolError:
        return
    assert rebuild(describe(got)) == got


@given(any_space(), any_space())
def test_difference_is_found_exactly_when_spaces_differ(a: Space[Any], b: Space[Any]) -> None:
    assert (first_difference(a, b) is None) == (a == b)
    assert (first_difference(b, a) is None) == (b == a)


@pytest.mark.parametrize(
    ("a", "b", "words"),
    [
        (
            spaces.Box(np.array([0, 0, -1.0]), 1, dtype=np.float64),
            spaces.Box(np.array([0, 0, -2.0]), 1, dtype=np.float64),
            "low[2]: -1.0 against -2.0",
        ),
        (spaces.Box(0, 1, ()), spaces.Box(0, 2, ()), "high: 1.0 against 2.0"),
        (spaces.Box(0, 1, (2,)), spaces.Box(0, 1, (3,)), "shape: (2,) against (3,)"),
        (spaces.Box(0, 1, (2,)), spaces.Box(0, 1, (2,), np.float64), "dtype: float32 against float64"),
        (spaces.Discrete(3), spaces.Discrete(4), "n: 3 against 4"),
        (spaces.Discrete(3), spaces.MultiBinary(3), "Discrete against MultiBinary"),
        (spaces.Dict(a=spaces.Discrete(2)), spaces.Dict(b=spaces.Discrete(2)), "Dict of ['a'] against ['b']"),
        (spaces.Dict(a=spaces.Discrete(2)), spaces.Dict(a=spaces.Discrete(2, start=1)), "['a']: start: 0 against 1"),
        (spaces.Tuple([]), spaces.Tuple([spaces.Discrete(2)]), "Tuple of nothing against [0]"),
        (spaces.Text(2, charset="ab"), spaces.Text(2, charset="ac"), "characters: ab against ac"),
        (spaces.MultiDiscrete([2, 3]), spaces.MultiDiscrete([2, 4]), "nvec[1]: 3 against 4"),
        (
            spaces.Sequence(spaces.Discrete(2)),
            spaces.Sequence(spaces.Discrete(2), stack=True),
            "stack: False against True",
        ),
        (
            spaces.Graph(spaces.Discrete(2), None),
            spaces.Graph(spaces.Discrete(2), spaces.Discrete(2)),
            "Graph of nodes against nodes, edges",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_difference_in_words(a: Space[Any], b: Space[Any], words: str) -> None:
    assert first_difference(a, b) == words
