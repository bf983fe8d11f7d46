"""Images: the same tree is the same bytes, and what only root can have is in them all the same."""

from __future__ import annotations

import os
import stat
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from agentenv.errors import ConfigError, ProtocolError
from agentenv.images import ext4
from agentenv.images.copying import Copier
from agentenv.images.ext4 import make_empty, make_ext4, measure
from agentenv.images.files import digest_file, disk_bytes, remove_tree
from agentenv.images.inodes import settle
from agentenv.images.programs import Output, run
from agentenv.images.trees import Meta, Table, Tree, digest_tree, take_in
from cli_watch import poll

pytestmark = pytest.mark.usefixtures("_e2fsprogs")
LONG = "d" * 120 + "/" + "e" * 120 + "/" + "f" * 120


@pytest.fixture
def _e2fsprogs(need) -> None:
    need("mkfs.ext4", "debugfs")


def ask(image: Path, request: str) -> str:
    from agentenv.images.programs import need_program

    argv = [need_program("debugfs", "to look"), "-R", request, str(image)]
    return subprocess.run(argv, capture_output=True, text=True, check=True).stdout


def check(image: Path) -> None:
    from agentenv.images.programs import need_program

    done = subprocess.run([need_program("e2fsck", "to check"), "-fn", str(image)], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


def make_tree(place: Path, names: str = "abc") -> Tree:
    place.mkdir()
    tree = Tree.make(place)
    (tree.root / "sub").mkdir()
    for name in [*names, "sub/two words"]:
        (tree.root / name).write_text(name)
    os.symlink("/elsewhere/" + "x" * 80, tree.root / "link")
    os.link(tree.root / "a", tree.root / "sub/again")
    os.mkfifo(tree.root / "fifo")
    (tree.root / LONG).parent.mkdir(parents=True)
    (tree.root / LONG).write_text("deep")
    for path in tree.root.rglob("*"):
        if not path.is_dir() or path.is_symlink():
            os.utime(path, (1e9, 1e9), follow_symlinks=False)
    tree.table = Table(
        {
            "sub/two words": Meta(
                0o4755, 33, 70_000, {"user.note": b"\0\xff", "security.capability": b"\1\0\0\2" + b"\0" * 16}
            ),
            "link": Meta(0o777, 5, 6),
            "sub/null": Meta(0o666, device=("c", 1, 3)),
            "sub": Meta(0o1777, 1, 2),
            LONG: Meta(0o2711, 7, 8),
            "not there": Meta(0o600, 1, 1),
        }
    )
    return tree


def test_the_same_tree_is_the_same_image(tmp_path: Path) -> None:
    first, second = tmp_path / "first.img", tmp_path / "second.img"
    tree = make_tree(tmp_path / "1")
    make_ext4(tree.root, first, label="x", table=tree.table)
    # Times of change and access, which nobody can set, are in whole seconds.
    begun = int(time.time())
    poll(lambda: int(time.time()) > begun, "the next second")
    other = make_tree(tmp_path / "2", "cba")
    make_ext4(other.root, second, label="x", table=other.table)
    assert digest_file(first) == digest_file(second)
    assert digest_tree(tree.root, tree.table, times=True) == digest_tree(other.root, other.table, times=True)
    (other.root / "a").write_text("A")
    assert digest_tree(tree.root, tree.table) != digest_tree(other.root, other.table)
    check(first)
    assert sorted(os.listdir(tmp_path)) == ["1", "2", "first.img", "second.img"]


def test_owners_modes_attributes_and_devices_are_in_the_image(tmp_path: Path) -> None:
    tree = make_tree(tmp_path / "1")
    image = tmp_path / "image"
    make_ext4(tree.root, image, label="x", table=tree.table)
    stat_of = {
        name: " ".join(ask(image, f'stat "/{name}"').split()) for name in ("sub/two words", "a", LONG, "sub/null")
    }
    assert "Mode: 04755" in stat_of["sub/two words"]
    assert "User: 33 Group: 70000" in stat_of["sub/two words"]
    assert "user.note (2) = 00 ff" in stat_of["sub/two words"]
    assert "security.capability (20) = 01 00 00 02" in stat_of["sub/two words"]
    assert "Type: character special Mode: 0666" in stat_of["sub/null"]
    assert "number: 01:03" in stat_of["sub/null"]
    assert "Mode: 02711" in stat_of[LONG]
    assert "User: 7 Group: 8" in stat_of[LONG]
    assert "User: 0 Group: 0" in stat_of["a"]
    assert "Links: 2" in stat_of["a"]
    assert stat_of["a"].count("0x3b9aca00:00000000") == 4, "all times are that of its modification"
    root = ask(image, "ls -l /")
    assert " 120777 (7) 5 6 " in " ".join(root.split())
    assert " 41777 (2) 1 2 " in " ".join(root.split())
    assert "lost+found" not in root
    assert ask(image, "cat /sub/again") == "a"


def test_long_names_cost_no_more_than_short_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = tmp_path / "tree"
    place.mkdir()
    tree = Tree.make(place)
    (tree.root / LONG).parent.mkdir(parents=True)
    folder = LONG.rpartition("/")[0]
    for name in ("<5>", "two words", "f" * 120, "g" * 255):
        (tree.root / folder / name).write_text(name)
        tree.table[f"{folder}/{name}"] = Meta(0o640, 7, 8, {"user.a": name.encode()})
    tree.table[f"{folder}/null"] = Meta(0o666, 9, 8, device=("c", 1, 3))
    tree.table[folder] = Meta(0o2775, 7, 8)
    tree.table["short"] = Meta(0o600, 3, 4, device=("b", 8, 0))
    started = []

    def count(argv: Sequence[str], **more: Any) -> Output:
        started.append(argv)
        return run(argv, **more)

    monkeypatch.setattr(ext4, "run", count)
    make_ext4(tree.root, tmp_path / "image", label="x", table=tree.table)
    assert len(started) == 2 + 4, "one file system, one script, and a line each for what a name of 255 bytes has"
    check(tmp_path / "image")
    for name in ("<5>", "two words", "f" * 120, "g" * 255):
        said = " ".join(ask(tmp_path / "image", f'stat "/{folder}/{name}"').split())
        assert "Mode: 0640" in said
        assert "User: 7 Group: 8" in said
        assert f"user.a ({len(name)})" in said
    assert "User: 9 Group: 8" in " ".join(ask(tmp_path / "image", f'stat "/{folder}/null"').split())
    assert "Mode: 02775" in " ".join(ask(tmp_path / "image", f'stat "/{folder}"').split())
    assert "block special" in ask(tmp_path / "image", "stat /short")


def test_names_that_could_be_commands_are_refused_or_kept_plain(tmp_path: Path) -> None:
    place = tmp_path / "tree"
    place.mkdir()
    tree = Tree.make(place)
    (tree.root / "plain\ndump x y").write_text("")
    make_ext4(tree.root, tmp_path / "a", label="x")
    tree.table = Table({"plain\ndump x y": Meta(0o600, 1, 1)})
    with pytest.raises(ConfigError, match="line break"):
        make_ext4(tree.root, tmp_path / "b", label="x", table=tree.table)
    (tree.root / "file").write_text("")
    tree.table = Table({"file": Meta(0o600, 0, 0, {"user.x\nrm file": b"x", "user.fine": b"y"})})
    make_ext4(tree.root, tmp_path / "c", label="x", table=tree.table)
    shown = ask(tmp_path / "c", "stat /file")
    assert "user.fine" in shown
    assert "user.x" not in shown


def test_many_files_and_large_ones_fit(tmp_path: Path) -> None:
    place = tmp_path / "tree"
    place.mkdir()
    tree = Tree.make(place)
    (tree.root / "many").mkdir()
    for number in range(3000):
        (tree.root / f"many/{number:040d}").touch()
    with open(tree.root / "large", "wb") as file:
        file.write(os.urandom(9 << 20))
    make_ext4(tree.root, tmp_path / "image", label="x")
    check(tmp_path / "image")
    assert measure(tree.root, {}).size_mb <= 13


def test_a_size_is_kept_or_refused(tmp_path: Path) -> None:
    tree = make_tree(tmp_path / "1")
    make_ext4(tree.root, tmp_path / "image", label="x", table=tree.table, size_mb=40)
    assert (tmp_path / "image").stat().st_size == 40 << 20
    assert disk_bytes(tmp_path / "image") < 1 << 20
    with open(tree.root / "large", "wb") as file:
        file.write(os.urandom(5 << 20))
    with pytest.raises(ConfigError, match=r"need about \d+ MB, got 4"):
        make_ext4(tree.root, tmp_path / "small", label="x", size_mb=4)


@pytest.mark.parametrize("size_mb", [1 << 24, 10**30])
def test_a_size_that_no_file_system_can_have_is_refused(tmp_path: Path, size_mb: int) -> None:
    (tmp_path / "root").mkdir()
    with pytest.raises(ConfigError, match=f"file system: MB: expected a.*, got {size_mb}"):
        make_ext4(tmp_path / "root", tmp_path / "image", label="x", size_mb=size_mb)
    with pytest.raises(ConfigError, match=f"file system: MB: expected a.*, got {size_mb}"):
        make_empty(tmp_path / "empty", size_mb=size_mb, label="x")


def test_an_empty_one_is_a_hole(tmp_path: Path) -> None:
    for name in ("a", "b"):
        make_empty(tmp_path / name, size_mb=128, label="scratch")
    check(tmp_path / "a")
    assert digest_file(tmp_path / "a") == digest_file(tmp_path / "b")
    assert disk_bytes(tmp_path / "a") < 2 << 20


def test_other_file_systems_are_left_alone(tmp_path: Path) -> None:
    image = tmp_path / "image"
    image.write_bytes(bytes(1 << 20))
    with pytest.raises(ValueError, match="expected an ext4 image without checksums"):
        settle(image, keep_times=True, uid=1, gid=1)
    assert image.read_bytes() == bytes(1 << 20)


def test_a_directory_is_taken_as_it_is(tmp_path: Path) -> None:
    source, place = tmp_path / "source", tmp_path / "place"
    source.mkdir()
    place.mkdir()
    (source / "closed").mkdir()
    (source / "closed/file").write_text("x")
    (source / "closed/file").chmod(0o400)
    (source / "closed").chmod(0o500)
    (source / "program").write_text("#!")
    (source / "program").chmod(0o4755)
    os.link(source / "program", source / "twin")
    os.symlink("nowhere", source / "link")
    if os.geteuid() == 0:
        os.chown(source / "program", 1234, 1235)
        os.chmod(source / "program", 0o4755)
    tree = Tree.make(place)
    assert take_in(source, tree) == []
    assert stat.S_IMODE((tree.root / "program").stat().st_mode) == 0o755, "no set-user programs on the host"
    assert tree.table["program"].mode == 0o4755
    assert tree.table["twin"] == tree.table["program"]
    assert tree.table["closed"].mode == 0o500
    assert os.readlink(tree.root / "link") == "nowhere"
    if os.geteuid() == 0:
        assert (tree.table["program"].uid, tree.table["program"].gid) == (1234, 1235)
    assert (tree.root / "program").stat().st_ino == (tree.root / "twin").stat().st_ino
    tree.save()
    assert Tree.load(place) == tree
    (tmp_path / "copy").mkdir()
    copied = tree.copy(tmp_path / "copy")
    assert digest_tree(copied.root, copied.table, times=True) == digest_tree(tree.root, tree.table, times=True)


@pytest.mark.parametrize(("name", "depth"), [("a", 1200), ("n" * 200, 18)])
def test_a_directory_that_no_image_can_hold_is_refused(tmp_path: Path, name: str, depth: int) -> None:
    source, place = tmp_path / "source", tmp_path / "place"
    source.mkdir()
    place.mkdir()
    folder = os.open(source, os.O_RDONLY)
    for _ in range(depth):
        os.mkdir(name, dir_fd=folder)
        above, folder = folder, os.open(name, os.O_RDONLY, dir_fd=folder)
        os.close(above)
    os.close(folder)
    try:
        # Under a longer name than its own.
        (long := place / ("x" * 200) / ("y" * 200) / ("z" * 200)).mkdir(parents=True)
        with pytest.raises(ProtocolError, match="expected directories at most 256 deep"):
            take_in(source, Tree.make(long))
        if depth > 256:
            with pytest.raises(ConfigError, match="expected directories at most 256 deep"):
                Copier("--project").digest(source)
            assert disk_bytes(source) >= 0
    finally:
        remove_tree(source)
        remove_tree(place)
