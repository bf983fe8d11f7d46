"""Files of templates that are not what was written are noticed, whichever and however; and made anew."""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from agentenv.errors import ResourceLimit, RuntimeUnavailable
from agentenv.sandbox.runtimes._vm import seal as seals
from agentenv.sandbox.runtimes._vm.seal import damage, digest, seal
from agentenv.sandbox.runtimes._vm.templates import Templates

_SIZES = {"memory": 4 << 20, "state": 100_000, "machine.json": 400, "scratch.ext4": 2 << 20}


def make(directory: Path) -> None:
    """What is like a snapshot: a few pages of data in much of nothing."""
    for name, size in _SIZES.items():
        with open(directory / name, "wb") as file:
            file.truncate(size)
            for at in (0, size // 2 & ~4095):
                file.seek(at)
                file.write(f"{name} at {at}".encode())


def truncate(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def lengthen(path: Path) -> None:
    os.truncate(path, path.stat().st_size + 4096)


def flip(path: Path) -> None:
    """One bit, in what was written."""
    with open(path, "r+b") as file:
        byte = file.read(1)
        file.seek(0)
        file.write(bytes([byte[0] ^ 1]))


def fill_a_hole(path: Path) -> None:
    with open(path, "r+b") as file:
        file.seek(path.stat().st_size // 4 & ~4095)
        file.write(b"x")


def exchange(path: Path) -> None:
    """Another file of the same size in its place, as old as it."""
    found = path.stat()
    other = path.with_name("other")
    other.write_bytes(os.urandom(found.st_size))
    os.utime(other, ns=(found.st_atime_ns, found.st_mtime_ns))
    other.rename(path)


_DAMAGES = [truncate, lengthen, flip, fill_a_hole, exchange, Path.unlink]


@pytest.mark.parametrize("name", [*_SIZES, seals.SEAL])
@pytest.mark.parametrize("harm", _DAMAGES, ids=lambda harm: harm.__name__)
def test_damage_is_noticed_said_and_made_good(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, name: str, harm: Callable[[Path], None]
) -> None:
    kept = Templates(tmp_path)
    found = kept.get(["a"], make)
    assert damage(found) == ""
    inside = {name: (found / name).read_bytes() for name in _SIZES}
    harm(found / name)
    if name == seals.SEAL and harm in (lengthen, fill_a_hole):
        return  # a seal that can still be read is one
    assert name in damage(found)
    with caplog.at_level(logging.WARNING):
        assert kept.get(["a"], make) == found
    assert "is damaged" in caplog.text
    assert name in caplog.text
    assert {name: (found / name).read_bytes() for name in _SIZES} == inside
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


def test_what_was_read_once_is_not_read_again_before_the_next_boot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make(tmp_path)
    seal(tmp_path)
    read: list[str] = []
    monkeypatch.setattr(seals, "digest", lambda path: read.append(path.name) or digest(path))
    assert damage(tmp_path) == ""
    assert sorted(read) == ["machine.json", "state"]
    monkeypatch.setattr(seals, "_boot", lambda: "another")
    for expected in (sorted(_SIZES), ["machine.json", "state"]):
        read.clear()
        assert damage(tmp_path) == ""
        assert sorted(read) == expected
    assert damage(tmp_path, thoroughly=True) == ""


def test_a_copy_with_other_holes_and_times_is_as_good(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    make(tmp_path / "a")
    seal(tmp_path / "a")
    (tmp_path / "b").mkdir()
    for path in (tmp_path / "a").iterdir():
        (tmp_path / "b" / path.name).write_bytes(path.read_bytes())
    assert (tmp_path / "b/memory").stat().st_blocks > (tmp_path / "a/memory").stat().st_blocks
    assert damage(tmp_path / "b") == ""


def test_a_template_taken_away_while_it_is_used_is_made_again(tmp_path: Path) -> None:
    kept, used = Templates(tmp_path), []

    def use(template: Path) -> bytes:
        used.append(template)
        if len(used) == 1:
            shutil.rmtree(template)
        return (template / "state").read_bytes()

    assert kept.bring_back(["a"], make, use).startswith(b"state at 0")
    assert len(used) == 2


def test_what_is_not_the_templates_fault_is_raised_and_not_repeated(tmp_path: Path) -> None:
    used = []

    def use(template: Path) -> None:
        used.append(template)
        raise RuntimeUnavailable("no memory for another machine")

    with pytest.raises(RuntimeUnavailable, match="no memory"):
        Templates(tmp_path).bring_back(["a"], make, use)
    assert len(used) == 1


def test_what_a_killed_process_left_of_another_template_is_swept(tmp_path: Path) -> None:
    half = tmp_path / f".{'b' * 32}-abc"
    half.mkdir()
    (half / "memory").write_bytes(b"half of it")
    Templates(tmp_path).get(["a"], make)
    assert not half.exists()


def test_what_another_process_makes_now_is_not_swept(tmp_path: Path) -> None:
    other = Templates(tmp_path)

    def make_within(directory: Path) -> None:
        make(directory)
        Templates(tmp_path).get(["inner"], make)
        assert (directory / "memory").exists()

    assert (other.get(["outer"], make_within) / "memory").exists()


def test_a_full_disk_and_one_that_may_not_be_written_say_what_helps(small_disk: Path) -> None:
    def large(directory: Path) -> None:
        (directory / "memory").write_bytes(os.urandom(32 << 20))

    with pytest.raises(ResourceLimit, match=r"(?s)cannot keep a machine's snapshot in .*MB free.*AGENTENV_CACHE=DIR"):
        Templates(small_disk / "t").get(["a"], large)
    assert [path for path in (small_disk / "t").iterdir() if path.is_dir()] == []
