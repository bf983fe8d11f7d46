"""The store: what goes in comes out bit for bit, under its name, full or as what changed."""

from __future__ import annotations

import os
import stat
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from agentenv import locks
from agentenv.errors import ConfigError, RuntimeUnavailable, SnapshotError, SnapshotUnknown
from agentenv.snapshots import adding, progress, whole
from agentenv.snapshots.store import SnapshotStore
from snapshots.making import FULL, MACHINE, PAGE, contents, follow, make, opened


@pytest.fixture
def elsewhere() -> Iterator[Path]:
    """A directory on another file system."""
    shared = Path("/dev/shm")
    if not os.access(shared, os.W_OK) or shared.stat().st_dev == Path(tempfile.gettempdir()).stat().st_dev:
        pytest.skip("there is no second file system: /dev/shm cannot be written")
    with tempfile.TemporaryDirectory(dir=shared) as name:
        yield Path(name)


def test_a_full_one_is_taken_over_and_given_back(store: SnapshotStore, tmp_path: Path) -> None:
    source = make(tmp_path / "source", FULL, drive={3: 1})
    before, memory = contents(source), (source / "memory").stat()
    made = store.add(source, name="base", about={"run": "r1", "list": [1, None]})
    assert list(source.iterdir()) == []
    assert made == store.find("base") == store.find(made.id) == store.find(made.id[:4])
    assert (made.name, made.kind, made.parent, made.depth) == ("base", "full", None, 0)
    assert made.about == {"run": "r1", "list": [1, None]}
    assert made.machine == MACHINE
    assert (made.runtime, made.runtime_version, made.accelerator) == ("qemu", "7.2", "tcg")
    assert (made.processor, made.memory_mb) == ("one", 1)
    assert made.sandbox["image_digest"] == "ab" * 32
    assert made.logical_bytes == sum(map(len, before.values()))
    assert made.stored_bytes < made.logical_bytes
    with store.open("base") as path:
        assert contents(path) == before
        assert (path / "memory").stat().st_ino == memory.st_ino, "moved, not copied"
    assert made.to_json()["files"][1]["name"] == "memory"


def test_only_the_owner_can_read_it(store: SnapshotStore, tmp_path: Path) -> None:
    (tmp_path / "open").mkdir(mode=0o755)
    for one in (store, SnapshotStore(tmp_path / "open")):
        assert stat.S_IMODE(one.root.stat().st_mode) == 0o700


def test_an_incremental_one_is_what_changed(store: SnapshotStore, tmp_path: Path) -> None:
    first = make(tmp_path / "first", FULL, drive=FULL)
    start = contents(first)
    parent = store.add(first)
    second = follow(tmp_path, "second", start, {2: b"", 5: b"changed", 60: b"new"})
    (second / "state").write_bytes(b"another")
    expected = contents(second)
    made = store.add(second, parent=parent, name="second")
    assert list(second.iterdir()) == []
    assert (made.kind, made.parent, made.depth) == ("incremental", parent.id, 1)
    assert made.stored_bytes < parent.stored_bytes / 4
    memory = next(part for part in made.files if part.name == "memory")
    assert memory.pages is not None
    assert memory.pages.bytes == 2 * PAGE, "the page that became empty is no data"
    assert opened(store, made) == expected
    assert store.gc(now=True).removed == 0, "it needs the one without a name"
    assert opened(store, parent) == start


def test_without_its_copy_it_is_put_together(store: SnapshotStore, tmp_path: Path) -> None:
    first = make(tmp_path / "first", FULL, drive=FULL)
    start = contents(first)
    parent = store.add(first, name="first")
    second = follow(tmp_path, "second", start, {2: b"", 5: b"changed"})
    expected = contents(second)
    made = store.add(second, parent="first", name="second")
    assert store.gc(now=True).copies == 1
    assert store.disk_bytes()[1] == 0
    assert opened(store, made) == expected
    with store.open(made) as once, store.open(made) as twice:
        assert once == twice
    assert store.disk_bytes()[1] > 0
    assert opened(store, parent) == start


def test_what_saves_less_than_a_third_is_stored_full(store: SnapshotStore, tmp_path: Path) -> None:
    first = make(tmp_path / "first", FULL)
    start = contents(first)
    parent = store.add(first, name="first")
    for count, kind in ((18, "incremental"), (24, "full")):
        made = store.add(
            follow(tmp_path, str(count), start, dict.fromkeys(range(count), os.urandom(PAGE))), parent=parent
        )
        assert made.kind == kind
        assert (made.parent is None) == (kind == "full")
        assert not any(path.name == "changes" for path in made.path.iterdir()) or kind == "incremental"
    other = make(tmp_path / "other", FULL)
    (other / "memory").rename(other / "scratch.ext4")
    assert store.add(other, parent=parent).kind == "full", "the parent has no such file"


def test_files_that_come_go_and_grow(store: SnapshotStore, tmp_path: Path) -> None:
    first = make(tmp_path / "first", FULL, drive={1: 1})
    start = contents(first)
    parent = store.add(first, name="first")
    second = follow(tmp_path, "second", start, {0: b"x"})
    (second / "scratch.ext4").unlink()
    (second / "more.ext4").write_bytes(b"y" * 5000)
    os.truncate(second / "memory", 64 * PAGE + 5)
    expected = contents(second)
    made = store.add(second, parent=parent)
    assert made.kind == "incremental"
    third = follow(tmp_path, "third", expected, {40: b"z"})
    (third / "scratch.ext4").write_bytes(b"back")
    os.truncate(third / "memory", 50 * PAGE - 5)
    last = contents(third)
    newest = store.add(third, parent=made, name="newest")
    assert newest.depth == 2
    store.gc(now=True)
    assert opened(store, newest) == last
    assert opened(store, made) == expected


def test_long_lineages_begin_anew(store: SnapshotStore, tmp_path: Path) -> None:
    source = make(tmp_path / "0", FULL)
    kept = [contents(source)]
    line = [store.add(source)]
    for number in range(1, adding.MOST_DEPTH + 3):
        source = follow(tmp_path, str(number), kept[-1], {number: str(number).encode()})
        kept.append(contents(source))
        line.append(store.add(source, parent=line[-1], name=f"n{number}"))
    depths = [one.depth for one in line]
    assert depths == [*range(adding.MOST_DEPTH + 1), 0, 1]
    store.gc(now=True)
    # The ends of both lines first: what is between has no copies then.
    for snapshot, content in reversed(list(zip(line, kept, strict=True))):
        assert opened(store, snapshot) == content


def test_names(store: SnapshotStore, tmp_path: Path) -> None:
    first = store.add(make(tmp_path / "1", FULL), name="base")
    again = make(tmp_path / "2", FULL)
    before = contents(again)
    with pytest.raises(SnapshotError, match=r"called 'base' already.*agentenv snapshot rm base"):
        store.add(again, name="base")
    assert contents(again) == before
    second = store.add(again, name="base", replace=True)
    assert store.find("base") == second
    assert [one.name for one in store.list()] == [None, "base"]
    assert store.find(first.id).name is None
    store.remove(second)
    assert [one.name for one in store.list()] == [None], "a name that was taken away does not come back"
    for name in ("", "a/b", "-a", "x" * 129, "ab" * 16, "a\n"):
        with pytest.raises(ConfigError, match="expected letters"):
            store.add(again, name=name)


def test_what_is_not_there_is_said_with_the_nearest_name(store: SnapshotStore, tmp_path: Path) -> None:
    with pytest.raises(SnapshotUnknown, match="there are none with a name"):
        store.find("trained")
    one = store.add(make(tmp_path / "1", FULL), name="trained")
    with pytest.raises(SnapshotUnknown, match="did you mean 'trained'"):
        store.find("traind")
    with pytest.raises(SnapshotUnknown, match="there are trained"):
        store.find(one.id[:3])
    store.remove("trained")
    for use in (lambda: store.remove(one), lambda: opened(store, one), lambda: store.verify(one)):
        with pytest.raises(SnapshotUnknown, match="there is no snapshot"):
            use()
    source = make(tmp_path / "2", FULL)
    with pytest.raises(LookupError):
        store.add(source, parent=one.id)
    assert store.add(source, parent=one).kind == "full", "it may have been collected without the caller's knowing"


def test_ids_that_begin_the_same(store: SnapshotStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ids = iter(["abcd" + "0" * 28, "abcd" + "1" * 28])
    monkeypatch.setattr(adding.secrets, "token_hex", lambda count: next(ids))
    made = [store.add(make(tmp_path / str(number), FULL)) for number in range(2)]
    with pytest.raises(SnapshotUnknown, match=r"the ids of 2 begin with 'abcd': abcd0000, abcd1111"):
        store.find("abcd")
    assert store.find("abcd1") == made[1]


def test_a_directory_must_hold_files_and_nothing_else(store: SnapshotStore, tmp_path: Path) -> None:
    def cases() -> Iterator[tuple[Path, str]]:
        yield tmp_path / "absent", "expected a directory"
        (tmp_path / "empty").mkdir()
        yield tmp_path / "empty", "it is empty"
        (make(tmp_path / "folder", FULL) / "inner").mkdir()
        yield tmp_path / "folder", "'inner' is none"
        (make(tmp_path / "link", FULL) / "elsewhere").symlink_to("/etc/passwd")
        yield tmp_path / "link", "'elsewhere' is none"
        os.mkfifo(make(tmp_path / "pipe", FULL) / "fifo")
        yield tmp_path / "pipe", "'fifo' is none"
        yield store.add(make(tmp_path / "mine", FULL)).path / "files", "belongs to a stored snapshot"

    for directory, words in cases():
        with pytest.raises(SnapshotError, match=words):
            store.add(directory)
    assert len(store.list()) == 1
    store.verify(store.list()[0])


def test_what_is_said_must_be_json(store: SnapshotStore, tmp_path: Path) -> None:
    source = make(tmp_path / "1", FULL)
    for about in ({"a": object()}, {"a": float("nan")}, {"a": "x" * (1 << 20)}):
        with pytest.raises(ConfigError, match="about: expected"):
            store.add(source, about=about)
    assert store.add(source, about={"a": ("b",)}).about == {"a": ["b"]}


def test_from_another_disk_it_is_copied(store: SnapshotStore, tmp_path: Path, elsewhere: Path) -> None:
    source = make(elsewhere / "source", FULL, drive={3: 1})
    before = contents(source)
    made = store.add(source, name="base")
    assert list(source.iterdir()) == []
    assert opened(store, made) == before
    assert made.stored_bytes < made.logical_bytes, "holes are not copied"
    second = follow(elsewhere, "second", before, {1: b"x"})
    expected = contents(second)
    assert store.add(second, parent=made, name="second").kind == "incremental"
    store.gc(now=True)
    assert opened(store, "second") == expected


def test_several_add_and_open_at_once(store: SnapshotStore, tmp_path: Path) -> None:
    base = make(tmp_path / "base", FULL)
    start = contents(base)
    parent = store.add(base, name="base")
    wrong: list[object] = []

    def work(number: int) -> None:
        try:
            source = follow(tmp_path, str(number), start, {number: b"x"})
            expected = contents(source)
            made = SnapshotStore(store.root).add(source, parent=parent, name=f"n{number}")
            SnapshotStore(store.root).gc(now=True)
            if opened(store, made) != expected:
                wrong.append(number)
        except BaseException as error:
            wrong.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert len(store.list()) == 7


def test_of_two_with_the_same_name_one_wins(store: SnapshotStore, tmp_path: Path) -> None:
    sources = [make(tmp_path / str(number), FULL) for number in range(4)]
    ready = threading.Barrier(4)
    ends: list[str] = []

    def work(source: Path) -> None:
        ready.wait(timeout=20)
        try:
            store.add(source, name="same")
            ends.append("added")
        except SnapshotError:
            ends.append("refused")

    threads = [threading.Thread(target=work, args=(source,)) for source in sources]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(ends) == ["added", "refused", "refused", "refused"]
    assert len(store.list()) == 1
    assert sum(bool(list(source.iterdir())) for source in sources) == 3


def test_copies_make_room_for_one_another(
    store: SnapshotStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = contents(make(tmp_path / "start", FULL))
    parent = store.add(tmp_path / "start", name="start")
    made = [
        store.add(follow(tmp_path, str(number), start, {number: b"x"}), parent=parent, name=f"n{number}")
        for number in range(3)
    ]
    copies = store.root / "copies"
    for age, one in zip((30, 20, 10), made, strict=True):
        os.utime(copies / one.id, (one.path.stat().st_mtime - age,) * 2)
    monkeypatch.setattr(whole, "MOST_BYTES", 2 * store.disk_bytes()[1] // 3 + PAGE)
    with store.open(made[0]):
        os.utime(copies / made[0].id, (made[0].path.stat().st_mtime - 30,) * 2)
        made.append(store.add(follow(tmp_path, "3", start, {3: b"x"}), parent=parent))
        there = {path.name for path in copies.iterdir()}
    # The oldest is in use; of the others there is room for the new one and the next.
    assert there == {made[number].id for number in (0, 2, 3)}


def test_long_work_tells_how_far_it_is(store: SnapshotStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[tuple[str, int, int]] = []
    start = contents(make(tmp_path / "start", FULL))
    store.add(tmp_path / "start", name="start", progress=lambda *one: told.append(one))
    assert told == [], "what is done at once is not worth a word"
    monkeypatch.setattr(progress, "LONG_S", 0.0)
    monkeypatch.setattr(progress, "_EVERY_S", 0.0)
    store.add(follow(tmp_path, "2", start, {1: b"x"}), parent="start", name="2", progress=lambda *one: told.append(one))
    store.gc(now=True)
    with store.open("2", progress=lambda *one: told.append(one)):
        pass
    store.verify("2", progress=lambda *one: told.append(one))
    assert {text.split()[0] for text, _, _ in told} == {"comparing", "reading", "putting", "checking"}
    assert all(0 < done <= total for _, done, total in told)


def test_the_users_own_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGENTENV_DATA", str(tmp_path / "chosen"))
    assert SnapshotStore.default().root == tmp_path / "chosen/snapshots"
    monkeypatch.delenv("AGENTENV_DATA")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    assert SnapshotStore.default().root == tmp_path / "data/agentenv/snapshots"
    monkeypatch.delenv("XDG_DATA_HOME")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert SnapshotStore.default().root == tmp_path / "home/.local/share/agentenv/snapshots"


def test_a_place_that_cannot_be_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(RuntimeUnavailable, match=r"(?s)expected to write the store of snapshots.*AGENTENV_DATA"):
        SnapshotStore(tmp_path / "file/store")


def test_a_copy_that_cannot_be_kept_holds_nothing(store: SnapshotStore, tmp_path: Path) -> None:
    made = store.add(make(tmp_path / "1", FULL))
    ready = tmp_path / "ready"
    ready.mkdir()
    before = os.listdir("/proc/self/fd")
    (store.root / "copies" / made.id).write_text("in the way")
    with pytest.raises(NotADirectoryError):
        whole.keep(store._shelf, made, ready)
    assert len(os.listdir("/proc/self/fd")) == len(before)
    fd = locks.take(ready, wait=False)
    assert fd is not None, "nobody has it"
    os.close(fd)
