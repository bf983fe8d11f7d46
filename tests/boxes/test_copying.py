"""Files copied in and out by what works inside, done here by a thread: no machine is needed."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import IO, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentenv.boxes.files import FileWork
from agentenv.guest.agent.filework import perform
from agentenv.wire.holes import end_sparsely, write_sparsely


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


def test_a_path_that_ends_in_its_directory_is_copied_into_the_target_and_not_above(tmp_path: Path) -> None:
    (tmp_path / "d/e").mkdir(parents=True)
    (tmp_path / "d/a").write_bytes(b"x")
    for path in ("d/e/..", "d/e/../", "d/.", "d/e/../."):
        target = tmp_path / "out" / path.replace("/", "_")
        target.mkdir(parents=True)
        Here().copy_out(f"{tmp_path}/{path}", target)
        assert sorted(os.listdir(target)) == ["a", "e"]
    assert sorted(os.listdir(tmp_path)) == ["d", "out"]
    assert len(os.listdir(tmp_path / "out")) == 4


def test_a_target_that_cannot_be_is_named_as_it_was_given(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"x")
    with pytest.raises(FileNotFoundError) as caught:
        Here().copy_out(str(tmp_path / "a"), tmp_path / "none/b")
    assert caught.value.filename == str(tmp_path / "none/b")


# What is in between is no whole number of pages, nor of what is read at once.
SPARSE = b"begin" + bytes(5 << 20) + b"middle" + bytes((3 << 20) + 77) + b"x" * 5000 + bytes(4 << 20)


@pytest.mark.parametrize("end", [b"", b"end"])
def test_zeros_take_no_room(tmp_path: Path, end: bytes) -> None:
    (tmp_path / "d").mkdir()
    (tmp_path / "d/a").write_bytes(SPARSE + end)
    here = Here()
    here.copy_out(str(tmp_path / "d/a"), tmp_path / "out")
    here.copy_out(str(tmp_path / "d"), tmp_path / "tree")
    here.copy_in(tmp_path / "d/a", str(tmp_path / "in"))
    here.copy_in(tmp_path / "d", str(tmp_path / "tree_in"))
    for copy in ("out", "tree/a", "in", "tree_in/a"):
        assert (tmp_path / copy).read_bytes() == SPARSE + end
        assert (tmp_path / copy).stat().st_blocks * 512 < 100_000, copy


def test_what_is_appended_or_shorter_than_before_is_what_was_written(tmp_path: Path) -> None:
    here, path = Here(), tmp_path / "a"
    here.write(path, b"x" * 50_000)
    here.write(path, bytes(8192))
    assert path.read_bytes() == bytes(8192)
    here.write(path, bytes(8192) + b"y", append=True)
    assert path.read_bytes() == bytes(16384) + b"y"


@given(st.lists(st.integers(0, 20_000).map(bytes) | st.binary(max_size=9000), max_size=8))
def test_pieces_of_any_kind_are_the_file(pieces: list[bytes]) -> None:
    with tempfile.TemporaryFile(buffering=0) as file:
        for piece in pieces:
            write_sparsely(file.fileno(), piece)
        end_sparsely(file.fileno())
        file.seek(0)
        assert file.read() == b"".join(pieces)


_FULL = """
mount -t tmpfs -o size=1m none "$1" && exec "$0" -c "$2" "$1"
"""
_COPY = """
import io, sys, tarfile
from pathlib import Path
from agentenv.boxes.landing import landing
from agentenv.boxes.trees import lay_out
here, much, stream = Path(sys.argv[1]), b"x" * (4 << 20), io.BytesIO()
with tarfile.open(fileobj=stream, mode="w") as archive:
    member = tarfile.TarInfo("d/a")
    member.size = len(much)
    archive.addfile(member, io.BytesIO(much))
stream.seek(0)

def one():
    with landing(here / "one") as land:
        land(much)

for copy in (one, lambda: lay_out(stream, here / "tree", most_bytes=1 << 30, sandbox="web")):
    try:
        copy()
    except OSError as error:
        print(type(error).__name__, error)
"""


def test_a_full_disk_of_this_host_is_not_taken_for_the_sandboxes(tmp_path: Path) -> None:
    space = ["unshare", "--user", "--map-root-user", "--mount"]
    argv = [*space, "sh", "-c", _FULL, sys.executable, str(tmp_path), _COPY]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    if "unshare failed" in done.stderr or "mount:" in done.stderr:
        pytest.skip("needs user namespaces in which a file system can be mounted")
    assert done.stderr == ""
    for directory in (tmp_path, tmp_path / "tree/d"):
        assert f"ResourceLimit [Errno 28] no room on the disk for the copy in {directory} (" in done.stdout
    assert done.stdout.count("remedy: free some of it, or copy to another disk") == 2


def test_hard_links_come_out_as_links(tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    (tmp_path / "d/0").write_bytes(b"x" * 500_000)
    for number in range(1, 20):
        os.link(tmp_path / "d/0", tmp_path / f"d/{number}")
    assert Here().copy_out(str(tmp_path / "d"), tmp_path / "out", max_mb=1) == []
    assert len({path.stat().st_ino for path in (tmp_path / "out").iterdir()}) == 1
    assert len(os.listdir(tmp_path / "out")) == 20
