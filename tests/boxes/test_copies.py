"""Standing still, being kept, being copied, and dying."""

from __future__ import annotations

import copy
import os
import pickle
import signal
import subprocess
import sys
import threading
from collections import Counter
from pathlib import Path

import pytest

from agentenv import Sandbox
from agentenv.errors import (
    CauseKind,
    ClosedError,
    RuntimeUnavailable,
    SandboxDied,
    SnapshotError,
    SnapshotUnknown,
)
from agentenv.fleet.machines import machine_files
from agentenv.sandbox.contract import SandboxSpec
from agentenv.snapshots.store import SnapshotStore
from agentenv.testing import traces
from agentenv.testing.leftovers import becomes_true
from machines_ground import need_machines

pytestmark = pytest.mark.timeout(300)

# Lives in memory only, and answers whoever asks.
COUNTER = "n=0; while read word; do n=$((n + 1)); echo $n; done"


def test_what_stands_still_accepts_nothing_and_goes_on_where_it_was(box: Sandbox) -> None:
    with box.start(COUNTER) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(b"a\n")
        assert process.stdout.readline() == b"1\n"
        box.pause()
        box.pause()
        assert box.state == "paused"
        for work in (lambda: box.exec("true"), lambda: box.read("/etc/passwd"), box.health):
            with pytest.raises(RuntimeUnavailable, match="sandbox 'shared': it is paused") as caught:
                work()
            assert caught.value.remedy == "resume it first"
        process.stdin.write(b"b\n")
        box.resume()
        box.resume()
        assert box.state == "running"
        assert process.stdout.readline() == b"2\n"


def test_a_snapshot_keeps_memory_and_files_and_a_later_one_the_difference(box: Sandbox) -> None:
    box.write("/root/kept", b"before")
    box.exec(
        "mkfifo /root/ask /root/answer; (while read w < /root/ask; do echo $w$$ > /root/answer; done) &", check=True
    )
    ask = "echo x > /root/ask; cat /root/answer"
    answer = box.exec(ask, timeout_s=60).text
    first = box.snapshot("first")
    box.write("/root/kept", b"after")
    second = box.snapshot()
    assert (first.name, first.kind, second.name) == ("first", "full", None)
    assert (second.kind, second.parent) == ("incremental", first.id)
    assert second.stored_bytes < first.stored_bytes / 2
    with pytest.raises(SnapshotError, match="there is a snapshot called 'first' already"):
        box.snapshot("first")
    assert box.read("/root/kept") == b"after"
    with Sandbox.from_snapshot("first", name="back") as back:
        assert back.exec("hostname").text == "back\n"
        assert back.read("/root/kept") == b"before"
        assert back.exec(ask, timeout_s=60).text == answer
        assert back.describe().origin == "snapshot first"
        assert back.exec("echo $FROM_CREATE").text == "1\n"
    with Sandbox.from_snapshot(second) as back:
        assert back.read("/root/kept") == b"after"


def test_what_it_was_brought_back_from_stays_until_it_is_destroyed(box: Sandbox) -> None:
    store = SnapshotStore.default()
    full = box.snapshot("in-use")
    box.write("/root/more", b"more")
    changed = box.snapshot()
    assert changed.kind == "incremental"
    with Sandbox.from_snapshot(full) as one, Sandbox.from_snapshot(changed) as two:
        (kid,) = two.fork()
        with pytest.raises(SnapshotError, match="'in-use' cannot be removed"):
            store.remove(full)
        with pytest.raises(SnapshotError, match="it is in use; end the machines made from it first"):
            store.remove(changed)
        store.gc(now=True)
        assert {full.id, changed.id} <= {found.id for found in store.list()}
        assert (store.root / "copies" / changed.id).is_dir()
        two.snapshot("of-two")
        assert two.exec("cat /root/more").text == "more"
        assert one.exec("echo lives").text == "lives\n"
    with kid:
        store.remove("of-two")
        store.remove(changed)
        store.remove(full)
        assert kid.exec("cat /root/more").text == "more", "copies need nothing of it"


def held_files(pid: int) -> Counter[int]:
    """Files that a process has locked together with others: how often, by inode."""
    lines = [line.split() for line in Path("/proc/locks").read_text().splitlines()]
    return Counter(
        int(words[5].rpartition(":")[2])
        for words in lines
        if words[1:4:2] == ["FLOCK", "READ"] and words[4] == str(pid)
    )


def test_the_files_of_a_machine_are_held_as_long_as_it_lives(box: Sandbox) -> None:
    """Whoever collects in the store of images leaves what is held; tests/sandbox/vm/test_holding.py sees to that."""
    files = machine_files([])(SandboxSpec("any", disk_mb=1024)).paths()
    before = held_files(os.getpid())
    assert all(before[path.stat().st_ino] > 0 for path in files)
    snapshot = box.snapshot()
    with Sandbox.create(runtime="qemu", memory_mb=256) as made, Sandbox.from_snapshot(snapshot) as back:
        now = held_files(os.getpid())
        assert {now[path.stat().st_ino] - before[path.stat().st_ino] for path in files} == {2}
        assert made.exec("true").exit_code == back.exec("true").exit_code == 0
    assert held_files(os.getpid()) == before


def test_unknown_snapshots_are_named(ground: Path) -> None:
    with pytest.raises(SnapshotUnknown, match="is called 'nosuch'"):
        Sandbox.from_snapshot("nosuch")


def test_forks_go_their_own_ways_and_share_a_runtime(box: Sandbox) -> None:
    before = traces.take()
    box.write("/root/mine", b"common")
    kids = box.fork(2, name="kid")
    relays = [
        pid for pid in traces.descendants(os.getpid()) if b"relay_main" in Path(f"/proc/{pid}/cmdline").read_bytes()
    ]
    assert len(relays) == 1
    try:
        assert [kid.id for kid in kids] == ["kid-1", "kid-2"]
        for kid in kids:
            assert kid.read("/root/mine") == b"common"
            kid.write("/root/mine", kid.id)
        told = [
            one.exec("hostname; cat /root/mine /etc/machine-id; head -c 16 /dev/urandom | od -x").text for one in kids
        ]
        assert told[0] != told[1]
        assert [text.splitlines()[0] for text in told] == ["kid-1", "kid-2"]
        assert box.read("/root/mine") == b"common"
        kids[0].destroy()
        assert kids[1].read_text("/root/mine") == "kid-2"
        (grandchild,) = kids[1].fork()
        with grandchild:
            assert grandchild.read_text("/root/mine") == "kid-2"
    finally:
        for kid in kids:
            kid.destroy()
    assert becomes_true(lambda: traces.take().left_since(before) == [], 20), traces.take().left_since(before)


def test_forks_outlive_what_they_were_forked_from(ground: Path) -> None:
    before = traces.take()
    with Sandbox.create(runtime="qemu", memory_mb=256) as first:
        (kid,) = first.fork()
    with kid:
        assert first.state == "destroyed"
        assert kid.exec("echo lives").text == "lives\n"
    assert becomes_true(lambda: traces.take().left_since(before) == [], 20), traces.take().left_since(before)


def test_several_at_once_by_the_first_runtime_that_works(ground: Path) -> None:
    boxes = Sandbox.create_many(2, memory_mb=256, name="many")
    try:
        assert {one.describe().runtime for one in boxes} <= {"firecracker", "qemu"}
        assert [one.exec("hostname").text for one in boxes] == ["many-1\n", "many-2\n"]
    finally:
        for one in boxes:
            one.destroy()


def test_a_program_that_takes_all_memory_is_a_result(box: Sandbox) -> None:
    (kid,) = box.fork()
    with kid:
        done = kid.exec(["python3", "-c", "x = bytearray(2 << 30)"], timeout_s=120)
        assert done.exit_code != 0
        assert kid.exec("echo lives").text == "lives\n"


def test_the_end_of_the_machine_is_an_error_with_its_cause(box: Sandbox) -> None:
    (kid,) = box.fork(name="doomed")
    with kid, kid.start(["sleep", "600"]) as process:
        killer = threading.Timer(0.5, os.kill, (kid.describe().pid, signal.SIGKILL))
        killer.start()
        with pytest.raises(SandboxDied, match="sandbox 'doomed-1': its machine's monitor was killed") as caught:
            kid.exec(["sleep", "600"])
        killer.join()
        assert caught.value.cause.kind is CauseKind.SANDBOX_LOST
        for work in (process.wait, lambda: kid.exec("true"), lambda: kid.read("/etc/passwd"), kid.pause, kid.snapshot):
            with pytest.raises(SandboxDied, match="monitor was killed"):
                work()
        assert kid.describe().state == "died"
        assert "monitor was killed" in kid.describe().cause
        assert kid.usage() is None
    kid.destroy()
    assert kid.state == "destroyed"


def test_what_was_destroyed_says_so(box: Sandbox) -> None:
    (kid,) = box.fork()
    ender = threading.Timer(0.5, kid.destroy)
    ender.start()
    with pytest.raises((SandboxDied, ClosedError), match="destroyed"):
        kid.exec(["sleep", "600"])
    ender.join()
    kid.destroy()
    with pytest.raises(ClosedError, match="was destroyed; make another"):
        kid.exec("true")


def test_one_that_is_forgotten_is_destroyed_with_a_warning(box: Sandbox) -> None:
    kids = box.fork()
    pid = kids[0].describe().pid
    with pytest.warns(ResourceWarning, match="was not destroyed"):
        kids.clear()
    assert becomes_true(lambda: not Path(f"/proc/{pid}").exists(), 30)


def test_it_is_neither_pickled_nor_copied(box: Sandbox) -> None:
    for work in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(TypeError, match="use fork or snapshot"):
            work(box)


def test_a_forked_process_leaves_it_alone(box: Sandbox) -> None:
    code = 0
    if (pid := os.fork()) == 0:
        try:
            from agentenv.boxes import local

            local._destroy_all()
        except BaseException:
            code = 1
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert box.exec("echo lives").text == "lives\n"


SCRIPT = """
import os, signal, sys
from agentenv import Sandbox
box = Sandbox.create(runtime="qemu", memory_mb=256)
process = box.start(["sleep", "600"])
print(box.describe().pid, flush=True)
if sys.argv[1] == "raise":
    raise KeyError("a mistake in the script")
if sys.argv[1] == "exit":
    sys.exit(7)
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize(("how", "code"), [("raise", 1), ("exit", 7), ("kill", -9)])
def test_the_end_of_a_script_ends_its_sandboxes(ground: Path, how: str, code: int) -> None:
    need_machines()
    done = subprocess.run([sys.executable, "-c", SCRIPT, how], capture_output=True, text=True, timeout=200)
    assert done.returncode == code, done.stderr
    assert ("KeyError" in done.stderr) == (how == "raise")
    monitor = Path(f"/proc/{int(done.stdout)}/stat")
    assert becomes_true(lambda: not monitor.exists() or b") Z " in monitor.read_bytes(), 30)
