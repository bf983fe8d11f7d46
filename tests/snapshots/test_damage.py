"""Damage: whatever happens to a file of a snapshot, nothing is brought back from it, and the file is named."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from agentenv.errors import SnapshotDamaged, SnapshotError
from agentenv.snapshots.manifest import Snapshot
from agentenv.snapshots.store import SnapshotStore
from snapshots.making import FULL, PAGE, contents, flip, follow, make, opened


@pytest.fixture
def line(store: SnapshotStore, tmp_path: Path) -> tuple[Snapshot, Snapshot]:
    """A full one and one made from it, without copies."""
    start = contents(make(tmp_path / "1", FULL, drive=FULL))
    parent = store.add(tmp_path / "1", name="first")
    child = store.add(follow(tmp_path, "2", start, {2: b"", 5: b"changed"}), name="second", parent=parent)
    store.gc(now=True)
    return parent, child


def cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size - 2)


DAMAGES: dict[str, tuple[Callable[[Path], None], str]] = {
    "flipped": (flip, "not what was written"),
    "cut": (cut, r"expected \d+ bytes, got"),
    "missing": (Path.unlink, "No such file"),
}
FILES = ("files/state", "files/machine.json", "changes/memory.pages", "changes/memory.extents", "manifest.json")


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("file", FILES)
def test_a_damaged_file_is_found_and_named(
    store: SnapshotStore, line: tuple[Snapshot, Snapshot], damage: str, file: str
) -> None:
    parent, child = line
    do, words = DAMAGES[damage]
    do(child.path / file)
    if file == "manifest.json":
        words = "."
    for use in (lambda: opened(store, child), lambda: store.verify(child), lambda: opened(store, child)):
        with pytest.raises(SnapshotDamaged, match=f"(?s){file}: .*{words}.*remedy.*rm {child.id}") as caught:
            use()
        assert caught.value.file == file
        assert caught.value.id == child.id
    assert isinstance(caught.value, SnapshotError)
    shown = {one.id: one for one in store.list()}
    assert shown[child.id].damage.startswith(file)
    assert shown[parent.id].damage == ""
    assert opened(store, parent)
    store.remove(child)
    assert [one.id for one in store.list()] == [parent.id]


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("file", ["files/memory", "files/state", "manifest.json"])
def test_what_is_made_from_a_damaged_one_is_damaged(
    store: SnapshotStore, line: tuple[Snapshot, Snapshot], damage: str, file: str
) -> None:
    parent, child = line
    DAMAGES[damage][0](parent.path / file)
    for one in (parent, child):
        with pytest.raises(SnapshotDamaged, match=f"{parent.id if one is child else 'damaged'}.*{file.split('/')[-1]}"):
            opened(store, one)
        with pytest.raises(SnapshotDamaged):
            store.verify(one)
    assert all(one.damage for one in store.list())


def test_a_parent_that_is_missing(store: SnapshotStore, line: tuple[Snapshot, Snapshot]) -> None:
    parent, child = line
    opened(store, child)  # its whole files are there; they are nothing to trust in alone
    shutil.rmtree(parent.path)
    for use in (lambda: opened(store, child), lambda: store.verify(child)):
        with pytest.raises(SnapshotDamaged, match=f"its parent {parent.id} is missing"):
            use()
    (shown,) = store.list()
    assert shown.damage == f"its parent {parent.id} is missing"


def test_every_bit_of_memory_counts(store: SnapshotStore, line: tuple[Snapshot, Snapshot]) -> None:
    parent, _ = line
    memory = parent.path / "files/memory"
    opened(store, parent)
    for at in (0, 30 * PAGE - 1, memory.stat().st_size - 1):
        flip(memory, at)
        with pytest.raises(SnapshotDamaged, match="memory"):
            opened(store, parent)
        flip(memory, at)
        assert opened(store, parent), "put right by hand, it can be used"
        assert store.find(parent.id).damage == ""


def test_what_changes_behind_the_clocks_back_is_found_by_verify(
    store: SnapshotStore, line: tuple[Snapshot, Snapshot]
) -> None:
    parent, child = line
    memory = parent.path / "files/memory"
    times = memory.stat()
    flip(memory, 3)
    os.utime(memory, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert store.find(parent.id).damage == ""
    with pytest.raises(SnapshotDamaged, match="memory: its content is not what was written"):
        store.verify(child)
    assert "memory" in store.find(parent.id).damage, "known from now on"
    with pytest.raises(SnapshotDamaged):
        opened(store, child)


def test_a_damaged_copy_is_made_anew(store: SnapshotStore, line: tuple[Snapshot, Snapshot]) -> None:
    _, child = line
    before = opened(store, child)
    copy = store.root / "copies" / child.id
    for do in (lambda: flip(copy / "memory", 9), lambda: cut(copy / "memory"), (copy / "state").unlink):
        do()
        assert opened(store, child) == before
    flip(copy / "memory", 9)
    shutil.rmtree(store.root / "checked")
    (store.root / "checked").mkdir()
    assert opened(store, child) == before, "without any notes it is read"
    with store.open(child):
        flip(copy / "memory", 9)
        with pytest.raises(SnapshotDamaged, match="end the machines made from it"):
            opened(store, child)
    assert opened(store, child) == before


def test_a_copy_changed_unseen_does_not_go_into_others(
    store: SnapshotStore, line: tuple[Snapshot, Snapshot], tmp_path: Path
) -> None:
    _, child = line
    content = opened(store, child)
    third = follow(tmp_path, "3", content, {8: b"third"})
    expected = contents(third)
    newest = store.add(third, parent=child, name="third")
    shutil.rmtree(store.root / "copies" / newest.id)
    memory = store.root / "copies" / child.id / "memory"
    times = memory.stat()
    flip(memory, 11 * PAGE)
    os.utime(memory, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert opened(store, newest) == expected


def test_a_damaged_parent_does_not_keep_anything_from_being_kept(
    store: SnapshotStore, line: tuple[Snapshot, Snapshot], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    parent, child = line
    for number, one in enumerate((child, parent)):
        flip(one.path / ("manifest.json" if one is child else "files/memory"), 30)
        source = make(tmp_path / f"source-{number}", FULL)
        before = contents(source)
        made = store.add(source, parent=one)
        assert made.kind == "full"
        assert opened(store, made) == before
    assert caplog.text.count("stored full, without its parent") == 2


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"format": 2}, "expected format 1, got 2: another version"),
        ({"name": "other"}, "not what was written"),
        ({"parent": "../.."}, "not what was written"),
        ({"files": []}, "not what was written"),
    ],
)
def test_a_manifest_says_what_was_written_or_nothing(
    store: SnapshotStore, line: tuple[Snapshot, Snapshot], change: dict[str, object], words: str
) -> None:
    parent, _ = line
    path = parent.path / "manifest.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    with pytest.raises(SnapshotDamaged, match=words):
        opened(store, parent)
    shown = next(one for one in store.list() if one.id == parent.id)
    assert (shown.kind, shown.name) == ("unknown", None)


FORGED: list[dict[str, object]] = [
    {"id": None},
    {"files": None},
    {"name": ["x"]},
    {"created": 3},
    {"kind": "odd"},
    {"parent": "../.."},
    {"parent": 3},
    {"replaces": ["x"]},
    {"depth": "1"},
    {"stored_bytes": True},
    {"machine": [1]},
    {"path": "/elsewhere"},
    *(
        {"files": [{"name": "state", "bytes": 5, "digest": "sha256:", **change}]}
        for change in (
            {"name": "../../../elsewhere"},
            {"name": ".."},
            {"name": 3},
            {"bytes": "5"},
            {"bytes": -1},
            {"digest": 3},
            {"pages": {"bytes": 1, "digest": ""}},
            {"pages": {}, "extents": {}},
            {"other": 1},
        )
    ),
    {"files": [{"name": "state", "bytes": 5, "digest": ""}] * 2},
    {"files": ["state"]},
    {"files": {}},
]


@pytest.mark.parametrize("change", FORGED, ids=str)
@pytest.mark.parametrize("which", [0, 1])
def test_a_manifest_that_was_sealed_by_another_can_say_only_what_ours_do(
    store: SnapshotStore, line: tuple[Snapshot, Snapshot], change: dict[str, object], which: int
) -> None:
    path = line[which].path / "manifest.json"
    record = {key: value for key, value in {**json.loads(path.read_text()), **change}.items() if key != "seal"}
    if change in ({"id": None}, {"files": None}):
        del record[next(iter(change))]
    sealed = json.dumps(record, sort_keys=True, separators=(",", ":")).encode()
    path.write_text(json.dumps({**record, "seal": hashlib.sha256(sealed).hexdigest()}))
    with pytest.raises(SnapshotDamaged, match=r"manifest\.json: "):
        opened(store, line[which])
    assert {one.id: one.kind for one in store.list()}[line[which].id] == "unknown"
    assert store.gc(now=True).removed == 0
    assert not (store.root.parent / "elsewhere").exists()


def test_a_pipe_in_place_of_a_file_is_not_waited_for(store: SnapshotStore, tmp_path: Path) -> None:
    empty = store.add(make(tmp_path / "1", FULL, state=b""))
    (empty.path / "files/state").unlink()
    os.mkfifo(empty.path / "files/state")
    with pytest.raises(SnapshotDamaged, match="files/state: expected a file, got something else"):
        opened(store, empty)


def test_a_manifest_of_another_snapshot_is_none_of_this(store: SnapshotStore, line: tuple[Snapshot, Snapshot]) -> None:
    parent, child = line
    shutil.copy(parent.path / "manifest.json", child.path / "manifest.json")
    with pytest.raises(SnapshotDamaged, match=f"expected the id {child.id}"):
        opened(store, child)


@pytest.mark.parametrize("text", [b"", b"[]", b"null", b"\xff", b"[" * 100_000, b'{"format": 1}'])
def test_anything_in_place_of_a_manifest(store: SnapshotStore, line: tuple[Snapshot, Snapshot], text: bytes) -> None:
    parent, _ = line
    (parent.path / "manifest.json").write_bytes(text)
    with pytest.raises(SnapshotDamaged, match=r"manifest\.json"):
        opened(store, parent)
    assert len(store.list()) == 2


def test_notes_that_are_damaged_are_no_notes(store: SnapshotStore, line: tuple[Snapshot, Snapshot]) -> None:
    _, child = line
    for text in ("", "[]", "[" * 100_000, '{"files": 3, "copies": [], "damage": 7}', "{"):
        for one in line:
            (store.root / "checked" / f"{one.id}.json").write_text(text)
        assert opened(store, child)
        assert all(not one.damage for one in store.list())
