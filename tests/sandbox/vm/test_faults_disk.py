"""Disks on the host that become read-only, as one that has shown errors does, under what machines keep there."""

from __future__ import annotations

import logging
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agentenv import AgentVectorEnv
from agentenv.errors import ResourceLimit
from agentenv.fleet.machines import machine_files
from agentenv.fleet.output import SandboxOutput
from agentenv.sandbox.contract import RuntimeOptions, SandboxSpec
from agentenv.sandbox.registry import open_runtime
from agentenv.sandbox.runtimes._runid import new_run_id
from agentenv.sandbox.runtimes._vm.collect import unpack
from agentenv.testing import exact, traces
from failing_disk import FailingDisk, failing_disk
from machines_ground import need_machines

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.timeout(300)]

MOUNT = "Read-only file system\n  remedy: mount it writable .*"


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[FailingDisk]:
    with failing_disk(tmp_path / "disk", 512) as made:
        yield made


def test_under_the_machines_own_files(disk: FailingDisk, monkeypatch: pytest.MonkeyPatch) -> None:
    """They go on; one that ends cannot be followed by another, and that is said; nothing else of it stays."""
    need_machines()
    keys: dict[str, Any] = {"num_envs": 2, "seed": 5, "step_timeout_s": 20.0, "disk_mb": 64}
    before = traces.take()
    with closing(AgentVectorEnv.from_env("frail:Walk", **keys)) as quiet:
        monkeypatch.setattr(tempfile, "tempdir", str(disk.path))
        with closing(
            AgentVectorEnv.from_env("frail:Walk", runtime="qemu", memory_mb=192, start_timeout_s=120.0, **keys)
        ) as vec:
            vec.action_space.seed(3)
            exact.assert_same(vec.reset(seed=1), quiet.reset(seed=1))
            disk.fail()
            for _ in range(40):
                actions = vec.action_space.sample()
                exact.assert_same(vec.step(actions), quiet.step(actions))
            vec._fleet.sandboxes[0].kill()
            with pytest.raises(ResourceLimit, match=f"(?s)cannot give a machine a place in .*{MOUNT}TMPDIR=DIR"):
                vec.step(vec.action_space.sample())
            assert vec._fleet.sandboxes[1].alive()
    assert traces.take().left_since(before) == []


def test_under_the_templates(disk: FailingDisk) -> None:
    """The machines made from them go on; to make another one is refused in words."""
    need_machines()
    find = machine_files([])
    options = RuntimeOptions(
        new_run_id(),
        tuple(path for path in sys.path if path),
        find_files=lambda spec: replace(find(spec), cache=disk.path / "machines"),
    )
    with (
        closing(open_runtime("qemu", options)) as runtime,
        closing(SandboxOutput(lambda sandbox_id: None)) as output,
    ):
        (sandbox,) = runtime.create([SandboxSpec("first", memory_mb=128, start_timeout_s=120.0)], output)
        disk.fail()
        assert sandbox.workbench is not None
        sandbox.workbench.pause()
        sandbox.workbench.resume()
        with pytest.raises(ResourceLimit, match=f"(?s)cannot keep a machine's snapshot in .*{MOUNT}AGENTENV_CACHE=DIR"):
            runtime.create([SandboxSpec("second", memory_mb=144, start_timeout_s=120.0)], output)
        assert sandbox.alive()
        sandbox.destroy()


def test_under_what_a_command_left(disk: FailingDisk, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    archive = tmp_path / "out.tar"
    with tarfile.open(archive, "w") as made:
        for name in ("a", "a/under a file", "b"):
            made.addfile(tarfile.TarInfo(name))
    out = disk.path / "out"
    out.mkdir()
    with caplog.at_level(logging.WARNING):
        unpack(archive, out, most_bytes=1 << 20)
        assert sorted(path.name for path in out.iterdir()) == ["a", "b"]  # what cannot be is left out, not the rest
        assert caplog.messages == []
        (out / "b").unlink()
        disk.fail()
        unpack(archive, out, most_bytes=1 << 20)
    assert caplog.messages == [f"{out}: what was left in /out is lost from here on: Read-only file system"]
