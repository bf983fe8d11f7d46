"""Want of memory on the host's side of a machine: its monitor is ended at the limit of its control group, really; and
what it writes to a disk that is memory is not held against it.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from agentenv import AgentVectorEnv
from agentenv.errors import CauseKind, Owner
from agentenv.fleet.machines import machine_files
from agentenv.fleet.output import SandboxOutput
from agentenv.sandbox.contract import RuntimeOptions, SandboxSpec
from agentenv.sandbox.registry import open_runtime
from agentenv.sandbox.runtimes._runid import new_run_id
from agentenv.sandbox.workbench import Stdio, Task
from agentenv.testing import exact, traces
from machines_ground import need_machines
from sandbox.vm.test_faults_inside import crashes

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.timeout(300)]

MEMORY_MB = 192
HOG = """
import sys
held = []
sys.stdin.readline()
while True:
    held.append(bytearray(b"x") * (1 << 20))
"""


@pytest.fixture(scope="module", autouse=True)
def machines() -> None:
    need_machines()


@contextlib.contextmanager
def eater(sandbox: Any) -> Iterator[None]:
    """A process beside a monitor, in its control group, that takes all there is; the kernel prefers the monitor."""
    if sandbox._cgroup is None or not sandbox.usage().rss_bytes:
        pytest.skip("no control group holds the memory here; `agentenv runtimes` says what helps")
    Path(f"/proc/{sandbox.pid}/oom_score_adj").write_text("1000")
    with subprocess.Popen([sys.executable, "-c", HOG], stdin=subprocess.PIPE) as process:
        assert process.stdin is not None
        try:
            sandbox._cgroup.add(process.pid)
            process.stdin.write(b"eat\n")
            process.stdin.flush()
            yield
        finally:
            process.kill()


def await_end(sandbox: Any) -> None:
    poller = select.poll()
    poller.register(sandbox.pidfd, select.POLLIN)
    assert poller.poll(60_000), "the monitor lives on"


def test_a_monitor_over_the_limit_of_its_group(caplog: pytest.LogCaptureFixture) -> None:
    before = traces.take()
    keys: dict[str, Any] = {"num_envs": 2, "seed": 5, "step_timeout_s": 20.0, "disk_mb": 64}
    with (
        closing(
            AgentVectorEnv.from_env("frail:Walk", runtime="qemu", memory_mb=MEMORY_MB, start_timeout_s=120.0, **keys)
        ) as vec,
        closing(AgentVectorEnv.from_env("frail:Walk", **keys)) as quiet,
    ):
        vec.action_space.seed(3)
        exact.assert_same(vec.reset(seed=1), quiet.reset(seed=1))
        first, sibling = vec._fleet.sandboxes
        with eater(first):
            await_end(first)
            for _ in range(4):
                actions = vec.action_space.sample()
                exact.assert_same(vec.step(actions), quiet.step(actions))
        (crash,) = crashes(caplog)
        assert crash[:3] == ("env-0", CauseKind.OUT_OF_MEMORY, Owner.RESOURCES), crash
        assert f"{MEMORY_MB + 512} MB" in crash[3]
        assert "raise memory_mb" in crash[3]
        assert vec._fleet.sandboxes[1] is sibling
        assert sibling.alive()
    assert traces.take().left_since(before) == []


def test_a_monitor_over_the_limit_of_its_group_that_nobody_brings_back() -> None:
    before = traces.take()
    with machine(SandboxSpec("box", memory_mb=MEMORY_MB, start_timeout_s=120.0)) as sandbox:
        home = sandbox.home
        with eater(sandbox):
            await_end(sandbox)
            cause = sandbox.cause()
            assert (cause.kind, cause.owner) == (CauseKind.OUT_OF_MEMORY, Owner.RESOURCES), cause
            assert cause.oom_kills >= 1
            sandbox.destroy()  # with the process that sits in its group
        assert not home.exists()
    assert traces.take().left_since(before) == []


def test_a_full_drive_on_a_disk_that_is_memory(memory_disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """/tmp is such a disk on many hosts: what a machine writes there is charged to its monitor, and stays so."""
    monkeypatch.setattr(tempfile, "tempdir", str(memory_disk))
    with machine(SandboxSpec("box", memory_mb=128, disk_mb=1024, start_timeout_s=120.0)) as sandbox:
        fill = "dd if=/dev/zero of=/filler bs=1M count=800 2>&1 && sync && rm /filler && echo written"
        assert run(sandbox, "/bin/sh", "-c", fill).endswith("written\n")
        assert sandbox.alive()
        assert sandbox.usage().rss_bytes > (128 + 512) << 20


@pytest.fixture
def memory_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system in memory, of 2 GiB at most."""
    if os.geteuid() != 0:
        pytest.skip("a file system cannot be mounted: be root")
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2g", "none", str(tmp_path)], check=False)
    if mounted.returncode != 0:
        pytest.skip("a file system cannot be mounted here")
    yield tmp_path
    assert list(tmp_path.iterdir()) == []
    subprocess.run(["umount", str(tmp_path)], check=True)


@contextlib.contextmanager
def machine(spec: SandboxSpec) -> Iterator[Any]:
    """A machine that is used by hand."""
    options = RuntimeOptions(new_run_id(), tuple(path for path in sys.path if path), find_files=machine_files([]))
    with (
        closing(open_runtime("qemu", options)) as runtime,
        closing(SandboxOutput(lambda sandbox_id: None)) as output,
    ):
        (sandbox,) = runtime.create([spec], output)
        try:
            yield sandbox
        finally:
            sandbox.destroy()


def run(sandbox: Any, *words: str) -> str:
    """What a program of root's writes; it ends with status 0."""
    said, theirs = os.pipe()
    told, status = os.pipe()
    with open(said, "rb") as said_file, open(told, "rb") as told_file:
        try:
            sandbox.workbench.start(Task(words, user="root"), Stdio(-1, theirs, -1, status))
        finally:
            os.close(theirs)
            os.close(status)
        text, ending = said_file.read().decode(), told_file.read()
    assert ending, f"it is gone: {sandbox.cause()}"
    assert json.loads(ending) == {"exit": 0}, text
    return text
