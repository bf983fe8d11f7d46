"""Reading logs back, whole and while they are written and rotated."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from agentenv.telemetry import logfiles
from agentenv.telemetry.logs import LogSink, follow, log_parts, read_log

_LINES = [b"line %05d\n" % i for i in range(3000)]


def test_parts_are_read_in_the_order_written(tmp_path: Path) -> None:
    path = tmp_path / "stdout.log"
    with LogSink(path, max_bytes=600, keep=100) as sink:
        for line in _LINES[:500]:
            sink.write(line)
    (tmp_path / "stdout.log.old").write_bytes(b"not a part")
    (tmp_path / "stdout.log.\u0662").write_bytes(b"not a part either")
    assert [part.name for part in log_parts(path)][:3] == ["stdout.log", "stdout.log.1", "stdout.log.2"]
    assert len(log_parts(path)) > 9
    assert b"".join(read_log(path)) == b"".join(_LINES[:500])


def test_a_rotation_between_listing_and_opening_hides_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "stdout.log"
    with LogSink(path, max_bytes=600, keep=100) as sink:
        for line in _LINES[:500]:
            sink.write(line)
    numbers, rotated = logfiles._numbers, False

    def numbers_then_rotation(path: Path) -> list[int]:
        nonlocal rotated
        found = numbers(path)
        if not rotated:
            rotated = True
            for number in reversed(found):
                os.rename(f"{path}.{number}", f"{path}.{number + 1}")
            os.rename(path, f"{path}.1")
        return found

    monkeypatch.setattr(logfiles, "_numbers", numbers_then_rotation)
    assert b"".join(read_log(path)) == b"".join(_LINES[:500])
    assert rotated


def test_a_log_never_written_is_empty(tmp_path: Path) -> None:
    assert list(read_log(tmp_path / "stdout.log")) == []
    assert list(read_log(tmp_path / "nowhere" / "stdout.log")) == []


def test_following_a_log_that_appears_and_is_rotated(tmp_path: Path) -> None:
    path = tmp_path / "stdout.log"
    stop = threading.Event()

    def write() -> None:
        with LogSink(path, max_bytes=4000, keep=100) as sink:
            for line in _LINES:
                sink.write(line)
        stop.set()

    writer = threading.Thread(target=write)
    reader = follow(path, stop, poll_s=0.001)
    writer.start()
    got = b"".join(reader)
    writer.join()
    assert len(log_parts(path)) > 5
    assert got == b"".join(_LINES)


def test_following_says_what_it_missed(tmp_path: Path) -> None:
    path = tmp_path / "stdout.log"
    stop = threading.Event()
    with LogSink(path, max_bytes=30, keep=1) as sink:
        sink.write(b"first\n")
        reader = follow(path, stop, poll_s=0.001)
        assert next(reader) == b"first\n"
        for line in _LINES[:100]:
            sink.write(line)
        stop.set()
        rest = b"".join(reader)
    assert b"rotated away before it could be shown" in rest
    assert rest.endswith(_LINES[99])


def test_following_a_truncated_file_starts_over(tmp_path: Path) -> None:
    path = tmp_path / "stdout.log"
    path.write_bytes(b"a long first line\n")
    stop = threading.Event()
    reader = follow(path, stop, poll_s=0.001)
    assert next(reader) == b"a long first line\n"
    with path.open("r+b") as file:
        file.truncate()
        file.write(b"new\n")
    stop.set()
    assert b"".join(reader) == b"new\n"


def test_following_ends_though_the_log_grows_for_ever(tmp_path: Path) -> None:
    path = tmp_path / "stdout.log"
    path.write_bytes(b"x" * 2**16)
    stop = threading.Event()
    total = 0
    for chunk in follow(path, stop, poll_s=0.001):
        stop.set()
        total += len(chunk)
        with path.open("ab") as file:
            file.write(b"x" * 2**16)
    assert 2**20 <= total <= 2**20 + 2**17


def test_following_leaves_no_descriptor(tmp_path: Path) -> None:
    path = tmp_path / "stdout.log"
    path.write_bytes(b"text\n")
    before = len(os.listdir("/proc/self/fd"))
    reader = follow(path, threading.Event(), poll_s=0.001)
    next(reader)
    reader.close()  # type: ignore[attr-defined]  # a generator
    assert len(os.listdir("/proc/self/fd")) == before
