"""Values survive the codec with their types, and bytes that are not its own are refused in one way only."""

from __future__ import annotations

import datetime
import enum
import json
import math
import struct
import sys
import tracemalloc
from collections import OrderedDict, defaultdict, namedtuple
from collections.abc import Callable

import numpy as np
import pytest
from gymnasium.spaces import GraphInstance
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from agentenv.errors import ProtocolError
from agentenv.testing.exact import assert_same
from agentenv.wire import bounds
from agentenv.wire.values import MAX_DEPTH, MAX_HASHED, Opaque, decode, encode

LIMIT = 1 << 24


class Colour(enum.Enum):
    RED = 1


class Level(enum.IntEnum):
    HIGH = 3


class Word(enum.StrEnum):
    GO = "go"


class Celsius(float):
    def __repr__(self) -> str:
        raise RuntimeError("no repr")


class Broken:
    def __repr__(self) -> str:
        raise RuntimeError("no repr")


class Verbose:
    def __repr__(self) -> str:
        return "x" * 1_000_000


Point = namedtuple("Point", "x y")


def round_trip(value: object) -> object:
    return decode(encode(value), max_bytes=LIMIT)


def message(header: object, raw: bytes = b"") -> bytes:
    text = (header if isinstance(header, str) else json.dumps(header)).encode("ascii", "surrogateescape")
    head = struct.pack("<I", len(text)) + text
    return head + bytes(-len(head) % 8) + raw


EXACT = {
    "none": None,
    "bools": [True, False],
    "ints": [0, -1, 2**63, -(10**4299)],
    "floats": [0.0, -0.0, 5e-324, 1.7976931348623157e308, math.inf, -math.inf],
    "nan with a sign and a payload": list(
        struct.unpack("<3d", bytes.fromhex("010000000000f87f 000000000000f8ff 000000000000f87f"))
    ),
    "complex": [complex(-0.0, math.inf), complex(math.nan, -0.0)],
    "text": 'a"\\\n\x00é€\U0001f600\u2028',
    "one surrogate": "\ud800",
    "two surrogates that JSON would join": "\ud83d\ude00",
    "bytes": b"\x00\xff" * 5,
    "empty containers": [[], (), {}, set(), frozenset(), "", b""],
    "nested": {"a": [1, (2, {"b": [None]})], "c": {"d": {}}},
    "keys that are not strings": {1: "a", None: "b", (1, "x"): "c", 2.5: "d", b"k": "e"},
    "numpy keys": {np.int64(4): 1, np.float32(0.5): 2},
    "a key with a surrogate": {"\udfff": np.arange(3), "z": np.arange(2)},
    "a dict that looks like a tag": {"l": 1, "a": ["a", "<f4", [2]], "tag": ["?", "x"]},
    "a list that looks like a tag": ["a", "<f4", [2]],
    "set": {1, "a", (2, 3), None, 1.5},
    "frozenset": frozenset({b"x", "y"}),
    "numpy scalars": [np.dtype(code).type(1) for code in "?bhilBHILefd"],
    "numpy scalars at their ends": [
        np.uint64(2**64 - 1),
        np.int64(-(2**63)),
        np.float16(65504),
        np.float32(3.4028235e38),
    ],
    "numpy infinities and nan": [np.float64(-np.inf), np.float32("nan"), -np.float64("nan"), np.float16("inf")],
    "other numpy scalars": [np.complex64(1 - 2j), np.str_("ü\x00"), np.bytes_(b"x\x00"), np.str_(""), np.bytes_(b"")],
    "numpy times": [
        np.datetime64("2024-02-29", "D"),
        np.timedelta64(7, "us"),
        np.datetime64("NaT"),
        np.timedelta64(3, "25s"),
    ],
    "graph": GraphInstance(np.ones((2, 3), np.float32), None, None),
    "opaque": Opaque("a.B", "<é \ud800>"),
    "array 0-d": np.array(2.5, np.float16),
    "array without elements": np.zeros((0, 3), ">i2"),
    "array of bool": np.array([[True], [False]]),
    "array of another byte order": np.arange(4, dtype=">f8"),
    "array of text": np.array(["a", "äö€"], "<U3"),
    "array of text, other order": np.array(["a", "äö€"], ">U3"),
    "array of bytes": np.array([b"ab", b"c"]),
    "array of times": np.array(["2024-01-01", "NaT"], "M8[ns]"),
    "array of intervals": np.array([1, 2], "m8[7D]"),
    "array of complex": np.array([1j, np.nan]),
    "array of objects": np.array([None, "a", {"b": np.float32(1)}, [1, 2]], dtype=object).reshape(2, 2),
    "0-d array of objects": np.array({"a": 1}, dtype=object),
}


@pytest.mark.parametrize("name", EXACT)
def test_value_keeps_type_and_bits(name: str) -> None:
    assert_same(round_trip(EXACT[name]), EXACT[name])
    assert_same(round_trip({"k": EXACT[name]}), {"k": EXACT[name]})


def test_long_double_keeps_dtype_and_value() -> None:
    value = np.longdouble(1) / 3
    got = round_trip([value, np.array([value])])
    assert got == [value, np.array([value])]
    assert [part.dtype for part in got] == [np.dtype(np.longdouble)] * 2  # type: ignore[attr-defined]  # arrays


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (Level.HIGH, 3),
        (Word.GO, "go"),
        (Celsius(1.5), 1.5),
        (Point(1, 2), (1, 2)),
        (OrderedDict(b=1, a=2), {"b": 1, "a": 2}),
        (defaultdict(list, a=[1]), {"a": [1]}),
        (np.arange(6)[::2], np.array([0, 2, 4])),
        (np.array([1, 2], "i4").view(np.recarray), np.array([1, 2], "i4")),
        (np.asfortranarray(np.arange(6).reshape(2, 3)), np.arange(6).reshape(2, 3)),
        (np.zeros(2, "U0"), np.array(["", ""], "U1")),
        (np.longlong(5), np.int64(5)),
        ({Level.HIGH: Colour.RED}, {3: Opaque(f"{Colour.__module__}.Colour", "<Colour.RED: 1>")}),
    ],
    ids=lambda value: type(value).__name__,
)
def test_subclass_becomes_what_it_derives_from(value: object, expected: object) -> None:
    assert_same(round_trip(value), expected)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (Colour.RED, "<Colour.RED: 1>"),
        (len, "<built-in function len>"),
        (datetime.date(2024, 1, 2), "datetime.date(2024, 1, 2)"),
        (range(3), "range(0, 3)"),
        (Broken(), "<its repr raised RuntimeError>"),
        (Verbose(), "x" * 1024),
        (10**5000, "<an int of 16610 bits>"),
        (np.ma.masked_array([1, 2], [True, False]), repr(np.ma.masked_array([1, 2], [True, False]))),
        (np.zeros(1, [("a", "i4")]), repr(np.zeros(1, [("a", "i4")]))),
        (np.zeros(1, [("a", "i4")])[0], repr(np.zeros(1, [("a", "i4")])[0])),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_cannot_be_sent_becomes_text(value: object, text: str) -> None:
    got = round_trip([value])[0]  # type: ignore[index]  # a list
    assert isinstance(got, Opaque)
    assert got.text == text
    assert got.type_name.endswith(type(value).__qualname__)


def test_hostile_metaclass_is_still_described() -> None:
    class Meta(type):
        @property
        def __module__(cls) -> str:
            raise RuntimeError

        def __repr__(cls) -> str:
            return "Meta"

    class Odd(metaclass=Meta):
        def __repr__(self) -> str:
            return "odd"

    assert round_trip(Odd()) == Opaque("unknown", "odd")


def test_arrays_are_fresh_and_writable() -> None:
    data = bytearray(encode({"a": np.arange(3), "s": np.array(["xy"])}))
    got = decode(memoryview(data), max_bytes=LIMIT)
    data[:] = bytes(len(data))
    assert got["a"].tolist() == [0, 1, 2]  # type: ignore[index]  # a dict of arrays
    got["a"][0] = 9  # type: ignore[index]  # likewise
    assert got["a"].flags.owndata  # type: ignore[index]  # likewise


def test_empty_dict_is_one_constant() -> None:
    assert encode({}) is encode({})
    assert_same(round_trip({}), {})


def nest(levels: int) -> object:
    value: object = 1
    for level in range(levels):
        value = [value] if level % 2 else {"k": value}
    return value


def test_depth_is_bounded_on_both_sides() -> None:
    assert_same(round_trip(nest(MAX_DEPTH)), nest(MAX_DEPTH))
    with pytest.raises(ValueError, match="nested deeper than 64 levels, or one that contains itself"):
        encode(nest(MAX_DEPTH + 1))
    key: object = 1
    for _ in range(2000):
        key = (key,)
    with pytest.raises(ValueError, match="nested deeper"):
        encode({key: 1})


def test_digits_in_a_text_are_no_number() -> None:
    for text in ("1" * 4301, "a" + "1" * 9000, '\\"' + "1" * 4301 + "\\"):
        assert round_trip({"pi": text, "n": 10**4299}) == {"pi": text, "n": 10**4299}
        with pytest.raises(ProtocolError, match="4300 digits"):
            decode(message(json.dumps([text])[:-1] + "," + "1" * 4301 + "]"), max_bytes=LIMIT)


DEEPEST = {
    "an array of two dimensions": np.ones((1, 2)),
    "an array of objects, which is a level": np.array([None, 1], object),
    "a float64": np.float64(1.5),
    "a NaN": math.nan,
    "a set": {1, 2},
    "a mapping": {1: 2},
    "a description": Opaque("a.B", "b"),
    "a complex": 1j,
    "a graph": GraphInstance(np.ones((2, 3), np.float32), None, None),
    "a text that JSON cannot carry": "\ud800",
    "an empty list": [],
    "a text full of brackets": "[{" * 100,
}


@pytest.mark.parametrize("name", DEEPEST)
def test_what_may_be_encoded_may_be_decoded_and_nothing_deeper(name: str) -> None:
    leaf = DEEPEST[name]
    deepest = None
    for levels in range(MAX_DEPTH - 2, MAX_DEPTH + 3):
        value = leaf
        for _ in range(levels):
            value = [value]
        try:
            data = encode(value)
        except ValueError:
            # As an environment would send it that does not count.
            with pytest.raises(ProtocolError):
                decode(encode(value, extra_levels=MAX_DEPTH), max_bytes=LIMIT)
        else:
            assert encode(decode(data, max_bytes=LIMIT)) == data
            deepest = levels
    assert deepest in (MAX_DEPTH - 1, MAX_DEPTH)


def test_dicts_alone_are_bounded_like_everything_else() -> None:
    for levels, fits in ((MAX_DEPTH, True), (MAX_DEPTH + 1, False)):
        data = message('{"a":' * levels + "1" + "}" * levels)
        if fits:
            assert encode(decode(data, max_bytes=LIMIT)) == data
        else:
            with pytest.raises(ProtocolError, match="at most 64 levels"):
                decode(data, max_bytes=LIMIT)


@pytest.mark.parametrize("kind", [list, dict, "array"])
def test_cycle_is_refused(kind: object) -> None:
    cycle: object
    if kind is list:
        cycle = []
        cycle.append(cycle)
    elif kind is dict:
        cycle = {}
        cycle["self"] = cycle
    else:
        cycle = np.empty(1, object)
        cycle[0] = cycle
    with pytest.raises(ValueError, match="contains itself"):
        encode(cycle)


def test_hashed_elements_are_bounded_on_both_sides() -> None:
    assert round_trip(set(range(MAX_HASHED))) == set(range(MAX_HASHED))
    with pytest.raises(ValueError, match="string keys"):
        encode([set(range(MAX_HASHED)), {1: 2}])
    modulus = sys.hash_info.modulus
    colliding = [n * modulus for n in range(MAX_HASHED + 1)]
    with pytest.raises(ProtocolError, match="at most 4096"):
        decode(message(["s", *colliding]), max_bytes=LIMIT)
    with pytest.raises(ProtocolError, match="at most 4096"):
        decode(message(["m", *[n for number in colliding for n in (number, 0)]]), max_bytes=LIMIT)


HOSTILE = {
    "nothing": b"",
    "three bytes": b"\x02\x00\x00",
    "header beyond the end": struct.pack("<I", 1 << 31) + b"{}\0\0",
    "header of 4 GiB": b"\xff\xff\xff\xff{}\0\0",
    "not JSON": message("{"),
    "two documents": message("{}{}"),
    "leading space": message(" 1"),
    "header not ascii": struct.pack("<I", 2) + b"\xff\xff\0\0",
    "trailing bytes": message({"a": 1}, b"12345678"),
    "unknown tag": message(["eval", "1"]),
    "tag of another type": message([["l"]]),
    "no tag": message([]),
    "deep lists": message("[" * 100_000),
    "deep dicts": message('{"a":' * 100_000),
    "deep after a quoted bracket": message('["l","]]]]]]]]]]]]",' + '["l",' * 100 + "1" + "]" * 101),
    "deeper than allowed": message('["l",' * 81 + "1" + "]" * 81),
    "long number": message("1" * 5000),
    "long fraction": message("0." + "1" * 5000),
    "object dtype": message(["a", "|O", [1]], bytes(8)),
    "structured dtype": message(["a", "i4,i4", [1]], bytes(8)),
    "void dtype": message(["a", "|V8", [1]], bytes(8)),
    "dtype of no width": message(["a", "<U0", [1 << 40]]),
    "dtype not text": message(["a", 4, [1]], bytes(8)),
    "dtype with a newline": message(["a", "|S8\n", [1]], bytes(8)),
    "dtype in other digits": message(["a", "|S\u0663", [1]], bytes(8)),
    "dtype of an impossible width": message(["a", "|S999999999", [1]], bytes(8)),
    "array beyond the end": message(["a", "<f8", [2]], bytes(8)),
    "array of 2**48": message(["a", "|u1", [1 << 47]], bytes(8)),
    "array of an overflowing size": message(["a", "<f8", [1 << 40, 1 << 40]], bytes(8)),
    "empty array of an overflowing size": message(["a", "<f8", [0, 1 << 47, 1 << 47]]),
    "negative dimension": message(["a", "<f8", [-1]], bytes(8)),
    "bool dimension": message(["a", "<f8", [True]], bytes(8)),
    "float dimension": message(["a", "<f8", [1.0]], bytes(8)),
    "shape not a list": message(["a", "<f8", 1], bytes(8)),
    "too many dimensions": message(["a", "<f8", [1] * 65], bytes(8)),
    "too many parts": message(["a", "<f8", [1], 0], bytes(8)),
    "the same bytes twice": message(["l", ["a", "|u1", [8]], ["a", "|u1", [8]]], bytes(8)),
    "bool that is 2": message(["a", "|b1", [1]], b"\x02" + bytes(7)),
    "bool scalar that is 2": message(["n", "|b1"], b"\x02" + bytes(7)),
    "text beyond Unicode": message(["a", "<U1", [1]], b"\xff\xff\xff\x7f" + bytes(4)),
    "text beyond Unicode, other order": message(["a", ">U1", [1]], b"\x7f\xff\xff\xff" + bytes(4)),
    "scalar of text": message(["n", "<U2"], bytes(8)),
    "int8 that is 300": message(["i1", 300]),
    "uint8 that is -1": message(["u1", -1]),
    "float16 that is 1e300": message(["f2", 1e300]),
    "float64 that is nan": message(["f8", math.nan]),
    "float64 that is text": message(["f8", "1"]),
    "int64 that is a bool": message(["i8", True]),
    "bool that is an int": message(["b1", 1]),
    "numpy number without a number": message(["f8"]),
    "object array too short": message(["o", [3], 1, 2]),
    "object array of 2**40": message(["o", [1 << 40]]),
    "object array without a shape": message(["o"]),
    "bytes of negative length": message(["b", -8], bytes(8)),
    "bytes beyond the end": message(["b", 9], bytes(8)),
    "bytes of a float length": message(["b", 8.0], bytes(8)),
    "text that is not UTF-8": message(["u", 8], b"\xff" * 8),
    "mapping with half a pair": message(["m", 1]),
    "mapping with a list as key": message(["m", ["l"], 1]),
    "mapping with a tuple of lists as key": message(["m", ["t", ["l"]], 1]),
    "set of dicts": message(["s", {}]),
    "frozenset of arrays": message(["z", ["a", "<f8", [1]]], bytes(8)),
    "complex of text": message(["c", "1", "2"]),
    "complex of one": message(["c", 1.0]),
    "opaque of numbers": message(["?", 1, 2]),
    "graph of two": message(["g", None, None]),
    "repeated key that hides an array": message('{"a":["b",8],"a":1}', bytes(8)),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_malformed_message_is_a_protocol_error(name: str) -> None:
    for data in (HOSTILE[name], memoryview(bytearray(HOSTILE[name]))):
        with pytest.raises(ProtocolError):
            decode(data, max_bytes=LIMIT)


def test_longest_message_is_the_callers_choice() -> None:
    data = encode({"a": 1})
    assert decode(data, max_bytes=len(data)) == {"a": 1}
    with pytest.raises(ProtocolError, match=f"at most {len(data) - 1} bytes, got {len(data)}"):
        decode(data, max_bytes=len(data) - 1)


@pytest.mark.parametrize(
    "text",
    [
        '"' + '\\"' * 200_000 + "[" * 90,
        "[" * 90 + '"\\' * 200_000,
        '["l",' + "[]," * 200_000 + "1]",
        '"' * 400_000 + "[" * 90,
    ],
    ids=["escaped quotes", "open escapes", "many empty lists", "quotes"],
)
def test_hostile_header_costs_memory_in_proportion(text: str) -> None:
    data = message(text)
    tracemalloc.start()
    try:
        with pytest.raises(ProtocolError):
            decode(data, max_bytes=LIMIT)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 64 * len(data)


def repeated(unit: str | Callable[[int], str], before: str, after: str, size: int = 1 << 17) -> str:
    parts = [unit] * (size // len(unit)) if isinstance(unit, str) else [unit(n) for n in range(size // len(unit(99)))]
    return before + "".join(parts) + after


LISTED = {
    "empty dicts": "{},",
    "dicts of one": '{"":0},',
    "dicts in dicts": '{"":{"":{"":{"":0}}}},',
    "dicts of six": '{"a":0,"b":0,"c":0,"d":0,"e":0,"f":0},',
    "empty lists": '["l"],',
    "lists of one": '["l",1],',
    "lists of five": '["l",1,1,1,1,1],',
    "empty sets": '["s"],',
    "empty frozensets": '["z"],',
    "empty mappings": '["m"],',
    "empty arrays": '["a","<f4",[0]],',
    "empty arrays of objects": '["o",[0]],',
    "numpy numbers": '["f8",1.0],',
    "descriptions": '["?","",""],',
    "graphs": '["g",0,0,0],',
    "complex numbers": '["c",0.0,0.0],',
    "floats": "1e9,",
    "ints": "999,",
    "small ints": "0,",
    "texts": '"ab",',
    "wide texts": '"\\u20ac",',
    "wider texts": '"a\\ud83d\\ude00",',
}
HEADERS = {
    **{name: repeated(unit, '["l",', "1]") for name, unit in LISTED.items()},
    "dicts of keys of their own": repeated(lambda n: f'{{"{n:x}":0}},', '["l",', "1]"),
    "a dict that has just grown": "{" + "".join(f'"{n:x}":0,' for n in range(10_930)) + '"z":0}',
    "a dict of floats": repeated(lambda n: f'"{n:x}":{n}.5,', "{", '"z":0}'),
    "a long text": '"' + "a" * (1 << 17) + '"',
    "a long text that gets wide": '"' + "a" * (1 << 17) + '\\ud83d\\ude00"',
    "a long text of quotes and commas": '"' + '\\",{\\\\' * (1 << 14) + '"',
}


def peak_of(data: bytes, max_bytes: int) -> tuple[object, int]:
    tracemalloc.start()
    try:
        try:
            found = decode(data, max_bytes=max_bytes)
        except ProtocolError as error:
            found = error
        return found, tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("name", HEADERS)
def test_values_take_no_more_memory_than_their_header_weighs(name: str) -> None:
    text = HEADERS[name]
    found, peak = peak_of(message(text), LIMIT)
    assert not isinstance(found, ProtocolError)
    weight = bounds.weigh(text, 0)
    assert peak < weight + 20_000
    assert peak > weight / 8, "honest messages would be refused"


def test_what_a_header_weighs_is_its_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounds, "LEAST_MEMORY", 0)
    text = HEADERS["empty dicts"]
    least = math.ceil(bounds.weigh(text, 0) / bounds.MEMORY_TIMES)
    decode(message(text), max_bytes=least)
    with pytest.raises(ProtocolError, match="may become"):
        decode(message(text), max_bytes=least - 1)


@pytest.mark.parametrize("unit", ["{},", '{"":0},', '["s"],', "[", '{"a":', '"\\\\",', '"",'])
def test_a_header_that_weighs_too_much_is_refused_before_it_takes_the_memory(unit: str) -> None:
    data = message(repeated(unit, '["l",', "1]", size=4 << 20))
    found, peak = peak_of(data, 1 << 22 | 1 << 10)
    assert isinstance(found, ProtocolError)
    assert peak < 1 << 26


def test_texts_and_arrays_of_the_greatest_length_are_taken() -> None:
    for value in ("x" * 9_000_000, "[{,:" * 2_000_000, "é" * 1_500_000, "\ud800" * 3_000_000, np.zeros(1 << 20)):
        data = encode({"info": value})
        found = decode(data, max_bytes=max(len(data), 8 << 20))
        assert np.array_equal(found["info"], value)  # type: ignore[index, call-overload]  # a dict of arrays and texts


def test_large_infos_are_taken() -> None:
    rng = np.random.default_rng(1)
    for value in (
        {f"key{n}": n / 7 for n in range(100_000)},
        rng.random(200_000).tolist(),
        [{"x": n / 3, "y": -n, "name": f"thing {n}"} for n in range(50_000)],
        {f"layer{n}": rng.random((100, 100)) for n in range(40)},
    ):
        data = encode(value)
        decode(data, max_bytes=64 << 20)
        decode(data, max_bytes=len(data))


def test_claimed_arrays_allocate_nothing_beyond_the_message() -> None:
    data = message(["l", *[["a", "|u1", [1 << 20]]] * 1000], bytes(1 << 20))
    tracemalloc.start()
    try:
        with pytest.raises(ProtocolError):
            decode(data, max_bytes=LIMIT)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 4 * len(data)


def objects(items: list[object]) -> np.ndarray:
    array = np.empty(len(items), object)
    for index, item in enumerate(items):
        array[index] = item
    return array


ARRAYS = hnp.arrays(
    st.sampled_from(["?", "i1", ">i4", "u8", "f2", "<f4", ">f8", "c8", "U3", ">U2", "S4", "M8[us]", "m8[3h]"]).map(
        np.dtype
    )
    | hnp.scalar_dtypes().filter(lambda dtype: dtype.str[1:] not in ("f16", "c32")),
    hnp.array_shapes(min_dims=0, min_side=0, max_dims=3),
    elements=None,
)
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.complex_numbers()
    | st.text()
    | st.binary()
    | st.characters(categories=["Cs"])
    | ARRAYS.filter(lambda array: array.size).map(lambda array: array.reshape(-1)[0])
)
HASHABLE = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary(),
    lambda inner: st.lists(inner, max_size=3).map(tuple),
    max_leaves=4,
)
VALUES = st.recursive(
    SCALARS | ARRAYS,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.lists(inner, max_size=4).map(tuple)
        | st.dictionaries(st.text(max_size=4), inner, max_size=4)
        | st.dictionaries(HASHABLE, inner, max_size=4)
        | st.sets(HASHABLE, max_size=4)
        | st.frozensets(HASHABLE, max_size=4)
        | st.lists(inner, max_size=4).map(objects)
    ),
    max_leaves=12,
)


@given(VALUES)
def test_any_value_survives(value: object) -> None:
    data = encode(value)
    assert len(data) % 8 == 0
    assert_same(round_trip(value), value)
    assert_same(decode(memoryview(data), max_bytes=len(data)), value)


@given(st.binary(max_size=200))
def test_random_bytes_are_refused_or_decoded(data: bytes) -> None:
    refuse_or_decode(data)
    refuse_or_decode(struct.pack("<I", max(len(data) - 4, 0)) + data)


@given(VALUES, st.lists(st.tuples(st.integers(0), st.integers(0, 255)), min_size=1, max_size=6), st.integers(0, 40))
def test_mutated_messages_are_refused_or_decoded(value: object, edits: list[tuple[int, int]], cut: int) -> None:
    data = bytearray(encode(value))
    for place, byte in edits:
        data[place % len(data)] = byte
    refuse_or_decode(bytes(data))
    refuse_or_decode(bytes(data[: len(data) - cut]))


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-2, 70)
    | st.floats()
    | st.sampled_from(
        [
            "l",
            "t",
            "m",
            "s",
            "z",
            "c",
            "?",
            "u",
            "U",
            "b",
            "S",
            "d",
            "g",
            "a",
            "o",
            "n",
            "f4",
            "i1",
            "b1",
            "<f4",
            "|b1",
            "<U2",
            "|O",
        ]
    ),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.sampled_from(["a", "b"]), inner, max_size=2),
    max_leaves=12,
)


@given(JSON, st.binary(max_size=64))
def test_any_header_is_refused_or_decoded(header: object, raw: bytes) -> None:
    refuse_or_decode(message(header, raw))


def refuse_or_decode(data: bytes) -> None:
    """The only two outcomes; what is decoded can be sent on."""
    try:
        value = decode(data, max_bytes=LIMIT)
    except ProtocolError:
        return
    assert_same(round_trip(value), value)
