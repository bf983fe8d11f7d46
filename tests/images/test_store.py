"""The store: nothing twice, nothing half, nothing taken from under anybody."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from agentenv import locks
from agentenv.errors import ConfigError, ResourceLimit, RuntimeUnavailable
from agentenv.images.collect import Needed, collect, remove_object
from agentenv.images.content import key_of
from agentenv.images.files import digest_file, remove_tree
from agentenv.images.progress import LINES
from agentenv.images.steps import step
from agentenv.images.store import Store
from cli_watch import poll


def put(store: Store, text: str) -> Path:
    return store.once(key_of(text), lambda out: _write(out / "file", text), what="it") / "file"


def _write(path: Path, text: str) -> None:
    path.write_text(text)


def temporary(store: Store) -> list[str]:
    return os.listdir(store.root / "tmp")


def test_an_object_is_named_by_its_content_and_made_once(store: Store) -> None:
    made = []

    def build(out: Path) -> None:
        made.append(out)
        (out / "file").write_text("content")

    first = store.once("a" * 64, build, what="it")
    assert store.once("a" * 64, build, what="it") == first
    assert len(made) == 1
    assert first.name == digest_file(first / "file")
    assert store.once("b" * 64, build, what="it") == first, "other ingredients, the same content"
    assert store.once("a" * 64, build, what="it", again=True) == first
    assert len(made) == 3
    assert (first / "file").stat().st_mode & 0o222 == 0
    assert temporary(store) == []


def test_a_failed_build_leaves_nothing(store: Store) -> None:
    def build(out: Path) -> None:
        (out / "file").write_text("half")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        store.once("a" * 64, build, what="it")
    assert temporary(store) == []
    assert list((store.root / "objects").iterdir()) == []
    assert put(store, "after").read_text() == "after"


def test_a_full_disk_is_said(store: Store) -> None:
    def build(out: Path) -> None:
        raise OSError(28, os.strerror(28))

    with pytest.raises(ResourceLimit, match=r"(?s)no room on the disk.*agentenv image gc") as caught:
        store.once("a" * 64, build, what="it")
    assert caught.value.errno == 28


@pytest.mark.parametrize("where", ["processes", "threads"])
def test_of_several_who_ask_at_once_one_does_the_work(store: Store, tmp_path: Path, where: str) -> None:
    log = tmp_path / "log"
    code = (
        "import sys, os, time\nfrom pathlib import Path\nfrom agentenv.images.store import Store\n"
        "def build(out):\n"
        "    with open(sys.argv[2], 'a') as log: log.write('made\\n')\n"
        "    time.sleep(0.3)\n"
        "    (out / 'file').write_text('content')\n"
        "print(Store(Path(sys.argv[1])).once('c' * 64, build, what='it'))\n"
    )
    if where == "processes":
        argv = [sys.executable, "-c", code, str(store.root), str(log)]
        running = [subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) for _ in range(4)]
        assert len({process.communicate(timeout=60)[0] for process in running}) == 1
        assert all(process.returncode == 0 for process in running)
    else:

        def build(out: Path) -> None:
            with open(log, "a") as file:
                file.write("made\n")
            (out / "file").write_text("content")

        threads = [threading.Thread(target=lambda: store.once("c" * 64, build, what="it")) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert log.read_text() == "made\n"
    assert temporary(store) == []


def test_what_a_killed_process_left_goes_with_the_next_work(store: Store) -> None:
    code = (
        "import sys, time\nfrom pathlib import Path\nfrom agentenv.images.store import Store\n"
        "with Store(Path(sys.argv[1])).work() as work:\n"
        "    (work / 'half').write_text('x'); print(work, flush=True); time.sleep(600)\n"
    )
    process = subprocess.Popen([sys.executable, "-c", code, str(store.root)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    left = Path(process.stdout.readline().strip())
    with store.work() as mine:
        assert left.exists(), "its owner lives"
        assert mine != left
    process.send_signal(signal.SIGKILL)
    process.communicate()
    with store.work():
        assert not left.exists()
    assert temporary(store) == []


def test_who_was_stopped_before_it_locked_its_directory_gets_another(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    make = tempfile.mkdtemp
    stopped = [1, 1, 0]

    def stop(**given: Any) -> str:
        path = make(**given)
        if stopped.pop(0):  # for long, while another process looks for what the dead left
            os.utime(path, (1, 1))
            assert store.sweep() == 1
        return path

    monkeypatch.setattr(tempfile, "mkdtemp", stop)
    with store.work() as work:
        (work / "file").write_text("x")
        assert store.sweep() == 0
    assert temporary(store) == []


def test_collecting_spares_names_holders_and_what_is_fresh(store: Store) -> None:
    named, held, fresh, old = (put(store, text) for text in ("named", "held", "fresh", "old"))
    store.name("image", "mine", named.parent.name, {"text": "known"})
    fd = store.hold(held)
    long_ago = time.time() - 3600
    for path in (named, held, old):
        os.utime(path.parent, (long_ago, long_ago))
    done = collect(store, unused_for_s=600)
    assert (done.removed, done.held) == (1, 2)
    assert [path.exists() for path in (named, held, fresh, old)] == [True, True, True, False]
    os.close(fd)
    assert collect(store, unused_for_s=-1).removed == 2
    assert [path.exists() for path in (named, held, fresh)] == [True, False, False]
    assert store.find(key_of("named")) == named.parent
    assert store.find(key_of("old")) is None
    assert len(list((store.root / "keys").iterdir())) == 1
    found = store.named("image", "mine")
    assert found is not None
    assert found.record == {"text": "known"}


def test_what_is_held_by_another_process_stays(store: Store) -> None:
    path = put(store, "held")
    code = (
        "import sys\nfrom pathlib import Path\nfrom agentenv.images.store import Store\n"
        "fd = Store(Path(sys.argv[1])).hold(Path(sys.argv[2])); print('held', flush=True); sys.stdin.read()\n"
    )
    argv = [sys.executable, "-c", code, str(store.root), str(path)]
    process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    assert collect(store, unused_for_s=-1).held == 1
    assert remove_object(store, path.parent.name).freed_bytes == 0
    process.kill()
    process.communicate()
    assert remove_object(store, path.parent.name).freed_bytes > 0
    with pytest.raises(FileNotFoundError):
        store.hold(path)


def test_who_waits_for_what_is_removed_does_not_hold_it(store: Store) -> None:
    path = put(store, "file")
    found: list[object] = []

    def hold() -> None:
        try:
            found.append(store.hold(path))
        except FileNotFoundError as error:
            found.append(error)

    def is_awaited() -> bool:
        inode = f":{path.stat().st_ino} "
        return any("->" in line and inode in line for line in Path("/proc/locks").read_text().splitlines())

    fd = locks.take(path, wait=False)
    assert fd is not None
    waiter = threading.Thread(target=hold)
    waiter.start()
    poll(is_awaited, "somebody who waits for it")
    os.rename(path.parent, store.root / "tmp/gone")
    os.close(fd)
    waiter.join(timeout=20)
    assert isinstance(found[0], FileNotFoundError)


def test_needs_and_names_are_asked_for_while_nobody_can_begin_or_end_a_use(store: Store) -> None:
    """Whoever stores what needs an object holds it until then: asked earlier, they would not tell of it."""
    stored, named, old = (put(store, text) for text in ("stored", "named", "old"))

    def needed() -> Needed:
        assert all(locks.take(path, shared=True, wait=False) is None for path in (stored, named, old))
        store.name("image", "just-now", named.parent.name, {})
        return Needed(frozenset({stored.parent.name}))

    done = collect(store, needed=needed, unused_for_s=-1)
    assert (done.removed, done.held, done.doubt) == (1, 0, "")
    assert [path.exists() for path in (stored, named, old)] == [True, True, False]
    assert remove_object(store, stored.parent.name, needed=lambda: Needed(frozenset({stored.parent.name}))).removed == 0
    assert remove_object(store, stored.parent.name).removed == 1


def test_in_doubt_no_object_is_removed_and_the_doubt_is_told(store: Store) -> None:
    path = put(store, "one")
    (store.blobs / "sha256/layer").write_text("fetched")
    done = collect(store, needed=lambda: Needed(doubt="a reason"), unused_for_s=-1)
    assert (done.removed, done.held, done.doubt) == (1, 1, "a reason")
    assert path.exists()
    done = remove_object(store, path.parent.name, needed=lambda: Needed(doubt="a reason"))
    assert (done.removed, done.freed_bytes, done.doubt) == (0, 0, "a reason")
    store.name("image", "mine", path.parent.name, {})
    assert collect(store, needed=lambda: Needed(doubt="a reason"), unused_for_s=-1).doubt == "", "nothing stays for it"
    assert store.forget("image", "mine")
    assert collect(store, unused_for_s=-1).removed == 1


def test_many_are_collected_at_once(store: Store) -> None:
    paths = [put(store, str(number)) for number in range(40)]
    for number in range(5):
        (store.blobs / f"sha256/{number}").write_text("x")
    fd = store.hold(paths[20])
    done = collect(store, unused_for_s=-1)
    os.close(fd)
    assert (done.removed, done.held) == (44, 1)
    assert [path for path in paths if path.exists()] == [paths[20]]
    assert list((store.blobs / "sha256").iterdir()) == []


_IN_A_LAYER = """
mount -t tmpfs tmpfs "$1" && mkdir "$1/lower" "$1/upper" "$1/work" "$1/all" && cp -a "$2/." "$1/lower" &&
mount -t overlay overlay -o "lowerdir=$1/lower,upperdir=$1/upper,workdir=$1/work,userxattr" "$1/all" &&
exec "$3" -c "$4" "$1/all"
"""
_COLLECT = """
import sys
from pathlib import Path
from agentenv.images.collect import collect
from agentenv.images.store import Store
store = Store(Path(sys.argv[1]))
print(collect(store, unused_for_s=-1).removed, [path.name for path in (store.root / "objects").iterdir()])
"""


def test_what_came_with_a_container_is_collected(store: Store, tmp_path: Path) -> None:
    put(store, "one")
    layers = tmp_path / "layers"
    layers.mkdir()
    script = ["sh", "-c", _IN_A_LAYER, "-", str(layers), str(store.root), sys.executable, _COLLECT]
    space = ["unshare", "--user", "--map-root-user", "--mount"]
    done = subprocess.run([*space, *script], capture_output=True, text=True, check=False)
    if "unshare failed" in done.stderr or "mount:" in done.stderr:
        pytest.skip("needs user namespaces in which an overlay can be mounted")
    assert (done.stdout, done.stderr) == ("1 []\n", "")


def test_locks_go_with_what_they_are_for_and_nobody_is_left_with_a_removed_one(store: Store) -> None:
    put(store, "old")
    store.name("image", "mine", put(store, "named").parent.name, {})
    with step(store, key_of("step"), lambda out: None, what="it", report=LINES):
        pass
    held = store.lock(key_of("being made"))
    with held:
        collect(store, unused_for_s=-1)
        kept = {"collect", "layers", key_of("named"), key_of("being made")}
        assert set(os.listdir(store.root / "locks")) - {"layers"} == kept - {"layers"}
    waiting = threading.Event()
    found: list[bool] = []

    def lock() -> None:
        with locks.locked(store.root / "locks" / key_of("again"), waiting=waiting.set) as fd:
            found.append(locks.is_at(fd, store.root / "locks" / key_of("again")))

    with store.lock(key_of("again")):
        waiter = threading.Thread(target=lock)
        waiter.start()
        assert waiting.wait(20)
        place = store.root / "locks" / key_of("again")
        inode = f":{place.stat().st_ino} "
        poll(
            lambda: any("->" in line and inode in line for line in Path("/proc/locks").read_text().splitlines()),
            "somebody who waits for it",
        )
        place.unlink()
    waiter.join(timeout=20)
    assert found == [True]
    assert collect(store, unused_for_s=-1).removed == 0
    assert key_of("again") not in os.listdir(store.root / "locks")


def test_a_step_is_kept_used_and_collected(store: Store) -> None:
    made = []

    def build(out: Path) -> None:
        made.append(out)
        (out / "tree").mkdir()
        (out / "tree").chmod(0o555)

    for _ in range(2):
        with step(store, "a" * 64, build, what="it", report=LINES) as place:
            assert (place / "tree").is_dir()
            assert collect(store, unused_for_s=-1).held == 1, "in use"
    assert len(made) == 1
    with step(store, "a" * 64, build, what="it", report=LINES, again=True):
        assert len(made) == 2
    assert collect(store, unused_for_s=-1).removed == 1
    assert temporary(store) == []


def test_names(store: Store) -> None:
    path = put(store, "one")
    for name in ("../x", "", "a/b", ".hidden", "x" * 200):
        with pytest.raises(ConfigError, match="expected letters"):
            store.name("image", name, path.parent.name, {})
        assert store.named("image", name) is None
        assert not store.forget("image", name)
    store.name("image", "b", path.parent.name, {"n": 1})
    store.name("image", "a", path.parent.name, {"n": 2})
    store.name("image", "b", path.parent.name, {"n": 3})
    assert [(one.name, one.record["n"]) for one in store.names("image")] == [("a", 2), ("b", 3)]
    assert store.names("kernel") == []
    assert store.forget("image", "a")
    assert not store.forget("image", "a")
    (store.root / "names/image/damaged.json").write_text("{")
    (store.root / "names/image/gone.json").write_text(json.dumps({"digest": "f" * 64}))
    (store.root / "names/image/odd.json").write_text(json.dumps({"digest": "../../x"}))
    assert [one.name for one in store.names("image")] == ["b"]


def test_where_the_store_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    monkeypatch.setenv("AGENTENV_CACHE", str(tmp_path / "own"))
    assert Store.default().root == tmp_path / "own"
    monkeypatch.delenv("AGENTENV_CACHE")
    assert Store.default().root == tmp_path / "xdg/agentenv"
    assert Store.default().root.stat().st_mode & 0o077 == 0, "projects in it are nobody else's business"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert Store.default().root == tmp_path / ".cache/agentenv"
    (tmp_path / "file").write_text("")
    with pytest.raises(RuntimeUnavailable, match="AGENTENV_CACHE"):
        Store(tmp_path / "file/below")


@pytest.mark.parametrize(
    "variables", [{"AGENTENV_CACHE": "~nobody-here/x", "AGENTENV_DATA": "~nobody-here/x"}, {"XDG_CACHE_HOME": ""}]
)
def test_who_has_no_home_is_told_what_helps(variables: dict[str, str]) -> None:
    code = (
        "import os, sys\n"
        "os.environ = {'PATH': os.environ['PATH'], **dict(pair.split('=') for pair in sys.argv[1:])}\n"
        "import pwd; pwd.getpwuid = pwd.getpwnam = lambda *_: {}['nobody of this number']\n"
        "from agentenv.cli.app import run_app\n"
        "sys.exit([run_app(words) for words in (['image', 'ls'], ['kernel', 'ls'], ['snapshot', 'ls'])] != [3] * 3)\n"
    )
    given = [f"{name}={value}" for name, value in variables.items()]
    done = subprocess.run([sys.executable, "-c", code, *given], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("expected a home directory") == 3
    assert "remedy: set HOME=DIR, or AGENTENV_CACHE=DIR" in done.stderr
    assert "remedy: set HOME=DIR, or AGENTENV_DATA=DIR" in done.stderr


def test_what_is_in_a_directory_that_was_there_is_nobody_elses(tmp_path: Path) -> None:
    root = tmp_path / "shared"
    (root / "objects").mkdir(parents=True)
    for path in (root, root / "objects"):
        path.chmod(0o755)
    (root / "theirs").mkdir(mode=0o755)
    (root / "theirs").chmod(0o755)
    before = os.umask(0o022)
    try:
        store = Store(root)
        put(store, "text")
    finally:
        os.umask(before)
    assert root.stat().st_mode & 0o777 == 0o755, "it is not ours to change"
    assert (root / "theirs").stat().st_mode & 0o777 == 0o755
    ours = {path.name: path.stat().st_mode & 0o777 for path in root.iterdir() if path.name != "theirs"}
    assert ours == dict.fromkeys(("objects", "keys", "names", "steps", "locks", "tmp", "oci"), 0o700)


def test_a_tree_that_forbids_it_is_removed(tmp_path: Path) -> None:
    (tmp_path / "top/below").mkdir(parents=True)
    (tmp_path / "top/below/file").write_text("x")
    (tmp_path / "top/below").chmod(0o555)
    (tmp_path / "top").chmod(0o500)
    remove_tree(tmp_path / "top")
    assert not (tmp_path / "top").exists()
    remove_tree(tmp_path / "top")


def test_a_tree_that_is_too_deep_for_any_name_is_removed(store: Store) -> None:
    left = store.root / "tmp/left"
    left.mkdir(mode=0o700)
    folder = os.open(left, os.O_RDONLY)
    for _ in range(2500):
        os.mkdir("ab", dir_fd=folder)
        above, folder = folder, os.open("ab", os.O_RDONLY, dir_fd=folder)
        os.chmod(above, 0o500)
        os.close(above)
    os.close(os.open("file", os.O_WRONLY | os.O_CREAT, dir_fd=folder))
    os.close(folder)
    try:
        with store.work():
            assert not left.exists()
    finally:
        subprocess.run(["chmod", "-R", "u+w", str(left)], check=False, capture_output=True)
        subprocess.run(["rm", "-rf", str(left)], check=False)
    assert temporary(store) == []


def wreck(path: Path, how: str) -> None:
    path.chmod(0o644)
    if how == "cut":
        os.truncate(path, 2)
    elif how == "changed":
        path.write_text(path.read_text().upper())
    else:
        path.unlink()


@pytest.mark.parametrize("how", ["cut", "gone", "changed"])
def test_what_is_damaged_is_made_again(store: Store, how: str) -> None:
    def build(out: Path) -> None:
        (out / "below").mkdir()
        (out / "below/one").write_text("one")
        (out / "two").write_text("two")

    made = store.once(key_of("it"), build, what="it")
    wreck(made / "below/one", how)
    (made / "more").write_text("")
    # What has its size is not read each time: that is for whoever asks for it to be made again.
    assert store.once(key_of("it"), build, what="it", again=how == "changed") == made
    assert sorted(path.name for path in made.rglob("*")) == ["below", "one", "two"]
    assert (made / "below/one").read_text() == "one"
    before = (made / "two").stat().st_ino
    assert store.once(key_of("it"), build, what="it", again=True) == made
    assert (made / "two").stat().st_ino == before, "whoever holds what is in order goes on holding it"
    assert temporary(store) == []


def test_records_that_are_damaged_say_nothing(store: Store) -> None:
    path = put(store, "it")
    store.name("image", "mine", path.parent.name, {})
    for text in ("[" * 100_000, "", "{", "[]", '{"digest": 3}', '{"digest": "' + "a" * 64 + '"}'):
        (store.root / "names/image/mine.json").write_text(text)
        (store.root / "keys" / f"{key_of('it')}.json").write_text(text)
        assert store.named("image", "mine") is None
        assert store.names("image") == []
        assert store.find(key_of("it")) is None
    assert put(store, "it") == path
