"""What callers give, a value at a time, and that nothing is sent of what cannot be: no machine is needed."""

from __future__ import annotations

import array
import math
import signal
from collections.abc import Callable
from pathlib import Path, PurePosixPath
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentenv import Sandbox
from agentenv.boxes import arguments
from agentenv.boxes.access import Access
from agentenv.boxes.results import Copied
from agentenv.errors import ConfigError

LONE = "a\ud800"


class Untouched:
    """Reaches nothing: to ask anything of it is a failure of the test."""

    id, kept, destroyed = "mine", True, False

    def __getattr__(self, name: str) -> Any:
        def ask(*given: Any, **keywords: Any) -> None:
            pytest.fail(f"{name} was asked for: {given} {keywords}")

        return ask


@pytest.fixture
def untouched() -> Sandbox:
    return Sandbox(cast(Access, Untouched()))


class BytesPath:
    def __fspath__(self) -> bytes:
        return b"/etc"


class NoPath:
    def __fspath__(self) -> int:
        return 3


@pytest.mark.parametrize(
    ("read", "value", "found"),
    [
        (arguments.read_user, None, None),
        (arguments.read_user, "nobody", "nobody"),
        (arguments.read_user, "1:2", "1:2"),
        (arguments.read_user, 0, "0"),
        (arguments.read_user, 1000, "1000"),
        (arguments.read_path, "/a b", "/a b"),
        (arguments.read_path, "/a/", "/a/"),
        (arguments.read_path, "/n\udcff", "/n\udcff"),
        (arguments.read_path, PurePosixPath("/a/b"), "/a/b"),
        (arguments.read_directory, None, None),
        (arguments.read_directory, Path("/x"), "/x"),
        (arguments.read_mode, None, None),
        (arguments.read_mode, 0, 0),
        (arguments.read_mode, 0o7777, 0o7777),
        (arguments.read_limit, None, None),
        (arguments.read_limit, 5, 5.0),
        (arguments.read_limit, 0.001, 0.001),
        (arguments.read_limit, 2_000_000, 2_000_000.0),
        (arguments.read_wait, None, None),
        (arguments.read_wait, 0, 0.0),
        (arguments.read_wait, -0.5, 0.0),
        (arguments.read_output_bytes, 0, 0),
        (arguments.read_output_bytes, 0.25, 1 << 18),
        (arguments.read_output_bytes, 16.0, 1 << 24),
        (arguments.read_max_mb, 0, 0),
        (arguments.read_depth, 1, 1),
        (arguments.read_length, None, None),
        (arguments.read_length, 0, 0),
        (arguments.read_offset, (1 << 63) - 1, (1 << 63) - 1),
        (arguments.read_signal, 9, 9),
        (arguments.read_signal, 64, 64),
        (arguments.read_signal, signal.SIGUSR1, 10),
        (arguments.read_signal, "INT", 2),
        (arguments.read_signal, "SIGINT", 2),
        (arguments.read_signal, "term", 15),
        (arguments.read_size, (24, 80), (24, 80)),
        (arguments.read_size, [1, 65535], (1, 65535)),
        (arguments.read_copied, None, None),
    ],
)
def test_what_can_be_is_read(read: Callable[[Any], Any], value: Any, found: Any) -> None:
    got = read(value)
    assert (got, type(got)) == (found, type(found))


@pytest.mark.parametrize(
    ("content", "found"),
    [
        (b"a", b"a"),
        ("ä", b"\xc3\xa4"),
        (bytearray(b"ab"), b"ab"),
        (memoryview(b"abcd")[::2], b"ac"),
        (array.array("H", [1, 2]), array.array("H", [1, 2]).tobytes()),
    ],
)
def test_content_is_anything_of_bytes_or_a_text(content: Any, found: bytes) -> None:
    assert arguments.read_content(content, "data") == found


NO_NUMBER: list[Any] = ["1", b"1", None, True, False, [1], 1j]
NO_WHOLE: list[Any] = [*NO_NUMBER, 1.5, math.nan]
WRONG: dict[str, tuple[Callable[[Any], Any], str, list[Any]]] = {
    "user": (arguments.read_user, "user", ["", "a\0b", LONE, True, -1, 1 << 32, 1.0, b"root", ["root"]]),
    "path": (
        arguments.read_path,
        "path",
        ["", "a\0b", LONE, 3, None, b"/etc", BytesPath(), NoPath(), Path("a\0b"), ["/"]],
    ),
    "cwd": (arguments.read_directory, "cwd", ["", "a\0b", 3, b"/", False]),
    "mode": (arguments.read_mode, "mode", ["755", -1, 99999, 0o10000, True, 7.0, b"7"]),
    "limit": (
        arguments.read_limit,
        "timeout_s",
        [*(one for one in NO_NUMBER if one is not None), "5", 0, -1, -0.1, math.nan, math.inf, 10**400, 2_000_001],
    ),
    "wait": (
        arguments.read_wait,
        "timeout_s",
        [*(one for one in NO_NUMBER if one is not None), math.nan, math.inf, -math.inf, 10**400, 2_000_001],
    ),
    "output": (arguments.read_output_bytes, "max_output_mb", [*NO_NUMBER, -1, -0.1, math.nan, math.inf, 10**400]),
    "max_mb": (arguments.read_max_mb, "max_mb", [*NO_WHOLE, -1, "x", 1 << 60]),
    "depth": (arguments.read_depth, "depth", [*NO_WHOLE, 0, -1]),
    "offset": (arguments.read_offset, "offset", [*NO_WHOLE, -1, 1 << 63]),
    "size": (arguments.read_length, "size", [*(one for one in NO_WHOLE if one is not None), -1, 1 << 63]),
    "signal": (
        arguments.read_signal,
        "signal",
        ["", "SIG", "NONE", "SIGSIGINT", "9", "SIG_DFL", 0, -9, 65, True, 9.0, None, b"INT"],
    ),
    "terminal": (
        arguments.read_size,
        "terminal",
        [(0, 0), (0, 80), (24, 0), (24,), (24, 80, 1), (24.0, 80), (24, 1 << 16), (True, 80), 24, "24", None, {24, 80}],
    ),
    "count": (arguments.read_count, "count", [0, -1, 1.5, True, "3", None]),
    "copied": (arguments.read_copied, "copied", [3, True, {}, Copied]),
}


@pytest.mark.parametrize(
    ("read", "key", "value"),
    [pytest.param(read, key, value, id=f"{name}-{value!r:.20}") for name, (read, key, values) in WRONG.items()
     for value in values],
)  # fmt: skip
def test_what_cannot_be_is_refused_by_its_name(read: Callable[[Any], Any], key: str, value: Any) -> None:
    with pytest.raises(ConfigError) as caught:
        read(value)
    (problem,) = caught.value.problems
    assert (problem.where, problem.path) == ("keyword argument", key)
    assert problem.message.startswith("expected ")
    assert len(problem.message) < 300
    assert ", got " in problem.message


@pytest.mark.parametrize("value", [0, 1, "", "no", "yes", None, 1.0, []])
def test_what_is_neither_true_nor_false_is_refused(value: Any) -> None:
    assert arguments.read_flag(True, "check") is True
    assert arguments.read_flag(False, "check") is False
    with pytest.raises(ConfigError, match=r"check: expected True or False, got .*do that"):
        arguments.read_flag(value, "check", "do that")


@pytest.mark.parametrize("value", [5, None, 1.5, True, [1, 2], {}, LONE, Path("a")])
def test_what_is_no_content_is_refused(value: Any) -> None:
    with pytest.raises(ConfigError, match=r"data: expected .* bytes|data: expected bytes or a text"):
        arguments.read_content(value, "data")


@given(st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(), st.binary(), st.lists(st.integers())))
def test_no_value_is_another_error(value: Any) -> None:
    for read, _, _ in WRONG.values():
        try:
            read(value)
        except ConfigError:
            continue


def test_of_what_came_only_the_beginning_is_shown() -> None:
    with pytest.raises(ConfigError) as caught:
        arguments.read_path("\0" * 100_000)
    assert len(str(caught.value)) < 300


PROGRAMS: list[tuple[dict[str, Any], set[str]]] = [
    ({"command": []}, {"command"}),
    ({"command": ["a\0b"]}, {"command"}),
    ({"command": LONE}, {"command"}),
    ({"command": 3}, {"command"}),
    ({"cwd": 3}, {"cwd"}),
    ({"cwd": ""}, {"cwd"}),
    ({"cwd": "a\0b"}, {"cwd"}),
    ({"user": True}, {"user"}),
    ({"user": ""}, {"user"}),
    ({"env": {"a\nb": "c"}}, {"env.a b"}),
    ({"env": {"a=b": "c"}}, {"env.a=b"}),
    ({"env": {"a": "b\0"}}, {"env.a"}),
    ({"env": {"a": 3}}, {"env.a"}),
    ({"env": "a=b"}, {"env"}),
    ({"command": [], "env": {"a": 3}, "cwd": 3, "user": 1.5}, {"command", "env.a", "cwd", "user"}),
]
RUNS: list[tuple[dict[str, Any], set[str]]] = [
    ({"stdin": 3}, {"stdin"}),
    ({"stdin": None}, {"stdin"}),
    ({"timeout_s": "5"}, {"timeout_s"}),
    ({"timeout_s": -1}, {"timeout_s"}),
    ({"timeout_s": 0}, {"timeout_s"}),
    ({"timeout_s": math.nan}, {"timeout_s"}),
    ({"max_output_mb": "1"}, {"max_output_mb"}),
    ({"max_output_mb": -1}, {"max_output_mb"}),
    ({"check": "no"}, {"check"}),
]
STARTS: list[tuple[dict[str, Any], set[str]]] = [
    ({"stdin": "a text"}, {"stdin"}),
    ({"terminal": 3}, {"terminal"}),
    ({"terminal": (0, 0)}, {"terminal"}),
    ({"terminal": 3, "cwd": 3}, {"terminal", "cwd"}),
]


@pytest.mark.parametrize(("keywords", "keys"), [*PROGRAMS, *RUNS])
def test_no_program_is_run_with_what_cannot_be(untouched: Sandbox, keywords: dict[str, Any], keys: set[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        untouched.exec(**{"command": "true", **keywords})
    assert {problem.path for problem in caught.value.problems} == keys


@pytest.mark.parametrize(("keywords", "keys"), [*PROGRAMS, *STARTS])
def test_no_program_is_started_with_what_cannot_be(
    untouched: Sandbox, keywords: dict[str, Any], keys: set[str]
) -> None:
    with pytest.raises(ConfigError) as caught:
        untouched.start(**{"command": "true", **keywords})
    assert {problem.path for problem in caught.value.problems} == keys


@pytest.mark.parametrize(
    ("name", "given", "keywords", "key"),
    [
        ("write", ("/a", 5), {}, "data"),
        ("write", ("/a", None), {}, "data"),
        ("write", ("/a", b""), {"mode": "755"}, "mode"),
        ("write", ("/a", b""), {"mode": 99999}, "mode"),
        ("write", ("/a", b""), {"append": "no"}, "append"),
        ("write", ("/a", b""), {"parents": 1}, "parents"),
        ("write", (3, b""), {}, "path"),
        ("read", ("a\0b",), {}, "path"),
        ("read", ("/a",), {"offset": -1}, "offset"),
        ("read", ("/a",), {"size": -1}, "size"),
        ("read", ("/a",), {"size": "1"}, "size"),
        ("read", ("/a",), {"max_mb": -1}, "max_mb"),
        ("read_text", ("/a",), {"max_mb": 1.5}, "max_mb"),
        ("list", ("/a",), {"depth": -1}, "depth"),
        ("list", ("/a",), {"depth": 0}, "depth"),
        ("list", ("/a",), {"depth": "2"}, "depth"),
        ("stat", ("/a",), {"follow": 0}, "follow"),
        ("stat", (None,), {}, "path"),
        ("exists", ("",), {}, "path"),
        ("mkdir", ("/a",), {"mode": "700"}, "mode"),
        ("mkdir", ("/a",), {"parents": "no"}, "parents"),
        ("remove", ("/a",), {"recursive": "no"}, "recursive"),
        ("move", ("/a", ""), {}, "target"),
        ("move", (3, "/a"), {}, "path"),
        ("copy_in", ("", "/a"), {}, "source"),
        ("copy_in", ("a\0b", "/a"), {}, "source"),
        ("copy_in", (3, "/a"), {}, "source"),
        ("copy_in", ("/etc/hostname", 3), {}, "path"),
        ("copy_in", ("/etc/hostname", "/a/"), {"copied": 3}, "copied"),
        ("copy_out", ("/a", 3), {}, "target"),
        ("copy_out", ("/a", ""), {}, "target"),
        ("copy_out", ("a\0b", "/a"), {}, "path"),
        ("copy_out", ("/a", "/a"), {"max_mb": "x"}, "max_mb"),
        ("copy_out", ("/a", "/a"), {"max_mb": -1}, "max_mb"),
        ("copy_out", ("/a", "/a"), {"copied": {}}, "copied"),
        ("fork", (0,), {}, "count"),
        ("fork", (1,), {"name": 3}, "name"),
        ("snapshot", (), {"replace": "no"}, "replace"),
        *((name, ("/a",), {"user": True}, "user") for name in ("read", "list", "stat", "exists", "mkdir", "remove")),
        *((name, ("/etc/hostname", "/a"), {"user": ""}, "user") for name in ("write", "move", "copy_in", "copy_out")),
    ],
)
def test_nothing_else_is_done_with_what_cannot_be(
    untouched: Sandbox, name: str, given: tuple[Any, ...], keywords: dict[str, Any], key: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        getattr(untouched, name)(*given, **keywords)
    assert [problem.path for problem in caught.value.problems] == [key]


@pytest.mark.parametrize(
    ("settings", "hint"),
    [
        ({"accelerator": "tcg"}, 'add runtime="qemu"'),
        ({"jailer": "jailer"}, 'add runtime="firecracker"'),
        ({"binary": "x"}, 'add runtime="firecracker" or runtime="qemu"'),
        ({"no such key": 1}, 'add runtime="firecracker" or runtime="qemu"'),
    ],
)
def test_settings_without_a_runtime_are_refused_with_the_one_that_has_them(settings: Any, hint: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Sandbox.create(settings=settings)
    assert [problem.hint for problem in caught.value.problems] == [hint]


@pytest.mark.parametrize("snapshot", [3, None, b"ready", Path("ready")])
def test_what_is_no_snapshot_is_refused(snapshot: Any) -> None:
    with pytest.raises(ConfigError, match=r"snapshot: expected what snapshot\(\) returned"):
        Sandbox.from_snapshot(snapshot)


@pytest.mark.parametrize("runtime", [3, b"qemu", ["qemu"], True])
def test_what_is_no_name_of_a_runtime_is_refused(runtime: Any) -> None:
    with pytest.raises(ConfigError, match="runtime: expected one of 'firecracker', 'qemu', or None, got"):
        Sandbox.create(runtime=runtime)
