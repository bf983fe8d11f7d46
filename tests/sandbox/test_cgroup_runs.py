"""Finding control groups, a run's groups, and the sweep; where the machine has none, the answer that says so."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from agentenv.errors import ClosedError, RuntimeUnavailable
from agentenv.sandbox.runtimes._cgroup import ROOT, CgroupRun, detect, open_run, sweep
from agentenv.sandbox.runtimes._runid import new_run_id
from cgroup_children import SUPPORT, child, is_dead, needs, ours


@pytest.fixture
def run() -> Iterator[CgroupRun]:
    opened = open_run(new_run_id())
    assert opened is not None
    with opened:
        yield opened


@pytest.mark.alone
def test_detection_leaves_nothing_and_is_complete_or_says_why():
    before = ours()
    support = detect()
    assert ours() == before
    assert support.version in ("v1", "v2", "none")
    missing = {"memory", "cpu", "pids"} - support.controllers
    assert bool(missing) == bool(support.reason) == bool(support.remedy)
    for name in missing:
        assert name in support.reason


def test_the_version_is_the_one_that_has_the_controllers():
    if SUPPORT.version == "none":
        assert SUPPORT.controllers == frozenset()
        assert open_run(new_run_id()) is None
        assert sweep(lambda _: False) == ()
    else:
        assert SUPPORT.version == ("v2" if (ROOT / "cgroup.controllers").exists() else "v1")


@needs("cpu")
def test_those_who_never_sleep_weigh_two_processes_a_processor_at_most(run: CgroupRun):
    def share() -> float:
        """In processes; version 1 counts 1024 for one, version 2 100."""
        name, one = {"v1": ("cpu.shares", 1024), "v2": ("cpu.weight", 100)}[SUPPORT.version]
        (found,) = [place.parent / name for place in group.directories if (place.parent / name).exists()]
        return int(found.read_text()) / one

    most = 2 * len(os.sched_getaffinity(0))
    group = run.create("a", memory_mb=64, vcpu_count=most + 3, pids=8)
    assert share() == most + 3
    run.weigh(modestly=True)
    assert share() == most
    run.create("b", memory_mb=64, vcpu_count=1, pids=8)
    assert share() == most
    run.weigh(modestly=False)
    assert share() == most + 4
    run.close()
    run.weigh(modestly=True)


def test_an_ordinary_user_without_delegation_gets_none_with_a_remedy():
    if os.geteuid() == 0:
        code = (
            "import os; os.setgroups([]); os.setgid(65534); os.setuid(65534)\n"
            "from agentenv.sandbox.runtimes._cgroup import detect, open_run\n"
            "from agentenv.sandbox.runtimes._runid import new_run_id\n"
            "s = detect(); print(s.version, open_run(new_run_id()), s.reason, '|', s.remedy)\n"
        )
        done = subprocess.run(
            [sys.executable, "-c", "from agentenv.sandbox.runtimes import _cgroup, _runid\n" + code],
            capture_output=True,
            text=True,
            timeout=60,
        )
        said = done.stdout
        assert said.startswith("none None "), done.stderr
        assert "Permission denied" in said
        assert "systemd-run --user --scope -p Delegate=yes" in said or "run as root" in said
    else:
        assert SUPPORT.version == "none" or SUPPORT.controllers


def test_a_directory_that_is_no_cgroup_is_recognised(tmp_path):
    for version_files in ([], ["cgroup.controllers"]):
        root = tmp_path / str(len(version_files))
        for name in ("memory", "cpu", "pids"):
            (root / name).mkdir(parents=True)
        for name in version_files:
            (root / name).write_text("")
        support = detect(root)
        assert (support.version, support.controllers) == ("none", frozenset())
        assert not list(root.glob("**/agentenv.*"))


@needs("pids")
@pytest.mark.parametrize("name", ["", "a/b", "..", ".hidden", "x" * 65, "a\n", "-x"])
def test_names_that_would_leave_the_run_are_refused(run, name):
    with pytest.raises(ValueError, match="group name"):
        run.create(name, memory_mb=64, vcpu_count=1, pids=16)


@needs("pids")
def test_a_name_taken_by_a_group_or_by_the_kernel_is_refused(run):
    first = run.create("twin", memory_mb=64, vcpu_count=1, pids=16)
    for name in ("twin", "cgroup.procs"):
        with pytest.raises(RuntimeUnavailable, match="exists already"):
            run.create(name, memory_mb=64, vcpu_count=1, pids=16)
    assert first.stats().pids == 0


@needs("pids")
def test_closing_a_run_ends_all_its_groups():
    opened = open_run(new_run_id())
    groups = [opened.create(f"e{n}", memory_mb=64, vcpu_count=1, pids=8) for n in range(3)]
    with child("import signal; signal.pause()") as process:
        groups[1].add(process.pid)
        opened.close()
        opened.close()
        assert process.wait(timeout=10) == -signal.SIGKILL
    assert not [path for path in ours() if opened.run_id in path]
    with pytest.raises(ClosedError):
        opened.create("late", memory_mb=64, vcpu_count=1, pids=8)


@needs("pids")
def test_a_run_is_opened_once(run):
    with pytest.raises(RuntimeUnavailable, match="exist already"):
        open_run(run.run_id)
    run.create("still", memory_mb=64, vcpu_count=1, pids=8)


def test_a_run_id_of_another_form_is_refused():
    with pytest.raises(ValueError, match="not a run id"):
        open_run("../../etc")


@needs("pids")
def test_sweeping_removes_what_a_killed_run_left_and_nothing_else(run):
    alive = run.create("mine", memory_mb=64, vcpu_count=1, pids=8)
    code = (
        "sys.path[:] = eval(sys.stdin.readline())\n"
        "from agentenv.sandbox.runtimes._cgroup import open_run\n"
        "from agentenv.sandbox.runtimes._runid import new_run_id\n"
        "import subprocess\n"
        "run = open_run(new_run_id()); group = run.create('left', memory_mb=64, vcpu_count=1, pids=8)\n"
        "orphan = subprocess.Popen(['sleep', '600'], stdout=subprocess.DEVNULL); group.add(orphan.pid)\n"
        "print(run.run_id, orphan.pid, flush=True); sys.stdin.readline()"
    )
    with child(code) as process:
        process.stdin.write(f"\n{sys.path!r}\n")
        process.stdin.flush()
        run_id, orphan = process.stdout.readline().split()
        assert run_id not in sweep()
        process.kill()
        process.wait(timeout=10)
    stranger = alive.directories[0].parent.parent / "agentenv.not-a-run"
    stranger.mkdir()
    try:
        assert run_id in sweep()
        assert stranger.exists()
    finally:
        stranger.rmdir()
    assert not [path for path in ours() if run_id in path]
    assert is_dead(int(orphan))
    assert alive.stats().pids == 0


@needs("pids")
def test_a_run_of_another_pid_namespace_is_left_alone(run):
    if os.geteuid() != 0 or shutil.which("unshare") is None:
        pytest.skip("needs root and unshare(1) to make a pid namespace; run as root with util-linux installed")
    group = run.create("outer", memory_mb=64, vcpu_count=1, pids=8)
    with child("import signal; signal.pause()") as process:
        group.add(process.pid)
        code = (
            "from agentenv.sandbox.runtimes._cgroup import sweep\n"
            f"print({run.run_id!r} in sweep(lambda run_id: run_id != {run.run_id!r}))"
        )
        done = subprocess.run(
            ["unshare", "--pid", "--fork", "--mount-proc", sys.executable, "-c", code],
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert done.stdout == "False\n", done.stderr
        assert process.poll() is None
