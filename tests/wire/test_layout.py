"""A value written into a block comes out the same, and one that does not fit is refused by name."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from gymnasium import Space, spaces
from hypothesis import given
from hypothesis import strategies as st

from agentenv.errors import ProtocolError
from agentenv.testing.exact import assert_same
from agentenv.testing.spaces import any_space, samples
from agentenv.wire.layout import Reader, Writer, check_variable, check_variables, plan
from agentenv.wire.spaces import ForeignSpace


def pair(space: Space[Any], numpy_scalars: bool = False) -> tuple[Writer, Reader, np.ndarray[Any, Any]]:
    layout = plan(space)
    buffer = np.zeros(layout.nbytes, np.uint8)
    return Writer(layout, buffer, "observation"), Reader(layout, buffer, numpy_scalars), buffer


def as_read(space: Space[Any], value: Any) -> Any:
    """What a reader returns for a sampled value: the same, with Discrete as int."""
    if isinstance(space, spaces.Dict):
        return {key: as_read(part, value[key]) for key, part in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(as_read(part, item) for part, item in zip(space.spaces, value, strict=True))
    if isinstance(space, spaces.Box):
        return np.asarray(value)  # Box samples 0-d values as scalars
    return int(value) if isinstance(space, spaces.Discrete) else value


@given(any_space(), st.data())
def test_any_value_survives(space: Space[Any], data: st.DataObject) -> None:
    writer, reader, _ = pair(space)
    for value in data.draw(samples(space, 2)):
        assert_same(reader.read(writer.write(value)), as_read(space, value))


@given(any_space())
def test_leaves_are_aligned_and_apart(space: Space[Any]) -> None:
    layout = plan(space)
    end = 0
    for leaf in layout.leaves:
        assert leaf.offset >= end
        assert leaf.offset % (64 if leaf.nbytes >= 64 else 8) == 0
        assert leaf.nbytes == np.empty(leaf.shape, leaf.dtype).nbytes
        end = leaf.offset + leaf.nbytes
    assert end <= layout.nbytes
    assert layout.nbytes % 8 == 0
    assert layout.variable == bool(layout.variables)


def test_plan_of_a_nested_space() -> None:
    space = spaces.Dict(
        a=spaces.Discrete(3),
        b=spaces.Tuple([spaces.Text(3), spaces.Box(0, 255, (10, 10), np.uint8)]),
        c=spaces.Box(0, 1, (), bool),
        d=ForeignSpace("x.Y", "Y()"),
    )
    layout = plan(space)
    assert [(leaf.path, leaf.dtype.str, leaf.shape, leaf.offset, leaf.nbytes) for leaf in layout.leaves] == [
        (("a",), "<i8", (), 0, 8),
        (("b", 1), "|u1", (10, 10), 64, 100),
        (("c",), "|b1", (), 168, 1),
    ]
    assert [leaf.path for leaf in layout.variables] == [("b", 0), ("d",)]
    assert layout.nbytes == 176


BOX = spaces.Box(-1, 1, (2,))


@pytest.mark.parametrize(
    ("space", "value", "expected"),
    [
        (BOX, [0.5, 1], np.array([0.5, 1], np.float32)),
        (BOX, np.array([0.5, 1], np.float64), np.array([0.5, 1], np.float32)),
        (BOX, np.array([0, 1]), np.array([0, 1], np.float32)),
        (BOX, np.array([0.5, 1], ">f4"), np.array([0.5, 1], np.float32)),
        (BOX, (True, False), np.array([1, 0], np.float32)),
        (spaces.Box(0, 9, (2,), np.uint8), [1, 2], np.array([1, 2], np.uint8)),
        (spaces.Box(0, 1, ()), 0.25, np.array(0.25, np.float32)),
        (spaces.Box(0, 1, ()), np.float64(0.25), np.array(0.25, np.float32)),
        (spaces.Box(0, 1, ()), 1, np.array(1, np.float32)),
        (spaces.Box(0, 1, (), bool), True, np.array(True)),
        (spaces.Box(0, 1, (0,), np.int32), [], np.zeros(0, np.int32)),
        (spaces.Discrete(5), 3, 3),
        (spaces.Discrete(5), True, 1),
        (spaces.Discrete(5), np.int64(3), 3),
        (spaces.Discrete(5), np.int8(3), 3),
        (spaces.Discrete(5), np.array(3), 3),
        (spaces.Discrete(5, dtype=np.uint8), 3, 3),
        (spaces.MultiBinary(2), [0, 1], np.array([0, 1], np.int8)),
        (spaces.MultiDiscrete([3, 3]), (0, 1), np.array([0, 1])),
        (spaces.Tuple([spaces.Discrete(2), spaces.Discrete(2)]), [1, 0], (1, 0)),
        (spaces.Dict(b=spaces.Discrete(2), a=spaces.Text(2)), {"a": "x", "b": 1}, {"b": 1, "a": "x"}),
        (spaces.Dict(b=spaces.Discrete(2)), {"b": 1, "not in the space": 2}, {"b": 1}),
    ],
)
def test_lenient_forms_are_accepted(space: Space[Any], value: object, expected: object) -> None:
    writer, reader, _ = pair(space)
    assert_same(reader.read(writer.write(value)), expected)


NESTED = spaces.Dict({"id": spaces.Text(3), "pos": spaces.Tuple([BOX, spaces.Discrete(2)])})


@pytest.mark.parametrize(
    ("space", "value", "text"),
    [
        (BOX, np.zeros(3, np.float32), "observation: expected shape (2,), got shape (3,) (ndarray)"),
        (BOX, np.zeros((2, 1), np.float32), "expected shape (2,), got shape (2, 1)"),
        (BOX, 0.5, "expected shape (2,), got shape () (float 0.5)"),
        (BOX, "no", "expected shape (2,), got shape () (str no)"),
        (BOX, ["a", "b"], "expected dtype float32, got <U1 (list)"),
        (BOX, [object(), 1], "expected dtype float32, got object (list)"),
        (BOX, [[1], [1, 2]], "that numpy cannot convert"),
        (BOX, np.zeros(2, complex), "expected dtype float32, got complex128"),
        (BOX, None, "expected shape (2,), got shape () (NoneType None)"),
        (spaces.Box(0, 9, (2,), np.uint8), np.array([1, 2]), "expected dtype uint8, got int64 (ndarray)"),
        (spaces.Box(0, 9, (2,), np.uint8), [1, 256], "expected uint8, 0 to 255, got 256"),
        (spaces.Box(0, 9, (2,), np.int8), np.array([1, -129]), "expected int8, -128 to 127, got -129"),
        (spaces.Box(0, 9, (2,), np.uint8), np.zeros(2), "expected dtype uint8, got float64"),
        (spaces.Box(0, 1, (2,), bool), [0, 1], "expected dtype bool, got int64"),
        (spaces.Box(0, 1, (), bool), 1, "expected dtype bool, got int64 (int 1)"),
        (spaces.Discrete(5), 1.0, "expected dtype int64, got float64 (float 1.0)"),
        (spaces.Discrete(5), np.array([1]), "expected shape (), got shape (1,)"),
        (spaces.Discrete(5), None, "expected dtype int64, got object (NoneType None)"),
        (spaces.Discrete(5), 2**70, "expected dtype int64"),
        (spaces.Discrete(5, dtype=np.int8), 200, "expected int8, -128 to 127, got 200"),
        (NESTED, {"pos": (np.zeros(3), 1), "id": "a"}, "observation['pos'][0]: expected shape (2,), got shape (3,)"),
        (NESTED, {"pos": (np.zeros(2),), "id": "a"}, "observation['pos']: expected a tuple of 2 items, got 1"),
        (NESTED, {"pos": 3, "id": "a"}, "observation['pos']: expected a tuple of 2 items, got int 3"),
        (NESTED, {"pos": (np.zeros(2), 1)}, "observation: expected the keys ['id', 'pos'], got missing ['id']"),
        (NESTED, {"pos": (np.zeros(2), 1), "x": 1}, "got missing ['id'] and extra ['x']"),
        (NESTED, [1], "observation: expected a dict with the keys ['id', 'pos'], got list"),
    ],
    ids=lambda value: value[:40] if isinstance(value, str) else "",
)
def test_what_does_not_fit_is_refused_by_name(space: Space[Any], value: object, text: str) -> None:
    writer, _, _ = pair(space)
    with pytest.raises(ValueError, match=re.escape(text)):
        writer.write(value)


def test_same_kind_is_what_numpy_refuses() -> None:
    dtypes = ["?", "i1", "i4", "i8", "u1", "u4", "u8", "f2", "f4", "f8"]
    for target in dtypes:
        writer, _, _ = pair(spaces.Box(0, 1, (2,), np.dtype(target)))
        for source in dtypes:
            value = np.ones(2, source)
            try:
                np.stack([value], out=np.zeros((1, 2), target))
                accepted = True
            except TypeError:
                accepted = False
            if accepted:
                writer.write(value)
            else:
                with pytest.raises(ValueError, match="expected dtype"):
                    writer.write(value)


def test_numpy_scalars_where_asked() -> None:
    space = spaces.Tuple([spaces.Discrete(3, dtype=np.int16), spaces.Box(0, 1, ()), spaces.Box(0, 1, (), bool), BOX])
    writer, reader, _ = pair(space, numpy_scalars=True)
    writer.write((2, 0.5, True, [0, 1]))
    assert_same(reader.read(), (np.int16(2), np.float32(0.5), np.True_, np.array([0, 1], np.float32)))


def test_read_is_a_copy() -> None:
    writer, reader, buffer = pair(BOX)
    writer.write([1, 1])
    first = reader.read()
    buffer[:] = 0
    assert first.tolist() == [1, 1]
    first[:] = 5
    assert reader.read().tolist() == [0, 0]


def test_hostile_bool_is_a_proper_bool() -> None:
    _, reader, buffer = pair(spaces.Tuple([spaces.Box(0, 1, (3,), bool), spaces.Box(0, 1, (), bool)]))
    buffer[:] = 255
    assert_same(reader.read(), (np.ones(3, bool), np.array(True)))


def test_variable_values_must_be_all_there() -> None:
    _, reader, _ = pair(NESTED)
    for values in ([], ["a", "b"]):
        with pytest.raises(ProtocolError, match=f"expected 1 value of variable size, got {len(values)}"):
            reader.read(values)
        with pytest.raises(ProtocolError, match="expected 1 value"):
            check_variables(plan(NESTED), values)
    check_variables(plan(NESTED), ["abc"])


@pytest.mark.parametrize(
    ("space", "value"),
    [
        (spaces.Text(2), None),
        (spaces.Sequence(spaces.Discrete(2)), (1, 2)),
        (spaces.Sequence(spaces.Discrete(2), stack=True), 3),
        (spaces.Graph(BOX, None), (1, 2, 3)),
        (spaces.OneOf([spaces.Discrete(2)]), (5, 0)),
        (spaces.OneOf([spaces.Discrete(2)]), (0, 2)),
        (
            spaces.Graph(BOX, BOX),
            spaces.GraphInstance(np.zeros((1, 2), np.float32), np.zeros((1, 2), np.float32), np.array([[0, 1]])),
        ),
        (spaces.Graph(BOX, None), spaces.GraphInstance(None, None, None)),
        (spaces.Graph(BOX, None), spaces.GraphInstance(np.zeros((1, 3)), None, None)),
        (spaces.Sequence(BOX), ({"a": 1},)),
        (spaces.OneOf([spaces.Tuple([spaces.Discrete(2)])]), (0, 1)),
        (spaces.OneOf([spaces.Dict(a=BOX)]), (0, {"b": 1})),
        (ForeignSpace("a.B", "B()", np.dtype(str)), b"x"),
    ],
    ids=str,
)
def test_variable_value_outside_its_space_is_a_protocol_error(space: Space[Any], value: object) -> None:
    with pytest.raises(ProtocolError, match="expected a value of"):
        check_variable(space, value)


def test_a_text_may_hold_what_its_charset_does_not() -> None:
    check_variable(spaces.Text(8), "go to the red door!")


@given(any_space(), st.data())
def test_sampled_variable_values_are_inside(space: Space[Any], data: st.DataObject) -> None:
    writer, _, _ = pair(space)
    (value,) = data.draw(samples(space, 1))
    check_variables(plan(space), writer.write(value))


@pytest.mark.parametrize(
    "buffer",
    [np.zeros(7, np.uint8), np.zeros(16, np.uint8)[::2], np.zeros(8, np.int8), np.zeros((8, 1), np.uint8)],
    ids=["short", "strided", "int8", "2-D"],
)
def test_buffer_is_checked(buffer: np.ndarray[Any, Any]) -> None:
    for kind in (Writer, Reader):
        with pytest.raises(ValueError, match="expected a contiguous uint8 array of 8 bytes or more"):
            kind(plan(BOX), buffer)


def test_scalars_of_0d_items_are_members_without_a_warning() -> None:
    check_variable(spaces.Sequence(spaces.Box(0, 1, ()), stack=True), np.ones(3, np.float32))
    check_variable(spaces.Sequence(spaces.Box(0, 1, ())), (np.float32(1), 0.5))
