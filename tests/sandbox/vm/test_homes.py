"""The directories of machines: removed when whoever made them is dead, and never before."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from agentenv.sandbox.runtimes._runid import new_run_id
from agentenv.sandbox.runtimes._vm.homes import _forget_all, keep_homes, make_homes, remove_homes, sweep_homes

DEAD = "1-1-00000000"  # the first process of this system began later
SWEEP = "from agentenv.sandbox.runtimes._vm.homes import sweep_homes; print(*sweep_homes())"


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    return tmp_path


def nobody_lives(_run_id: str) -> bool:
    """As it seems where numbers of processes mean others."""
    return False


def test_what_is_held_is_left_whoever_seems_to_be_dead(place: Path) -> None:
    homes = make_homes(new_run_id())
    (homes / "one").mkdir()
    assert sweep_homes(nobody_lives) == ()
    assert (homes / "one").is_dir()
    remove_homes(homes)
    remove_homes(homes)
    assert list(place.iterdir()) == []


def test_a_sweep_in_another_pid_namespace_takes_nothing_that_lives(place: Path) -> None:
    command = ["unshare", "--pid", "--fork", "--mount-proc", sys.executable, "-c", SWEEP]
    if os.geteuid() != 0 or shutil.which("unshare") is None:
        pytest.skip("no pid namespace can be made: be root, with util-linux")
    homes, dead = make_homes(new_run_id()), place / f"agentenv.{DEAD.replace('1-1', '999999-1')}"
    dead.mkdir()
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=30)
    assert done.stdout.split() == ["999999-1-00000000"]
    assert homes.is_dir()
    remove_homes(homes)


def test_what_was_removed_is_held_again(place: Path) -> None:
    homes = make_homes(new_run_id())
    descriptors = len(os.listdir("/proc/self/fd"))
    shutil.rmtree(homes)
    keep_homes(homes)
    assert len(os.listdir("/proc/self/fd")) == descriptors
    assert sweep_homes(nobody_lives) == ()
    remove_homes(homes)


def test_a_fork_holds_nothing(place: Path) -> None:
    homes = make_homes(new_run_id())
    reader, writer = os.pipe()
    told, tell = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(tell, b"!")
        os.close(writer)
        os.read(reader, 1)
        os._exit(0)
    os.read(told, 1)
    _forget_all()  # as the end of this process would
    assert sweep_homes(nobody_lives) == (homes.name.removeprefix("agentenv."),)
    os.close(writer)
    os.waitpid(child, 0)
    for fd in (reader, told, tell):
        os.close(fd)


def test_only_directories_are_removed(place: Path) -> None:
    (place / "target").mkdir()
    (place / f"agentenv.{DEAD}").symlink_to(place / "target")
    (place / f"agentenv.{DEAD[:-1]}1").write_text("a file")
    os.mkfifo(place / f"agentenv.{DEAD[:-1]}2")
    (place / "agentenv.other").mkdir()
    before = sorted(place.iterdir())
    assert sweep_homes(nobody_lives) == ()
    assert sorted(place.iterdir()) == before
