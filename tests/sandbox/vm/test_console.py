"""What monitors print is kept up to a limit, and never holds up the one who prints."""

from __future__ import annotations

import os
import select
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from agentenv.sandbox.runtimes._vm.console import Console, Consoles


@pytest.fixture
def consoles() -> Iterator[Consoles]:
    made = Consoles()
    yield made
    made.close()


def _write(fd: int, data: bytes, deadline_s: float = 10.0) -> None:
    """All of it, waiting where the pipe is full."""
    deadline = time.monotonic() + deadline_s
    while data:
        _, ready, _ = select.select([], [fd], [], max(0, deadline - time.monotonic()))
        assert ready, "nobody reads"
        data = data[os.write(fd, data[: select.PIPE_BUF]) :]


def _end(console: Console, fd: int) -> None:
    os.close(fd)
    assert console.await_end(10)


def test_the_last_lines(consoles: Consoles, tmp_path: Path) -> None:
    console, fd = consoles.open(tmp_path / "console.log", 1 << 20)
    _write(fd, b"one\r\ntwo\r\nthree\r\n")
    _end(console, fd)
    assert console.tail(2) == "two\nthree"
    assert console.tail(20) == "one\ntwo\nthree"
    console.close()
    assert console.tail(2) == ""
    assert (tmp_path / "console.log").read_bytes() == b"one\r\ntwo\r\nthree\r\n"


def test_a_flood_keeps_its_end(consoles: Consoles, tmp_path: Path) -> None:
    console, fd = consoles.open(tmp_path / "console.log", 10_000)
    for number in range(20_000):
        _write(fd, b"line %d\n" % number)
    _end(console, fd)
    assert console.tail(2) == "line 19998\nline 19999"
    size = (tmp_path / "console.log").stat().st_size
    assert 4_000 <= size <= 10_000
    console.close()


def test_who_prints_never_waits(consoles: Consoles, tmp_path: Path) -> None:
    _console, fd = consoles.open(tmp_path / "console.log", 1 << 20)
    assert not os.get_blocking(fd)
    os.close(fd)


def test_two_consoles_are_apart(consoles: Consoles, tmp_path: Path) -> None:
    (first, one), (second, two) = (consoles.open(tmp_path / name, 1000) for name in ("a", "b"))
    _write(one, b"of the first")
    _write(two, b"of the second")
    _end(first, one)
    _end(second, two)
    assert (first.tail(5), second.tail(5)) == ("of the first", "of the second")


def test_nothing_for_a_terminal_to_act_on(consoles: Consoles, tmp_path: Path) -> None:
    console, fd = consoles.open(tmp_path / "console.log", 1000)
    _write(fd, "\x1b[31mred\x1b[0m\x07 \x9b2J\u202eleft\xff ok\n".encode() + b"\xff\n")
    _end(console, fd)
    assert console.tail(5) == "red 2Jleft\xff ok\n\ufffd"


def test_a_full_disk_loses_lines_and_nothing_else(consoles: Consoles, tmp_path: Path) -> None:
    console, fd = consoles.open(Path("/dev/full"), 1000)
    _write(fd, b"lost\n")
    _end(console, fd)
    console.close()


def test_closing_ends_what_is_open(tmp_path: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    consoles = Consoles()
    console, fd = consoles.open(tmp_path / "console.log", 1000)
    consoles.close()
    consoles.close()
    assert console.await_end(0)
    console.close()
    os.close(fd)
    assert len(os.listdir("/proc/self/fd")) == before
    with pytest.raises(ValueError, match="closed"):
        consoles.open(tmp_path / "another.log", 1000)
