"""A full disk: nothing is half there, nothing is lost, and it is said what to do."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from agentenv.errors import ResourceLimit
from agentenv.snapshots.manifest import Snapshot
from agentenv.snapshots.store import SnapshotStore
from snapshots.making import PAGE, contents, follow, make, opened

BIG = dict.fromkeys(range(200), 300)
"""800 KiB that cannot be made smaller."""


def fill(disk: Path, leave: int) -> Path:
    """Take all but so many bytes of a disk."""
    filler = disk / "filler"
    filler.unlink(missing_ok=True)
    free = os.statvfs(disk)
    filler.write_bytes(bytes(max(0, free.f_bavail * free.f_frsize - leave)))
    return filler


def add_or_error(store: SnapshotStore, source: Path, name: str, parent: Snapshot) -> Snapshot | ResourceLimit:
    """What adding gives, or the error that a full disk is."""
    try:
        return store.add(source, name=name, parent=parent)
    except ResourceLimit as error:
        return error


def test_it_is_said_and_everything_is_as_before(small_disk: Path, tmp_path: Path) -> None:
    store = SnapshotStore(small_disk / "store")
    base = make(tmp_path / "base", BIG, 300 * PAGE)
    start = contents(base)
    parent = store.add(base, name="base")
    ends = []
    for leave in (0, PAGE, 4 * PAGE, 16 * PAGE, 64 * PAGE, 200 * PAGE, 260 * PAGE):
        filler = fill(small_disk, leave)
        source = follow(tmp_path, f"full-{leave}", start, {number: os.urandom(PAGE) for number in range(0, 200, 4)})
        before = contents(source)
        made = add_or_error(store, source, f"n{leave}", parent)
        if isinstance(made, ResourceLimit):
            assert made.errno == errno.ENOSPC
            assert all(words in str(made) for words in (str(store.root), "no room", "snapshot gc", "AGENTENV_DATA"))
            assert contents(source) == before
        else:
            assert list(source.iterdir()) == []
            filler.unlink()
            store.verify(made)
            store.remove(made)
        ends.append("full" if isinstance(made, ResourceLimit) else made.kind)
        filler.unlink(missing_ok=True)
        assert [one.name for one in store.list()] == ["base"]
        assert os.listdir(store.root / "tmp") == []
        assert opened(store, parent) == start
    assert ends[0] == "full"
    assert ends[-1] == "incremental"


def test_what_is_on_the_disk_needs_none_of_it(small_disk: Path) -> None:
    store = SnapshotStore(small_disk / "store")
    source = make(small_disk / "source", BIG, 300 * PAGE)
    start = contents(source)
    fill(small_disk, 16 * PAGE)
    made = store.add(source, name="base")
    assert opened(store, made) == start


def test_putting_together_without_room(small_disk: Path, tmp_path: Path) -> None:
    store = SnapshotStore(small_disk / "store")
    start = contents(make(small_disk / "base", BIG, 300 * PAGE))
    parent = store.add(small_disk / "base", name="base")
    source = follow(tmp_path, "child", start, {3: b"changed"})
    expected = contents(source)
    made = store.add(source, name="child", parent=parent)
    store.gc(now=True)
    filler = fill(small_disk, 20 * PAGE)
    with pytest.raises(ResourceLimit, match="no room on the disk for snapshots"):
        opened(store, made)
    assert os.listdir(store.root / "tmp") == os.listdir(store.root / "copies") == []
    assert store.find("child").damage == ""
    # With no room to put the parent together, a new one is kept all the same.
    late = follow(small_disk, "late", {"memory": b"small"}, {})
    assert store.add(late, parent=made).kind == "full"
    filler.unlink()
    assert opened(store, made) == expected


def test_notes_are_not_worth_failing_for(small_disk: Path) -> None:
    store = SnapshotStore(small_disk / "store")
    start = contents(make(small_disk / "base", BIG, 300 * PAGE))
    made = store.add(small_disk / "base", name="base")
    for path in (store.root / "checked").iterdir():
        path.unlink()
    fill(small_disk, 0)
    assert opened(store, made) == start
    store.verify(made)
    assert store.remove(made) > 0
