"""One stream's file and tail: capped, complete within the cap, and never fatal."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentenv.telemetry.logs import LogSink, read_log


def _stored(path: Path) -> bytes:
    return b"".join(read_log(path))


def test_bytes_arrive_as_they_are(tmp_path: Path) -> None:
    path = tmp_path / "stdout.log"
    data = "漢字".encode()
    with LogSink(path) as sink:
        for i in range(len(data)):
            sink.write(data[i : i + 1])
        sink.write(b"\0\xff\r\n")
    assert path.read_bytes() == data + b"\0\xff\r\n"
    assert sink.received_bytes == len(data) + 4
    assert sink.tail() == "漢字\ufffd"


@given(st.lists(st.binary(max_size=60).map(lambda b: b.replace(b"x", b"\n")), max_size=40), st.integers(0, 3))
def test_the_cap_holds_and_what_is_kept_is_the_end(
    tmp_path_factory: pytest.TempPathFactory, writes: list[bytes], keep: int
) -> None:
    folder = tmp_path_factory.mktemp("sink")
    path = folder / "stdout.log"
    with LogSink(path, max_bytes=50, keep=keep, tail_bytes=20) as sink:
        for data in writes:
            sink.write(data)
    everything = b"".join(writes)
    sizes = [found.stat().st_size for found in folder.iterdir()]
    assert len(sizes) <= keep + 1
    assert all(size <= 50 for size in sizes)
    assert everything.endswith(_stored(path))
    if len(everything) <= 50 and everything:
        assert _stored(path) == everything
    assert sink.lost_bytes == 0


def test_rotation_cuts_between_lines_where_it_can(tmp_path: Path) -> None:
    path = tmp_path / "stdout.log"
    with LogSink(path, max_bytes=10, keep=5) as sink:
        sink.write(b"aaaa\nbbbb\ncccc\ndd")
    assert (tmp_path / "stdout.log.1").read_bytes() == b"aaaa\nbbbb\n"
    assert path.read_bytes() == b"cccc\ndd"


def test_a_line_longer_than_a_file(tmp_path: Path) -> None:
    path = tmp_path / "stdout.log"
    with LogSink(path, max_bytes=1000, keep=2) as sink:
        sink.write(b"x" * 10_000)
    assert 2000 <= len(_stored(path)) <= 3000
    assert sink.tail() == "x" * 10_000


def test_a_second_sink_continues_the_file(tmp_path: Path) -> None:
    path = tmp_path / "stdout.log"
    for word in (b"first\n", b"second\n"):
        with LogSink(path, max_bytes=8, keep=1) as sink:
            sink.write(word)
    assert _stored(path) == b"first\nsecond\n"
    assert path.read_bytes() == b"second\n"


def test_the_tail_is_fit_for_a_terminal() -> None:
    sink = LogSink(None)
    sink.write(b"\x1b]0;owned\x07\x1b[31mred\x1b[0m\nbell\x07 \xff\xc2\x9b2J\n")
    assert sink.tail() == "red\nbell \ufffd"
    assert sink.tail(1) == "bell \ufffd"
    assert sink.tail(0) == ""


def test_the_tail_is_bounded_and_starts_with_a_whole_character() -> None:
    sink = LogSink(None, tail_bytes=10)
    for _ in range(1000):
        sink.write("漢".encode())
    assert sink.tail() == "漢" * 3


def test_marks_stand_on_lines_of_their_own(tmp_path: Path) -> None:
    path = tmp_path / "stdout.log"
    with LogSink(path) as sink:
        sink.mark("started")
        sink.write(b"half a line")
        sink.mark("killed by\nsignal 9\x1b[2J")
    assert path.read_text() == ("--- agentenv: started ---\nhalf a line\n--- agentenv: killed by signal 9 ---\n")
    assert sink.received_bytes == len("half a line")


def test_a_silent_environment_costs_no_file(tmp_path: Path) -> None:
    with LogSink(tmp_path / "stdout.log"):
        pass
    assert list(tmp_path.iterdir()) == []


def test_after_close_only_the_tail_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "stdout.log"
    sink = LogSink(path)
    sink.write(b"before\n")
    sink.close()
    sink.close()
    sink.write(b"after\n")
    assert path.read_bytes() == b"before\n"
    assert sink.tail() == "before\nafter"


def test_full_disk_is_counted_and_said_once(caplog: pytest.LogCaptureFixture) -> None:
    # /dev/full takes the open and answers every write with ENOSPC.
    sink = LogSink(Path("/dev/full"))
    with caplog.at_level(logging.WARNING, "agentenv"):
        for _ in range(3):
            sink.write(b"12345\n")
    sink.close()
    assert sink.lost_bytes == 18
    assert sink.tail() == "12345\n12345\n12345"
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "No space left on device" in caplog.text
    assert "free some space" in caplog.text


def test_writing_resumes_and_the_gap_is_noted(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "later" / "stdout.log"
    with LogSink(path) as sink, caplog.at_level(logging.WARNING, "agentenv"):
        sink.write(b"lost\n")
        path.parent.mkdir()
        sink.write(b"kept\n")
        sink.write(b"kept too\n")
    assert path.read_text() == (
        "\n--- agentenv: 5 bytes missing here (No such file or directory) ---\nkept\nkept too\n"
    )
    assert (sink.lost_bytes, len(caplog.records)) == (5, 1)


def test_a_link_in_the_files_place_is_not_followed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    target = tmp_path / "precious"
    target.write_bytes(b"precious")
    (tmp_path / "stdout.log").symlink_to(target)
    with LogSink(tmp_path / "stdout.log") as sink:
        sink.write(b"output")
    assert target.read_bytes() == b"precious"
    assert sink.lost_bytes == 6


def test_wrong_sizes_are_refused() -> None:
    with pytest.raises(ValueError, match="max_bytes=0"):
        LogSink(None, max_bytes=0)
