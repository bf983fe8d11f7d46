"""Files copied in and out by what works inside, done here by a thread: no machine is needed."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import IO, Any

import pytest

from agentenv.boxes.files import FileWork
from agentenv.guest.agent.filework import perform


class Here(FileWork):
    """A sandbox that is this host; ``between`` is called before what was read is passed on."""

    def __init__(self, between: Callable[[], None] = lambda: None) -> None:
        self._access: Any = SimpleNamespace(id="here")
        self._between = between

    @contextlib.contextmanager
    def _reading(self, work: Mapping[str, Any], user: str | None) -> Iterator[IO[bytes]]:
        ours, theirs = os.pipe()
        with open(ours, "rb") as stream, _performing(work, -1, theirs):
            if work["op"] != "stat":
                self._between()
            yield stream

    @contextlib.contextmanager
    def _feeding(self, work: Mapping[str, Any], user: str | None) -> Iterator[IO[bytes]]:
        theirs, ours = os.pipe()
        with _performing(work, theirs, -1), open(ours, "wb") as stream:
            yield stream


@contextlib.contextmanager
def _performing(work: Mapping[str, Any], stdin: int, stdout: int) -> Iterator[None]:
    errors: list[OSError] = []

    def do() -> None:
        try:
            perform(work, stdin, stdout)
        except OSError as error:
            errors.append(error)
        finally:
            os.close(max(stdin, stdout))

    thread = threading.Thread(target=do, daemon=True)
    thread.start()
    yield
    thread.join()
    for error in errors:
        raise error


def test_modes_and_times_are_kept_of_files_and_of_trees(tmp_path: Path) -> None:
    source = tmp_path / "tree/file"
    source.parent.mkdir()
    source.write_bytes(b"data")
    source.chmod(0o754)
    os.utime(source, ns=(1, 1_234_567_890_123_456_789))
    Here().copy_in(source, str(tmp_path / "one"))
    Here().copy_in(source.parent, str(tmp_path / "all"))
    assert (tmp_path / "one").read_bytes() == b"data"
    assert (tmp_path / "one").stat().st_mode & 0o777 == 0o754
    assert (tmp_path / "one").stat().st_mtime_ns == 1_234_567_890_123_456_789
    # In an archive times are text with less behind the point.
    assert abs((tmp_path / "all/file").stat().st_mtime_ns - 1_234_567_890_123_456_789) < 1000
    before = (tmp_path / "one").stat().st_mtime_ns
    Here().write(str(tmp_path / "one"), b"new")
    assert (tmp_path / "one").stat().st_mtime_ns > before


def test_two_copies_to_one_place_do_not_disturb_each_other(tmp_path: Path) -> None:
    (tmp_path / "first").write_bytes(b"1" * 3_000_000)
    (tmp_path / "second").write_bytes(b"2" * 10)
    (tmp_path / "out").mkdir()
    target = tmp_path / "out/target"

    def other() -> None:
        assert Here().copy_out(str(tmp_path / "second"), target) == []
        assert target.read_bytes() == b"2" * 10

    assert Here(other).copy_out(str(tmp_path / "first"), target) == []
    assert target.read_bytes() == b"1" * 3_000_000
    assert os.listdir(tmp_path / "out") == ["target"]


def test_what_a_dead_process_left_is_in_nobodys_way(tmp_path: Path) -> None:
    (tmp_path / "source").write_bytes(b"new")
    left = tmp_path / f".target.{os.getpid()}.part"
    left.write_bytes(b"half")
    Here().copy_out(str(tmp_path / "source"), tmp_path / "target")
    assert (tmp_path / "target").read_bytes() == b"new"
    assert left.read_bytes() == b"half"


def test_a_copy_that_fails_leaves_nothing_and_what_was_there(tmp_path: Path) -> None:
    (tmp_path / "source").write_bytes(b"x" * ((1 << 20) + 1))
    (tmp_path / "out").mkdir()
    (tmp_path / "out/target").write_bytes(b"old")
    with pytest.raises(OSError, match="expected at most 1 MiB"):
        Here().copy_out(str(tmp_path / "source"), tmp_path / "out/target", max_mb=1)
    assert os.listdir(tmp_path / "out") == ["target"]
    assert (tmp_path / "out/target").read_bytes() == b"old"


def test_a_name_as_long_as_names_can_be(tmp_path: Path) -> None:
    (tmp_path / "source").write_bytes(b"x")
    for name in ("n" * 255, "\u00e4" * 127):
        Here().copy_out(str(tmp_path / "source"), tmp_path / name)
        assert (tmp_path / name).read_bytes() == b"x"


def test_hard_links_come_out_as_links(tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    (tmp_path / "d/0").write_bytes(b"x" * 500_000)
    for number in range(1, 20):
        os.link(tmp_path / "d/0", tmp_path / f"d/{number}")
    assert Here().copy_out(str(tmp_path / "d"), tmp_path / "out", max_mb=1) == []
    assert len({path.stat().st_ino for path in (tmp_path / "out").iterdir()}) == 1
    assert len(os.listdir(tmp_path / "out")) == 20
