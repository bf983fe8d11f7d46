"""Removing: never what another one needs, never what is open, never what is new; and what stays can be given back."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agentenv.errors import SnapshotError
from agentenv.snapshots.manifest import Snapshot
from agentenv.snapshots.store import SnapshotStore
from cli_watch import poll
from snapshots.making import FULL, PAGE, contents, flip, follow, make, opened

SIZE = 20 * PAGE + 100
pages = st.dictionaries(st.integers(0, 20), st.integers(0, 2), min_size=1, max_size=6)
adding = st.tuples(st.just("add"), st.integers(0, 20), pages, st.sampled_from([None, None, "a", "b", "c"]))
actions = st.one_of(
    adding,
    adding,
    adding,
    st.tuples(st.just("remove"), st.integers(0, 20)),
    st.tuples(st.just("gc"), st.booleans()),
    st.tuples(st.just("open"), st.integers(0, 20)),
)


@dataclass
class Model:
    """What a store should do, and the store."""

    root: Path
    store: SnapshotStore
    content: dict[str, dict[str, bytes]] = field(default_factory=dict)
    parents: dict[str, str | None] = field(default_factory=dict)
    names: dict[str, str] = field(default_factory=dict)
    count: int = 0

    def add(self, pick: int, changed: dict[int, int], name: str | None) -> None:
        there = list(self.content)
        # The last ones are the most likely parents: lineages become long.
        parent = there[-1 - pick // 3 % len(there)] if there and pick < 20 else None
        self.count += 1
        base = dict.fromkeys(range(20), 200 + len(there) % 3)
        path = make(self.root / str(self.count), base, SIZE, drive=changed)
        if parent is not None:
            shutil.rmtree(path)
            path = follow(
                self.root, str(self.count), self.content[parent], {n: bytes([v]) * PAGE for n, v in changed.items()}
            )
            os.truncate(path / "memory", SIZE - len(changed))
        expected = contents(path)
        made = self.store.add(path, name=name, parent=None if parent is None else self.store.find(parent), replace=True)
        self.content[made.id], self.parents[made.id] = expected, made.parent
        assert made.parent in (None, parent)
        if name is not None:
            self.names[name] = made.id

    def remove(self, pick: int) -> None:
        if not self.content:
            return
        id = list(self.content)[pick % len(self.content)]
        if id in self.parents.values():
            with pytest.raises(SnapshotError, match="is made from"):
                self.store.remove(self.store.find(id))
            return
        self.store.remove(self.store.find(id))
        self._forget(id)

    def gc(self, now: bool) -> None:
        done = self.store.gc(now=now)
        if not now:
            assert done.removed == done.copies == 0, "all of it is new"
            return
        gone = 0
        while loose := [id for id in self.content if id not in self.names.values() and id not in self.parents.values()]:
            for id in loose:
                self._forget(id)
            gone += len(loose)
        assert (done.removed, done.swept) == (gone, 0)
        assert self.store.disk_bytes()[1] == 0

    def check(self) -> None:
        found = {one.id: one for one in self.store.list()}
        assert set(found) == set(self.content)
        assert {one.name: one.id for one in found.values() if one.name} == self.names
        assert not any(one.damage for one in found.values())

    def _forget(self, id: str) -> None:
        del self.content[id], self.parents[id]
        self.names = {name: one for name, one in self.names.items() if one != id}


@given(st.lists(actions, min_size=6, max_size=16))
@settings(max_examples=40, suppress_health_check=[HealthCheck.too_slow])
def test_what_stays_can_be_given_back_bit_for_bit(steps: list[tuple[object, ...]]) -> None:
    shared = "/dev/shm"
    with tempfile.TemporaryDirectory(dir=shared if os.access(shared, os.W_OK) else None) as name:
        model = Model(Path(name), SnapshotStore(Path(name) / "store"))
        model.add(0, {}, None)
        for action, *arguments in steps:
            if action == "open":
                for id in list(model.content)[arguments[0] :][:1]:  # type: ignore[misc]  # plain data
                    assert opened(model.store, model.store.find(id)) == model.content[id]
            else:
                getattr(model, str(action))(*arguments)
            model.check()
        # Whatever was put together before is gone, and everything is made again.
        for path in (Path(name) / "store/copies").iterdir():
            shutil.rmtree(path)
        for id, expected in model.content.items():
            model.store.verify(model.store.find(id))
            assert opened(model.store, model.store.find(id)) == expected


def line(store: SnapshotStore, tmp_path: Path, count: int, names: dict[int, str]) -> list[Snapshot]:
    """Snapshots each of which is made from the one before."""
    content = contents(make(tmp_path / "0", FULL))
    made = [store.add(tmp_path / "0", name=names.get(0))]
    for number in range(1, count):
        source = follow(tmp_path, str(number), content, {number: b"x"})
        content = contents(source)
        made.append(store.add(source, parent=made[-1], name=names.get(number)))
    return made


def age(*paths: Path) -> None:
    for path in paths:
        os.utime(path, (path.stat().st_mtime - 700,) * 2)


def test_what_a_named_one_is_made_from_stays(store: SnapshotStore, tmp_path: Path) -> None:
    made = line(store, tmp_path, 4, {2: "kept"})
    done = store.gc(now=True)
    assert (done.removed, done.kept) == (1, 2)
    assert done.freed_bytes > 0
    assert [one.id for one in store.list()] == [one.id for one in made[:3]]
    with pytest.raises(SnapshotError, match="it is what 'kept' is made from; remove that first"):
        store.remove(made[1])
    assert store.remove("kept") > 0
    assert store.gc(now=True).removed == 2, "a whole lineage at once"
    assert store.list() == []


def test_what_is_new_or_was_used_lately_stays(store: SnapshotStore, tmp_path: Path) -> None:
    made = line(store, tmp_path, 2, {})
    assert store.gc().removed == 0
    age(made[0].path)
    assert store.gc().removed == 0, "a new one needs it"
    age(made[1].path, store.root / "copies" / made[1].id)
    opened(store, made[1])
    assert (store.gc().removed, store.gc().copies) == (0, 0)
    age(made[0].path, made[1].path)
    done = store.gc()
    assert (done.removed, done.copies) == (2, 1)


def test_what_is_open_stays(store: SnapshotStore, tmp_path: Path) -> None:
    made = line(store, tmp_path, 2, {})
    expected = opened(store, made[1])
    with store.open(made[1]) as path:
        for _ in range(2):
            done = SnapshotStore(store.root).gc(now=True)
            assert (done.removed, done.copies, done.kept) == (0, 0, 2)
            with pytest.raises(SnapshotError, match="it is in use; end the machines made from it first"):
                store.remove(made[1])
        assert contents(path) == expected
    store.remove(made[1])
    with store.open(made[0]) as path:
        assert store.gc(now=True).removed == 0
        assert len(contents(path)) == 4
    assert store.gc(now=True).removed == 1


def test_another_process_that_has_it_open_counts_until_it_ends(store: SnapshotStore, tmp_path: Path) -> None:
    (made,) = line(store, tmp_path, 1, {0: "base"})
    code = (
        "import sys\nfrom pathlib import Path\nfrom agentenv.snapshots.store import SnapshotStore\n"
        "with SnapshotStore(Path(sys.argv[1])).open('base') as path:\n"
        "    print(path, flush=True)\n    sys.stdin.read()\n"
    )
    argv = [sys.executable, "-c", code, str(store.root)]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline().strip() == str(made.path / "files")
        with pytest.raises(SnapshotError, match="in use"):
            store.remove("base")
        with store.open("base"):
            pass
        holder.send_signal(signal.SIGKILL)
        holder.wait(timeout=20)
        assert store.remove("base") > 0


def test_one_that_is_being_added_holds_its_parent(store: SnapshotStore, tmp_path: Path) -> None:
    (base,) = line(store, tmp_path, 1, {})
    source = follow(tmp_path, "next", opened(store, base), {1: b"x"})
    # It cannot get on as long as somebody else changes the store.
    code = (
        "import sys\nfrom pathlib import Path\nfrom agentenv.snapshots.store import SnapshotStore\n"
        "store = SnapshotStore(Path(sys.argv[1]))\n"
        "print(store.add(Path(sys.argv[2]), parent=store.find(sys.argv[3]), name='child').kind)\n"
    )
    argv = [sys.executable, "-c", code, str(store.root), str(source), base.id]
    with store._shelf.places.changing():
        adder = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True)

        def is_held() -> bool:
            fd = store._shelf.places.claim(base.path)
            if fd is not None:
                os.close(fd)
            return fd is None

        poll(is_held, "the parent held by whoever adds")
    assert adder.communicate(timeout=60)[0] == "incremental\n"
    assert store.gc(now=True).removed == 0


def test_with_a_record_that_cannot_be_read_none_is_collected(store: SnapshotStore, tmp_path: Path) -> None:
    made = line(store, tmp_path, 3, {})
    path = made[2].path / "manifest.json"
    before = path.read_bytes()
    flip(path, 50)
    assert (store.gc(now=True).removed, len(store.list())) == (0, 3), "it may be put right"
    path.write_bytes(before)
    assert opened(store, made[2])
    flip(path, 50)
    store.remove(made[2])
    assert store.gc(now=True).removed == 2


def test_what_dead_processes_left_goes(store: SnapshotStore, tmp_path: Path) -> None:
    left = store.root / "tmp/left"
    (left / "inner").mkdir(parents=True)
    (left / "inner/file").write_bytes(bytes(10_000))
    (store.root / "copies" / ("ab" * 16)).mkdir()
    done = store.gc()
    assert (done.swept, done.copies) == (1, 1)
    assert done.freed_bytes >= 10_000
    left.mkdir()
    line(store, tmp_path, 1, {})
    assert not left.exists()
