"""One control group, for real, on whichever version this machine has: limits bind, and its end is the end."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from agentenv.errors import ClosedError
from agentenv.sandbox.runtimes import _cgroupfs as fs
from agentenv.sandbox.runtimes._cgroup import CgroupRun, open_run
from agentenv.sandbox.runtimes._cgroup_contract import CgroupLimits
from agentenv.sandbox.runtimes._cgroup_v2 import _processes_killed
from agentenv.sandbox.runtimes._runid import new_run_id
from cgroup_children import MIB, child, go, is_dead, needs, ours, start


@pytest.fixture
def run() -> Iterator[CgroupRun]:
    opened = open_run(new_run_id())
    assert opened is not None
    with opened:
        yield opened


@needs("memory")
def test_allocating_past_the_limit_is_one_counted_kill(run):
    group = run.create("hungry", memory_mb=32, vcpu_count=1, pids=16)
    with child("x = bytearray(256 << 20); print('survived')") as process:
        group.add(process.pid)
        assert go(process) == ""
        assert process.returncode == -signal.SIGKILL
    stats = group.stats()
    assert stats.oom_kills == 1
    if stats.memory_peak_bytes:  # absent before Linux 5.19 on v2
        assert 24 * MIB < stats.memory_peak_bytes <= 32 * MIB


@needs("memory")
def test_memory_within_the_limit_is_counted_and_nobody_is_killed(run):
    group = run.create("modest", memory_mb=64, vcpu_count=1, pids=16)
    code = (
        "import os\nx = bytearray(b'x') * (16 << 20)\n"
        "f = os.memfd_create('m'); os.write(f, bytes(x[:8 << 20]))\nprint('ready', flush=True); sys.stdin.readline()"
    )
    with child(code) as process:
        group.add(process.pid)
        start(process)
        assert process.stdout.readline() == "ready\n"
        stats = group.stats()
        assert stats.oom_kills == 0
        assert stats.pids == 1 or "pids" not in run.controllers
        assert 24 * MIB <= stats.memory_bytes < 48 * MIB
        assert stats.memory_bytes <= stats.charged_bytes <= 64 * MIB


@needs("memory")
def test_one_groups_kill_does_not_touch_its_sibling(run):
    hungry = run.create("hungry", memory_mb=32, vcpu_count=1, pids=16)
    sibling = run.create("sibling", memory_mb=32, vcpu_count=1, pids=16)
    with child("x = bytearray(256 << 20)") as first, child("print('alive')") as second:
        hungry.add(first.pid)
        sibling.add(second.pid)
        go(first)
        assert go(second) == "alive\n"
    assert (hungry.stats().oom_kills, sibling.stats().oom_kills) == (1, 0)


@needs("memory", "pids")
def test_after_an_out_of_memory_kill_no_husk_is_left(run):
    group = run.create("husk", memory_mb=48, vcpu_count=1, pids=16)
    code = (
        "import os, signal\n"
        "for _ in range(2):\n    if os.fork() == 0:\n        print('born', flush=True); signal.pause()\n"
        "sys.stdin.readline()\nx = bytearray(256 << 20)"
    )
    with child(code) as process:
        group.add(process.pid)
        start(process)
        assert [process.stdout.readline() for _ in range(2)] == ["born\n"] * 2
        assert len(fs.members(group.directories)) == 3
        start(process)
        assert process.wait(timeout=30) == -signal.SIGKILL
        stats = group.stats()
        if run.version == "v2":
            assert fs.wait_until(lambda: not fs.members(group.directories), 10)
            if "oom_group_kill" in (group.directories[0] / "memory.events").read_text():  # since Linux 5.17
                assert stats.oom_kills == 3
        else:  # version 1 kills one; the counter tells, and ending the rest is up to whoever watches it
            assert stats.oom_kills == 1
            assert len(fs.members(group.directories)) == 2
            group.kill()
            assert fs.members(group.directories) == set()


@pytest.mark.parametrize(
    ("kills", "group_kills", "processes"), [(0, 0, 0), (1, 0, 1), (2, 1, 1), (4, 1, 3), (1, 1, 1), (5, 2, 3)]
)
def test_the_double_count_of_a_group_kill_is_taken_out(kills, group_kills, processes):
    assert _processes_killed(kills, group_kills) == processes


@needs("pids")
def test_a_fork_past_the_limit_is_refused(run):
    group = run.create("forker", memory_mb=64, vcpu_count=1, pids=4)
    code = (
        "import os, signal\nn = 0\n"
        "try:\n    while n < 50:\n        pid = os.fork()\n        if pid == 0: signal.pause()\n        n += 1\n"
        "except BlockingIOError:\n    pass\nprint(n, flush=True); signal.pause()"
    )
    with child(code) as process:
        group.add(process.pid)
        process.stdin.write("\n")
        process.stdin.close()
        process.stdin = None
        assert process.stdout.readline() == "3\n"
        group.kill()
    assert fs.members(group.directories) == set()


@needs("cpu")
def test_processor_time_is_held_to_the_quota(run):
    group = run.create("busy", memory_mb=64, vcpu_count=0.2, pids=16)
    with child("import time\nwhile time.process_time() < 0.3: pass\nprint('done')") as process:
        group.add(process.pid)
        assert go(process) == "done\n"
    stats = group.stats()
    assert stats.throttled_periods > 0
    assert stats.cpu_s > 0.2


def _tree_of_orphans(process: subprocess.Popen[str]) -> list[int]:
    start(process)
    return [int(process.stdout.readline()) for _ in range(5)]


ORPHANS = (
    "import os, signal\n"
    "for _ in range(5):\n"
    "    if os.fork() == 0:\n        os.setsid(); signal.signal(15, signal.SIG_IGN)\n"
    "        print(os.getpid(), flush=True); signal.pause()\n"
    "signal.pause()"
)


@needs("pids")
def test_destroy_ends_every_descendant_and_leaves_no_directory(run):
    group = run.create("family", memory_mb=64, vcpu_count=1, pids=16)
    with child(ORPHANS) as process:
        group.add(process.pid)
        family = {process.pid, *_tree_of_orphans(process)}
        assert fs.members(group.directories) == family
        group.destroy()
        assert not any(directory.exists() for directory in group.directories)
        assert process.wait(timeout=10) == -signal.SIGKILL
    assert all(is_dead(pid) for pid in family)


@needs("pids")
def test_killing_outruns_a_process_that_forks_all_the_time(run):
    group = run.create("hydra", memory_mb=64, vcpu_count=2, pids=40)
    code = (
        "import os, signal\nsignal.signal(signal.SIGCHLD, signal.SIG_IGN)\nprint('go', flush=True)\n"
        "while True:\n    try:\n        os.fork()\n    except OSError:\n        pass"
    )
    with child(code) as process:
        group.add(process.pid)
        start(process)
        process.stdout.readline()
        group.kill()
        assert fs.members(group.directories) == set()
    group.destroy()


@needs("pids")
def test_a_killed_group_takes_new_processes(run):
    group = run.create("again", memory_mb=64, vcpu_count=1, pids=16)
    with child("") as first:
        group.add(first.pid)
        group.kill()
    with child("print('works')") as second:
        group.add(second.pid)
        assert go(second) == "works\n"


@needs("pids")
def test_destroy_is_idempotent_and_what_follows_is_refused(run):
    group = run.create("gone", memory_mb=64, vcpu_count=1, pids=16)
    group.destroy()
    group.destroy()
    with pytest.raises(ClosedError, match="'gone' was destroyed"):
        group.stats()
    with pytest.raises(ClosedError):
        group.add(os.getpid())


@needs("pids")
def test_destroy_removes_groups_made_beneath_it(run):
    group = run.create("nest", memory_mb=64, vcpu_count=1, pids=16)
    inner = group.directories[0] / "inner"
    inner.mkdir()
    with child("import signal; signal.pause()") as process:
        (inner / "cgroup.procs").write_text(str(process.pid))
        group.destroy()
        assert process.wait(timeout=10) == -signal.SIGKILL
    assert not inner.exists()


@needs("pids")
def test_threads_come_along(run):
    group = run.create("threads", memory_mb=64, vcpu_count=1, pids=16)
    code = (
        "import threading\nstop = threading.Event()\n"
        "ts = [threading.Thread(target=stop.wait) for _ in range(3)]\n[t.start() for t in ts]\n"
        "print('up', flush=True); sys.stdin.readline(); stop.set()"
    )
    with child(code) as process:
        start(process)
        process.stdout.readline()
        group.add(process.pid)
        assert group.stats().pids == 4
        go(process)


@needs("pids")
def test_a_process_that_is_gone_is_said_to_be_gone(run):
    group = run.create("late", memory_mb=64, vcpu_count=1, pids=16)
    with child("") as process:
        go(process)
    with pytest.raises(ProcessLookupError, match=f"process {process.pid} is gone"):
        group.add(process.pid)


@pytest.mark.parametrize(
    "wrong", [{"memory_mb": 0}, {"pids": 0}, {"vcpu_count": 0}, {"vcpu_count": float("nan")}, {"memory_mb": -1}]
)
def test_limits_out_of_range_are_refused(wrong):
    with pytest.raises(ValueError, match=r"expected memory_mb >= 1"):
        CgroupLimits(**{"memory_mb": 64, "vcpu_count": 1, "pids": 8} | wrong)


@needs("pids")
def test_groups_are_made_and_destroyed_from_several_threads(run):
    failures: list[BaseException] = []

    def work(worker: int) -> None:
        try:
            for n in range(5):
                group = run.create(f"w{worker}-{n}", memory_mb=64, vcpu_count=1, pids=8)
                with child("import signal; signal.pause()") as process:
                    group.add(process.pid)
                    group.destroy()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert fs.members(Path(path) for path in ours() if run.run_id in path) == set()


def test_no_wait_lasts_for_ever():
    assert fs.wait_until(lambda: False, 0.0) is False
    answers = iter([False, False, True])
    assert fs.wait_until(lambda: next(answers), 5.0) is True
