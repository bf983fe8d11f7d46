"""Disks that are read-only, from the start or from one moment on: nothing ends in silence or in a traceback, and what
helps is said.
"""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from agentenv.errors import CauseKind, Owner, ResourceLimit, RunDamaged, SnapshotError
from agentenv.fleet.blame import cause_of
from agentenv.fleet.rundir import RunDir, RunState
from agentenv.images.store import Store
from agentenv.snapshots.store import SnapshotStore
from cli_watch import groups, poll
from failing_disk import FailingDisk, failing_disk, read_only
from machines_ground import need_machines
from snapshots.making import FULL, make

sys.path.append(str(Path(__file__).parent))
from killing import episodes

STEADY = 'id = "{}"\nenv = "wayward:Seeded"\nepisodes = 20\nenv_kwargs = {{ length = 50, delay_s = 0.005 }}'


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[FailingDisk]:
    with failing_disk(tmp_path / "disk") as made:
        yield made


def done(command, *arguments: str, ro: Path) -> subprocess.CompletedProcess[str]:
    """A command that sees a directory on a disk that is read-only."""
    argv = read_only(command.argv(*arguments), ro)
    return subprocess.run(argv, cwd=command.cwd, capture_output=True, text=True, timeout=90, check=False)


def test_a_run_directory_that_cannot_be_written(command) -> None:
    config = command.config(STEADY.format("a"))
    (command.cwd / "runs").mkdir()
    ended = done(command, "run", config, ro=command.cwd / "runs")
    assert ended.returncode == 2, ended
    assert "expected a folder in which runs can be made, got: Read-only file system" in ended.stderr
    assert "choose another one with --run-dir" in ended.stderr
    assert "Traceback" not in ended.stderr


@pytest.mark.timeout(600)
@pytest.mark.parametrize("runtime", ["bubblewrap", "qemu"])
def test_a_run_whose_disk_becomes_read_only(command, disk: FailingDisk, runtime: str) -> None:
    """It goes on, and says what it cannot keep; with the disk repaired, what was not kept is played again."""
    if runtime == "qemu":
        need_machines()
    config = command.config(STEADY.format("a"), STEADY.format("b"), global_="[global.defaults]\nmemory_mb = 256")
    expected = episodes(Path(command.run(config, "--run-dir", "reference", "--runtime", "bubblewrap")["run_dir"]))
    process = command.start("run", config, "--run-dir", str(disk.path / "runs"), "--runtime", runtime)
    poll(lambda: bool(recorded(disk)) or process.poll() is not None, "the first records", 240)
    disk.fail()
    (path,) = (disk.path / "runs").iterdir()
    run = RunDir.open(path)
    killed = kill_sandbox(run.run_id, "a")
    said, words = process.communicate(timeout=240)
    assert process.returncode == 3, words
    assert said == ""
    assert "Traceback" not in words
    assert f"a record cannot be written to {run.environment('b').episodes}: Read-only file system" in words
    assert f"a record cannot be written to {run.events}: Read-only file system" in words
    assert "b: env_done episodes=20" in words
    if killed:
        assert "a: env_recovered" in words
        assert "a: the report of a crash cannot be written: [Errno 30] Read-only file system" in words
    assert "the run has ended, and its summary cannot be kept" in words
    assert f"agentenv run --resume {path.name}" in words
    assert run.state() is RunState.INTERRUPTED

    refused = command("run", "--resume", path.name, "--run-dir", str(path.parent))
    assert refused.returncode == 2, refused
    assert "expected a run whose folder can be written, got: Read-only file system (mount it writable" in refused.stderr
    assert "Traceback" not in refused.stderr

    disk.repair()
    kept = episodes(path)
    assert all(0 < len(held) < 20 and held == expected[name][: len(held)] for name, held in kept.items())
    resumed = command("run", "--resume", path.name, "--run-dir", str(path.parent))
    assert resumed.returncode == 0, resumed
    assert episodes(path) == expected


def recorded(disk: FailingDisk) -> list[Path]:
    """The records of both environments, when there are some of each."""
    found = list(disk.path.glob("runs/*/environments/*/episodes.jsonl"))
    return found if len(found) == 2 and all(path.stat().st_size for path in found) else []


def kill_sandbox(run_id: str, name: str) -> bool:
    """Kill everything in the control group of a sandbox; False where there are no such groups."""
    here = [Path(path) for path in groups(run_id) if path.endswith(f"/{name}")]
    pids = {int(pid) for path in here for pid in (path / "cgroup.procs").read_text().split()}
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):  # it went with its parent
            os.kill(pid, signal.SIGKILL)
    return bool(pids)


def test_an_environment_whose_folder_cannot_be_made_is_told_from_a_fault_of_ours(disk: FailingDisk) -> None:
    run = RunDir.create(disk.path, "late", "an-id")
    run.environment("early")
    disk.fail()
    assert run.environment("early").path.is_dir()
    with pytest.raises(ResourceLimit, match=r"read-only: .*/environments/late") as caught:
        run.environment("late")
    assert caught.value.errno == errno.EROFS
    cause = cause_of(caught.value)
    assert (cause.kind, cause.owner) == (CauseKind.START_FAILED, Owner.RESOURCES)
    with pytest.raises(ResourceLimit, match="its disk is read-only; the previous file is kept"):
        run.write_summary({})
    assert not isinstance(caught.value, RunDamaged)


def fill(out: Path, content: str) -> None:
    (out / "rootfs.ext4").write_text(content)


@pytest.mark.parametrize(
    "arguments", ["image gc", "image rm old", "kernel fetch", "image build a --from debian:bookworm"]
)
def test_a_cache_that_cannot_be_written(
    command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: str
) -> None:
    store = Store(tmp_path / "cache")
    objects = [store.once(key * 64, lambda out, key=key: fill(out, key), what="an object") for key in "01"]
    store.name("image", "old", objects[0].name, {})
    os.utime(objects[1], (0, 0))
    monkeypatch.setenv("AGENTENV_CACHE", str(store.root))
    listed = done(command, "image", "ls", ro=store.root)
    assert listed.returncode == 0, listed
    ended = done(command, *arguments.split(), ro=store.root)
    assert ended.returncode == 3, ended
    assert f"expected to write {store.root}, but its disk is read-only" in ended.stderr
    assert "remedy: mount it writable" in ended.stderr
    assert "AGENTENV_CACHE=DIR" in ended.stderr


def test_a_store_of_snapshots_that_can_only_be_read(
    command, disk: FailingDisk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AGENTENV_DATA", str(disk.path / "data"))
    store = SnapshotStore.default()
    made = store.add(make(tmp_path / "one", FULL), name="first")
    disk.fail()
    with store.open(made) as files:
        assert sorted(os.listdir(files))
    store.verify(made)
    source = make(tmp_path / "two", FULL)
    refused = "expected to write snapshots in .*, but its disk is read-only\n  remedy: mount it writable.*AGENTENV_DATA"
    with pytest.raises(ResourceLimit, match=refused):
        store.add(source, name="second")
    with pytest.raises((ResourceLimit, SnapshotError), match=refused):
        store.remove(made)
    assert [one.name for one in store.list()] == ["first"]
    listed = command("snapshot", "ls")
    assert (listed.returncode, "first" in listed.stdout) == (0, True), listed
    ended = command("snapshot", "rm", "first")
    assert ended.returncode == 3, ended
    assert "its disk is read-only" in ended.stderr
