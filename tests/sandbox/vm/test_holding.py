"""The files of machines: no other process collects what a runtime holds, and nobody holds more than is there."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from agentenv.errors import RuntimeUnavailable
from agentenv.images.content import key_of
from agentenv.images.image import FILE
from agentenv.images.store import Store
from agentenv.sandbox.files import MachineFiles
from agentenv.sandbox.runtimes._vm.holding import Holding

PARTS = ("kernel", "initramfs", "root", "tools", "scratch", "project")
Run = Callable[..., str]


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "cache")


@pytest.fixture
def files(store: Store) -> MachineFiles:
    """Files of a machine, each an object; that of the image has a name."""
    made = {
        name: store.once(key_of(name), lambda out, name=name: _write(out / FILE, name), what="it") / FILE
        for name in PARTS
    }
    store.name("image", "mine", made["root"].parent.name, {})
    return MachineFiles(**made)


@pytest.fixture
def holding() -> Iterator[Holding]:
    found = Holding()
    yield found
    found.close()


@pytest.fixture
def command(tmp_path: Path, store: Store) -> Run:
    def run(*arguments: str) -> str:
        variables = {"AGENTENV_CACHE": str(store.root), "AGENTENV_DATA": str(tmp_path / "data")}
        argv = [sys.executable, "-m", "agentenv.cli", "image", *arguments]
        done = subprocess.run(
            argv, env={**os.environ, **variables}, capture_output=True, text=True, timeout=60, check=True
        )
        return done.stdout

    return run


def _write(path: Path, text: str) -> None:
    path.write_text(text)


def test_another_process_collects_only_what_nobody_holds(files: MachineFiles, holding: Holding, command: Run) -> None:
    holding.keep(files)
    assert command("gc", "--now") == "removed 0 objects, 0 MB; 5 in use or used lately stay\n"
    assert "its file stays as long as another name, a machine or a snapshot uses it" in command("rm", "mine")
    assert json.loads(command("gc", "--now", "--json"))["held"] == 6
    assert all(path.exists() for path in files.paths())
    holding.keep(files)
    holding.close()
    assert command("gc", "--now").startswith("removed 6 objects")
    assert not any(path.exists() for path in files.paths())


def test_a_forked_child_holds_nothing(files: MachineFiles, holding: Holding, command: Run) -> None:
    holding.keep(files)
    ours, theirs = os.pipe()
    if (pid := os.fork()) == 0:
        os.close(theirs)
        os.read(ours, 1)
        os._exit(0)
    try:
        holding.close()
        assert command("gc", "--now").startswith("removed 5 objects")
    finally:
        os.close(theirs)
        os.close(ours)
        os.waitpid(pid, 0)


def test_what_was_collected_before_is_named(files: MachineFiles, holding: Holding, command: Run) -> None:
    command("gc", "--now")
    with pytest.raises(RuntimeUnavailable, match=f"{files.kernel}, which machines are made of, got: No such file"):
        holding.keep(files)


def test_what_was_replaced_is_held_as_it_is_now(tmp_path: Path, holding: Holding) -> None:
    path = tmp_path / "own.ext4"
    path.write_text("before")
    files = MachineFiles(path, path, path, path, path)
    before = len(os.listdir("/proc/self/fd"))
    holding.keep(files)
    (tmp_path / "new").write_text("after")
    os.replace(tmp_path / "new", path)
    holding.keep(files)
    assert len(os.listdir("/proc/self/fd")) == before + 1
    held = [line.split()[5].rpartition(":")[2] for line in Path("/proc/locks").read_text().splitlines()]
    assert str(path.stat().st_ino) in held
    holding.close()
    assert len(os.listdir("/proc/self/fd")) == before
