"""agentenv snapshot, as a user runs it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from agentenv.snapshots.manifest import Snapshot
from agentenv.snapshots.store import SnapshotStore
from snapshots.making import FULL, contents, flip, follow, make

Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def store(tmp_path: Path) -> SnapshotStore:
    return SnapshotStore(tmp_path / "data/snapshots")


@pytest.fixture
def line(store: SnapshotStore, tmp_path: Path) -> tuple[Snapshot, Snapshot]:
    start = contents(make(tmp_path / "1", FULL))
    parent = store.add(tmp_path / "1", name="first", about={"run": "r1", "bad": "\x1b[31mred"})
    return parent, store.add(follow(tmp_path, "2", start, {1: b"x"}), parent=parent, name="second")


@pytest.fixture
def command(tmp_path: Path) -> Run:
    def run(*arguments: str, code: int = 0) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [sys.executable, "-m", "agentenv.cli", "snapshot", *arguments],
            cwd=tmp_path,
            env={**os.environ, "AGENTENV_DATA": str(tmp_path / "data")},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == code, f"{done.stdout}\n{done.stderr}"
        assert "Traceback" not in done.stderr
        return done

    return run


@pytest.mark.parametrize("name", ["ls", "show", "rm", "gc"])
def test_every_help_has_an_example(command: Run, name: str) -> None:
    assert f"  agentenv snapshot {name}" in command(name, "--help").stdout.partition("Example")[2]


def test_help_imports_nothing_heavy() -> None:
    code = (
        "import sys; from agentenv.cli import main; main(['snapshot', 'ls', '--help']); "
        "print(sorted({'numpy', 'gymnasium', 'rich', 'agentenv.snapshots'} & set(sys.modules)), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.stderr == "[]\n"


def test_none(command: Run, tmp_path: Path) -> None:
    assert command("ls").stdout == f"no snapshots in {tmp_path}/data/snapshots\n"
    assert json.loads(command("ls", "--json").stdout)["snapshots"] == []
    assert command("gc").stdout == "removed 0 snapshots and 0 copies, 0.0 MB\n"


def test_from_the_list_to_the_end(command: Run, line: tuple[Snapshot, Snapshot], tmp_path: Path) -> None:
    parent, child = line
    head, first, second, _, total = command("ls").stdout.splitlines()
    assert head.split()[:2] == ["snapshot", "id"]
    assert first.split()[:2] == ["first", parent.id[:12]]
    assert second.split()[:2] == ["second", child.id[:12]]
    assert second.split()[5:8] == ["first", "qemu", "1"]
    assert "copies that agentenv snapshot gc removes" in total
    listed = json.loads(command("ls", "--json").stdout)
    assert [(one["name"], one["kind"], one["parent"], one["damaged"]) for one in listed["snapshots"]] == [
        ("first", "full", None, False),
        ("second", "incremental", parent.id, False),
    ]
    shown = command("show", "first").stdout
    assert "\x1b" not in shown
    for words in ("about run", "r1", "made with image", "gymnasium", "file memory", "blocks:", str(parent.path)):
        assert words in shown
    assert "verified" not in shown
    done = command("show", child.id[:6], "--verify")
    assert f"incremental, changes of {parent.id}" in done.stdout
    assert done.stdout.splitlines()[-1].split() == ["verified", "yes"]
    record = json.loads(command("show", "second", "--json", "--verify").stdout)
    assert (record["id"], record["memory_mb"], record["verified"]) == (child.id, 1, True)
    assert "it is what 'second' is made from" in command("rm", "first", code=1).stderr
    assert command("rm", "second").stdout.startswith("removed second, ")
    assert json.loads(command("rm", "first", "--json").stdout)["removed"] == parent.id
    assert command("ls").stdout.startswith("no snapshots")


def test_what_variables_hold_is_not_shown(command: Run, store: SnapshotStore, tmp_path: Path) -> None:
    plan = {"runtime": "qemu", "spec": {"id": "web", "variables": {"TOKEN": "only-inside", "B": ""}}}
    directory = make(tmp_path / "1", FULL)
    (directory / "sandbox.json").write_text(json.dumps({"files": {"variables": [["PASSWORD", "only-inside"]]}}))
    store.add(directory, name="first", about={"sandbox": "web", "plan": plan})
    shown = [command(*words).stdout for words in (("ls", "--json"), ("show", "first", "--json"), ("show", "first"))]
    for text in shown:
        assert "TOKEN" in text
        assert "only-inside" not in text
    record = json.loads(shown[1])
    assert record["about"]["plan"] == {
        "runtime": "qemu",
        "spec": {"id": "web", "variables": {"TOKEN": None, "B": None}},
    }
    assert record["sandbox"]["files"]["variables"] == [["PASSWORD", None]]
    assert store.find("first").about["plan"] == plan  # they are needed to bring it back


def test_what_is_open_is_not_removed(command: Run, store: SnapshotStore, line: tuple[Snapshot, Snapshot]) -> None:
    with store.open("second"):
        refused = json.loads(command("rm", "second", "--json", code=1).stdout)
    assert refused["error"]["type"] == "SnapshotError"
    assert "in use" in refused["error"]["message"]


def test_giving_room_back(command: Run, store: SnapshotStore, line: tuple[Snapshot, Snapshot], tmp_path: Path) -> None:
    store.add(make(tmp_path / "3", FULL))
    assert (
        command("gc").stdout
        == "removed 0 snapshots and 0 copies, 0.0 MB; 1 snapshot without a name, needed or new, stay\n"
    )
    done = json.loads(command("gc", "--now", "--json").stdout)
    assert (done["removed"], done["copies"], done["kept"]) == (1, 1, 0)
    assert done["freed_bytes"] > 0


def test_damage_is_shown_and_named(command: Run, line: tuple[Snapshot, Snapshot]) -> None:
    parent, child = line
    flip(parent.path / "files/memory", 5)
    done = command("show", "second", "--verify", code=1)
    assert f"../{parent.id}/files/memory: its content is not what was written" in done.stderr
    table = command("ls").stdout
    assert table.count("damaged: files/memory") == 2, "its own, and the parent's"
    assert "its parent 'first' is damaged: files/memory" in table
    assert "files/memory" in command("show", "first", code=1).stderr
    assert [one["damaged"] for one in json.loads(command("ls", "--json").stdout)["snapshots"]] == [True, True]
    (child.path / "manifest.json").write_text("{")
    assert f"{child.id[:12]}" in command("ls").stdout
    command("rm", child.id)
    command("rm", "first")


def test_mistakes(command: Run, line: tuple[Snapshot, Snapshot]) -> None:
    for name in ("show", "rm"):
        done = command(name, "frist", "--json", code=2)
        assert "did you mean 'first'?" in done.stderr
        assert json.loads(done.stdout)["exit_code"] == 2


def test_a_place_that_cannot_be(command: Run, tmp_path: Path) -> None:
    (tmp_path / "data").write_text("a file")
    assert "AGENTENV_DATA" in command("ls", code=3).stderr
