"""What stored snapshots need of the store of images stays, whatever is damaged; what cannot be told keeps all."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from agentenv.boxes.needs import needed_objects
from agentenv.images.content import key_of
from agentenv.images.store import Store
from agentenv.snapshots.manifest import Snapshot
from agentenv.snapshots.store import SnapshotStore
from snapshots.making import FULL, flip, make

Run = Callable[..., str]


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "cache")


@pytest.fixture
def snapshots(tmp_path: Path) -> SnapshotStore:
    return SnapshotStore(tmp_path / "data/snapshots")


@pytest.fixture
def command(tmp_path: Path, store: Store) -> Run:
    def run(*arguments: str) -> str:
        variables = {"AGENTENV_CACHE": str(store.root), "AGENTENV_DATA": str(tmp_path / "data")}
        argv = [sys.executable, "-m", "agentenv.cli", *arguments]
        done = subprocess.run(
            argv, env={**os.environ, **variables}, capture_output=True, text=True, timeout=60, check=True
        )
        return done.stdout

    return run


def put(store: Store, text: str) -> Path:
    return store.once(key_of(text), lambda out: _write(out / "file", text), what="it") / "file"


def _write(path: Path, text: str) -> None:
    path.write_text(text)


def keep(snapshots: SnapshotStore, place: Path, *files: Path, more: int = 0) -> Snapshot:
    """A snapshot made with these files, whose record has so many further bytes among them."""
    make(place, FULL)
    names = ("root", "tools", "scratch")
    found = {**dict(zip(names, map(str, files), strict=False)), "project": None, "variables": [["BIG", "x" * more]]}
    (place / "sandbox.json").write_text(json.dumps({"format": 1, "files": found}))
    return snapshots.add(place)


@pytest.mark.parametrize("more", [0, 1 << 17, 5 << 20])
def test_what_it_was_made_with_is_needed_however_much_is_said(
    store: Store, snapshots: SnapshotStore, command: Run, tmp_path: Path, more: int
) -> None:
    used, also, other = (put(store, text) for text in ("used", "also", "other"))
    made = keep(snapshots, tmp_path / "1", used, also, Path("/elsewhere/rootfs.ext4"), more=more)
    assert ("files" in made.sandbox) == (more == 0), "what is long is not in the manifest"
    needed = needed_objects(store, snapshots)
    assert (needed.digests, needed.doubt) == ({used.parent.name, also.parent.name}, "")
    done = json.loads(command("image", "gc", "--now", "--json"))
    assert (done["removed"], done["doubt"]) == (1, "")
    assert [path.exists() for path in (used, also, other)] == [True, True, False]
    snapshots.remove(made)
    assert json.loads(command("image", "gc", "--now", "--json"))["removed"] == 2


@pytest.mark.parametrize("file", ["manifest.json", "files/sandbox.json"])
def test_while_a_record_cannot_be_read_nothing_is_removed(
    store: Store, snapshots: SnapshotStore, command: Run, tmp_path: Path, file: str
) -> None:
    used, other = put(store, "used"), put(store, "other")
    store.name("image", "mine", used.parent.name, {})
    made = keep(snapshots, tmp_path / "1", used, more=1 << 17)
    flip(made.path / file, 100)
    told = command("image", "gc", "--now")
    assert told.startswith("removed 0 objects")
    assert "no image or drive was removed: what a stored snapshot needs cannot be read" in told
    assert f"snapshot {made.id[:12]} in {snapshots.root}: {file}: its content is not what was written" in told
    assert "its file stays: what a stored snapshot needs cannot be read" in command("image", "rm", "mine")
    assert used.exists()
    assert other.exists()
    flip(made.path / file, 100)
    assert "removed 1 object," in command("image", "gc", "--now"), "it was put right"
    assert used.exists()
    flip(made.path / file, 100)
    command("snapshot", "rm", made.id)
    assert "removed 1 object," in command("image", "gc", "--now")


@pytest.mark.parametrize("file", ["files/memory", "files/sandbox.json"])
def test_damage_elsewhere_leaves_no_doubt(store: Store, snapshots: SnapshotStore, tmp_path: Path, file: str) -> None:
    used = put(store, "used")
    made = keep(snapshots, tmp_path / "1", used)
    (made.path / file).unlink()
    assert snapshots.list()[0].damage
    needed = needed_objects(store, snapshots)
    assert (needed.digests, needed.doubt) == ({used.parent.name}, "")


def test_a_store_may_be_reached_by_another_path(store: Store, snapshots: SnapshotStore, tmp_path: Path) -> None:
    used = put(store, "used")
    (tmp_path / "link").symlink_to(store.root)
    keep(snapshots, tmp_path / "1", tmp_path / "link" / used.relative_to(store.root))
    assert needed_objects(store, snapshots).digests == {used.parent.name}
    assert needed_objects(Store(tmp_path / "link"), snapshots).digests == {used.parent.name}


def test_what_was_not_made_of_a_sandbox_needs_nothing(store: Store, snapshots: SnapshotStore, tmp_path: Path) -> None:
    for number, content in enumerate(["[]", "{", '{"files": 3}', None]):
        place = make(tmp_path / str(number), FULL)
        if content is None:
            (place / "sandbox.json").unlink()
        else:
            (place / "sandbox.json").write_text(content)
        snapshots.add(place)
    needed = needed_objects(store, snapshots)
    assert (needed.digests, needed.doubt) == (frozenset(), "")
