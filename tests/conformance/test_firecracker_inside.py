"""Firecracker, jailed and not, where KVM works: the published suites, and what ends it from outside."""

from __future__ import annotations

import json
import logging
import os
import shutil
import signal
from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any, ClassVar

import gymnasium
import pytest

from agentenv import AgentENV, AgentVectorEnv
from agentenv.errors import CauseKind, Owner, SandboxDied
from agentenv.fleet.machines import machine_files
from agentenv.sandbox.automatic import firecracker_obstacle
from agentenv.sandbox.probe import FindFiles
from agentenv.sandbox.runtimes._vm.accelerator import probe_kvm
from agentenv.testing import exact, traces
from agentenv.testing.attacks import ATTACKS, Arena
from agentenv.testing.runtimes import RuntimeSuite
from agentenv.testing.workbenches import WorkbenchSuite
from machines_ground import need_machines

if not (_kvm := probe_kvm()).works:
    pytest.skip(f"{_kvm.detail}; {_kvm.remedy}", allow_module_level=True)
if shutil.which("firecracker") is None:
    pytest.skip("expected firecracker on PATH: see docs/runtimes.md", allow_module_level=True)

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.timeout(600)]

_KEYS: dict[str, Any] = {"memory_mb": 256, "start_timeout_s": 240.0}
_DEEDS = ("die_by_SIGKILL", "hang", "allocate", "fork_bomb", "garbage_everywhere", "close_everything", "fill_control")


def tables(jail: str) -> dict[str, Any]:
    """The configuration's table for a way to be jailed."""
    return {"firecracker": {"jailer": jail == "jailed"}}


@pytest.fixture(scope="module", autouse=True)
def machines() -> None:
    need_machines()


@pytest.fixture(scope="module", params=["plain", "jailed"])
def jail(request: pytest.FixtureRequest) -> str:
    if request.param == "jailed" and (os.geteuid() != 0 or shutil.which("jailer") is None):
        pytest.skip("expected to be root, and jailer on PATH")
    return str(request.param)


class _Suite(RuntimeSuite):
    settings: ClassVar = {"runtime": "firecracker"}
    many = 3
    cycles = 3
    tight_mb = 192
    start_s = 30.0
    own_processes = False
    jailed: ClassVar[bool] = False

    def table(self, count: int = 1, **keys: Any) -> dict[str, Any]:
        table = super().table(count, **{**_KEYS, **keys})
        return {**table, "firecracker": {"jailer": self.jailed}}


class TestPlain(_Suite):
    """See the suite."""


@pytest.mark.skipif(os.geteuid() != 0 or shutil.which("jailer") is None, reason="expected root, and jailer on PATH")
class TestJailed(_Suite):
    """See the suite."""

    jailed = True


class TestByHand(WorkbenchSuite):
    """See the suite."""

    settings: ClassVar = {"runtime": "firecracker", "memory_mb": 256}


def test_a_machine_is_forked_and_gone_back_to() -> None:
    """Its own threads run in it, so that there is no other way."""
    before = traces.take()
    with AgentENV.from_env("frail:Threaded", runtime="firecracker", **_KEYS) as env:
        env.reset(seed=1)
        snapshot = env.snapshot()
        assert snapshot.how == "machine"
        (child,) = env.fork()
        with closing(child):
            expected = [env.step(step % 2) for step in range(4)]
            exact.assert_same([child.step(step % 2) for step in range(4)], expected)
        env.restore(snapshot)
        exact.assert_same([env.step(step % 2) for step in range(4)], expected)
    assert traces.take().left_since(before) == []


def _open(jail: str, **keys: Any) -> AgentVectorEnv:
    environment: Mapping[str, Any] = {"id": "cartpole", "env": "CartPole-v1", "count": 2, "seed": 5, **_KEYS, **keys}
    table = {"global": {"runtime": "firecracker", "seed": 5}, "environments": [environment], **tables(jail)}
    return AgentVectorEnv(table)


def _step_twice(vec: AgentVectorEnv) -> None:
    """A death may show only in the second one."""
    vec.step(vec.action_space.sample())
    vec.step(vec.action_space.sample())


def _stage_of(pid: int) -> int:
    (line,) = [line for line in Path(f"/proc/{pid}/status").read_text().split("\n") if line.startswith("PPid:")]
    return int(line.split()[1])


def _kill(vec: Any, who: str) -> None:
    pid = vec._fleet.sandboxes[0].pid
    target = {"monitor": pid, "stage": _stage_of(pid), "relay": vec._context.runtime._relay._process.pid}[who]
    os.kill(target, signal.SIGKILL)


def test_whoever_is_killed_it_comes_back_and_equals_gymnasium(jail: str) -> None:
    """Monitor, relay, which takes both with it, and the first process of a jail."""
    before = traces.take()
    kills = {4: "monitor", 8: "relay"} | ({12: "stage"} if jail == "jailed" else {})
    reference = gymnasium.vector.SyncVectorEnv([lambda: gymnasium.make("CartPole-v1")] * 2)
    with closing(reference), closing(_open(jail, max_restarts=100)) as vec:
        assert vec.reset(seed=1)[0].tolist() == reference.reset(seed=1)[0].tolist()
        vec.action_space.seed(3)
        for step in range(24):
            if step in kills:
                _kill(vec, kills[step])
            actions = vec.action_space.sample()
            ours, theirs = vec.step(actions), reference.step(actions)
            assert [part.tolist() for part in ours[:4]] == [part.tolist() for part in theirs[:4]]
        assert vec._fleet.recovery.recovered == len(kills) + 1
    assert traces.take().left_since(before) == []


def test_the_cause_of_a_killed_monitor_is_not_the_environments(jail: str) -> None:
    for who in ("monitor", "stage") if jail == "jailed" else ("monitor",):
        with closing(_open(jail, on_crash="raise")) as vec:
            vec.reset(seed=1)
            namespaces = traces.pid_namespaces({vec._fleet.sandboxes[0].pid})
            assert bool(namespaces) == (jail == "jailed")
            _kill(vec, who)
            with pytest.raises(SandboxDied) as caught:
                _step_twice(vec)
            assert (caught.value.cause.kind, caught.value.cause.owner) == (CauseKind.SANDBOX_LOST, Owner.INFRASTRUCTURE)
            assert traces.inhabitants(namespaces, within_s=10) == []


def test_auto_takes_it_once_it_has_booted_a_machine(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    def open_files() -> FindFiles:
        return machine_files([])

    assert firecracker_obstacle({}, open_files, cache=tmp_path) == ""
    kept = json.loads((tmp_path / "firecracker.json").read_text())
    assert kept["outcome"] == "works"
    # Believed as long as everything is as it was: it is not tried again, though it could not be any more.
    kept["outcome"] = "an old failure"
    (tmp_path / "firecracker.json").write_text(json.dumps(kept))
    assert firecracker_obstacle({}, open_files, cache=tmp_path) == "an old failure"
    own = tmp_path / "firecracker"
    shutil.copy(str(shutil.which("firecracker")), own)
    assert firecracker_obstacle({"binary": str(own)}, open_files, cache=tmp_path) == ""
    with caplog.at_level(logging.INFO, "agentenv.fleet"), closing(AgentENV.from_env("CartPole-v1", **_KEYS)) as env:
        env.reset(seed=1)
        assert env._context.runtime_name == "firecracker"
    assert 'runtime "auto" is firecracker (a machine was booted by it here)' in caplog.messages


def test_auto_without_a_program_that_is_firecracker(tmp_path: Path) -> None:
    said = firecracker_obstacle({"binary": "/bin/true"}, lambda: machine_files([]), cache=tmp_path)
    assert "expected /bin/true --version to tell a version of Firecracker" in said


@pytest.fixture(scope="module")
def arena(jail: str) -> Iterator[Arena]:
    before = traces.take()
    keys = {"step_timeout_s": 20.0, "reset_timeout_s": 20.0, **_KEYS}
    arena = Arena("firecracker", environments=[keys] * 3, tables=tables(jail))
    try:
        yield arena
    finally:
        arena.close()
    assert traces.take().left_since(before) == []


@pytest.mark.parametrize("name", _DEEDS)
def test_attacks(arena: Arena, name: str) -> None:
    arena.run(next(attack for attack in ATTACKS if attack.name == name and attack.moment in ("step", "reset")))
