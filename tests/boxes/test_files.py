"""Files of a sandbox: one machine for all of them."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path, PurePosixPath

import pytest

from agentenv import Sandbox
from agentenv.errors import ConfigError

pytestmark = pytest.mark.timeout(300)


def test_what_is_written_is_read(box: Sandbox) -> None:
    data = os.urandom(600_000)
    box.write("/tmp/data", data, mode=0o640)
    assert box.read("/tmp/data") == data
    assert box.read("/tmp/data", offset=10, size=5) == data[10:15]
    assert box.read("/tmp/data", offset=1 << 40) == b""
    entry = box.stat("/tmp/data")
    assert (entry.name, entry.kind, entry.size, entry.mode, entry.owner) == ("data", "file", len(data), 0o640, 0)
    box.write("/tmp/data", "ä")
    assert box.read_text("/tmp/data") == "ä"
    box.write("/tmp/data", b"b", append=True)
    assert box.read_text("/tmp/data") == "äb"
    box.write("/tmp/new/deep/file", b"", parents=True)
    assert box.read("/tmp/new/deep/file") == b""


def test_what_is_too_large_to_hold_is_refused(box: Sandbox) -> None:
    with pytest.raises(OSError, match=r"at most 1 MiB, got more; raise max_mb.*'/dev/zero'") as caught:
        box.read("/dev/zero", max_mb=1)
    assert caught.value.errno == errno.EFBIG
    assert len(box.read("/dev/zero", size=1 << 20, max_mb=1)) == 1 << 20


def test_directories_are_made_listed_moved_and_removed(box: Sandbox) -> None:
    box.mkdir("/tmp/d/e", parents=True)
    box.mkdir("/tmp/d/e", parents=True)
    box.mkdir("/tmp/d/f", mode=0o700)
    box.write("/tmp/d/e/x y\n", b"123")
    box.exec("ln -s e/nothing /tmp/d/link", check=True)
    found = box.list("/tmp/d")
    assert [(entry.name, entry.kind) for entry in found] == [("e", "directory"), ("f", "directory"), ("link", "link")]
    assert (found[1].mode, found[2].target) == (0o700, "e/nothing")
    assert [entry.path for entry in box.list("/tmp/d", depth=2)] == ["e", "e/x y\n", "f", "link"]
    assert box.list("/tmp/d", depth=2)[1].name == "x y\n"
    assert abs(found[0].mtime - float(box.exec("date +%s").text)) < 600
    box.move("/tmp/d/e/x y\n", "/tmp/d/f/z")
    assert box.read("/tmp/d/f/z") == b"123"
    assert box.exists("/tmp/d/f/z")
    assert not box.exists("/tmp/d/link")
    assert not box.exists("/tmp/d/f/z/below")
    box.remove("/tmp/d/f/z")
    box.remove("/tmp/d/f")
    box.remove("/tmp/d", recursive=True)
    assert not box.exists("/tmp/d")


@pytest.mark.parametrize(
    ("work", "kind", "path"),
    [
        (lambda box: box.read("/no/file"), FileNotFoundError, "/no/file"),
        (lambda box: box.read("/etc"), IsADirectoryError, "/etc"),
        (lambda box: box.read("/etc/shadow", user="nobody"), PermissionError, "/etc/shadow"),
        (lambda box: box.write("/no/dir/file", b"x"), FileNotFoundError, "/no/dir/file"),
        (lambda box: box.write("/etc", b"x"), IsADirectoryError, "/etc"),
        (lambda box: box.write("/etc/mine", b"x" * 300_000, user="nobody"), PermissionError, "/etc/mine"),
        (lambda box: box.write("/dev/full", b"x" * 1_000_000), OSError, "/dev/full"),
        (lambda box: box.list("/etc/passwd"), NotADirectoryError, "/etc/passwd"),
        (lambda box: box.list("/root", user="nobody"), PermissionError, "/root"),
        (lambda box: box.stat("/nothing"), FileNotFoundError, "/nothing"),
        (lambda box: box.mkdir("/etc"), FileExistsError, "/etc"),
        (lambda box: box.remove("/nothing"), FileNotFoundError, "/nothing"),
        (lambda box: box.remove("/etc"), OSError, "/etc"),
        (lambda box: box.move("/nothing", "/tmp/x"), FileNotFoundError, "/nothing"),
        (lambda box: box.copy_out("/nothing", "/tmp/never"), FileNotFoundError, "/nothing"),
        (lambda box: box.copy_out("/dev/null", "/tmp/never"), OSError, "/dev/null"),
    ],
)
def test_errors_are_the_builtins_and_name_sandbox_and_path(
    box: Sandbox, work: Callable[[Sandbox], object], kind: type[OSError], path: str
) -> None:
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(kind, match="sandbox 'shared'") as caught:
        work(box)
    assert type(caught.value) is kind
    assert caught.value.filename == path
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.parametrize("path", ["", "a\0b", 3, None, b"/etc"])
def test_paths_that_are_none(box: Sandbox, path: str) -> None:
    with pytest.raises(ConfigError, match="path: expected a path as a text without zero bytes"):
        box.read(path)


def test_paths_may_be_those_of_pathlib_and_users_may_be_numbers(box: Sandbox, tmp_path: Path) -> None:
    place = PurePosixPath("/tmp/pathlib")
    box.mkdir(place, user=1234)
    box.write(place / "a", b"abc", mode=0o755, user=1234)
    box.move(place / "a", place / "b")
    entry = box.stat(place / "b")
    assert (entry.name, entry.path, entry.owner, entry.mode) == ("b", "/tmp/pathlib/b", 1234, 0o755)
    assert [one.name for one in box.list(place)] == ["b"]
    assert box.copy_out(place, tmp_path) == []
    assert (tmp_path / "pathlib/b").read_bytes() == b"abc"
    box.copy_in(tmp_path / "pathlib", place)
    assert box.read_text(place / "pathlib" / "b") == "abc"
    assert box.exists(place)
    box.remove(place, recursive=True)
    with pytest.raises(FileNotFoundError) as caught:
        box.read(place)
    assert caught.value.filename == "/tmp/pathlib"


def test_files_are_copied_both_ways(box: Sandbox, tmp_path: Path) -> None:
    (tmp_path / "run.sh").write_text("#!/bin/sh\necho ran\n")
    (tmp_path / "run.sh").chmod(0o755)
    box.mkdir("/tmp/in")
    box.copy_in(tmp_path / "run.sh", "/tmp/in")
    box.copy_in(tmp_path / "run.sh", "/tmp/in/other")
    assert box.exec(["/tmp/in/run.sh"]).text == box.exec(["/tmp/in/other"]).text == "ran\n"
    box.exec("head -c 3000000 /dev/urandom > /tmp/in/big; chmod 600 /tmp/in/big", check=True)
    assert box.copy_out("/tmp/in/big", tmp_path) == []
    assert (tmp_path / "big").read_bytes() == box.read("/tmp/in/big")
    assert (tmp_path / "big").stat().st_mode & 0o777 == 0o600
    with pytest.raises(OSError, match="at most 1 MiB"):
        box.copy_out("/tmp/in/big", tmp_path / "again", max_mb=1)
    box.exec(["truncate", "-s", "8T", "/tmp/in/sparse"], check=True)
    with pytest.raises(OSError, match="at most 4096 MiB"):
        box.copy_out("/tmp/in/sparse", tmp_path / "again")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["big", "run.sh"]


def test_trees_are_copied_both_ways(box: Sandbox, tmp_path: Path) -> None:
    source = tmp_path / "source"
    (source / "a/b").mkdir(parents=True)
    (source / "a/b/file").write_bytes(os.urandom(200_000))
    (source / "a/link").symlink_to("b/file")
    (source / "out").symlink_to("/etc/hostname")
    box.mkdir("/srv/there", parents=True)
    box.copy_in(source, "/srv/there")
    assert [entry.path for entry in box.list("/srv/there", depth=9)][-1] == "source/out"
    assert {entry.owner for entry in box.list("/srv/there", depth=9)} == {0}
    assert box.copy_out("/srv/there/source", tmp_path / "back") == ["out"]
    assert (tmp_path / "back/a/link").read_bytes() == (source / "a/b/file").read_bytes()
    box.copy_out("/srv/there/source/a", tmp_path / "back")
    assert (tmp_path / "back/a/b/file").exists()
    with pytest.raises(FileNotFoundError):
        box.copy_in(tmp_path / "nothing", "/tmp/x")


def test_a_tree_that_cannot_be_read_says_why(box: Sandbox, tmp_path: Path) -> None:
    box.exec("mkdir -p /srv/closed/in; echo a > /srv/closed/in/a; chmod 700 /srv/closed/in", check=True)
    with pytest.raises(PermissionError, match="sandbox 'shared'"):
        box.copy_out("/srv/closed", tmp_path / "x", user="nobody")


def test_a_tree_that_may_not_be_written_says_why(box: Sandbox, tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(bytes(500_000))
    with pytest.raises(PermissionError, match="sandbox 'shared'"):
        box.copy_in(tmp_path, "/etc/mine", user="nobody")
    with pytest.raises(OSError, match="expected a file or a directory"):
        box.copy_in("/dev/null", "/tmp/x")
