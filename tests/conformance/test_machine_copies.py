"""Environments in machines that can be kept in no other way: the whole machine is a snapshot, a fork, a checkpoint."""

from __future__ import annotations

import os
import re
import signal
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from agentenv import AgentENV, AgentVectorEnv
from agentenv.errors import SnapshotError
from agentenv.testing import exact, traces
from machines_ground import need_machines

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.timeout(300)]

QEMU: dict[str, Any] = {"runtime": "qemu", "start_timeout_s": 120.0, "memory_mb": 256}
NATIVE = "frail:Threaded"  # neither its state nor its process can be had


@pytest.fixture(scope="module", autouse=True)
def machines() -> None:
    """What has to be fetched first."""
    need_machines()


def _future(env: AgentENV, steps: int = 5) -> list[Any]:
    return [env.step(step % 2) for step in range(steps)]


def test_a_machine_is_gone_back_to() -> None:
    before = traces.take()
    with AgentENV.from_env(NATIVE, **QEMU) as env:
        env.reset(seed=1)
        _future(env, 3)
        snapshot = env.snapshot()
        assert snapshot.how == "machine"
        assert "machine" in repr(snapshot)
        with pytest.raises(SnapshotError, match="is a machine, and cannot be saved"):
            snapshot.save(Path("anywhere"))
        expected = _future(env)
        for _ in range(2):
            env.restore(snapshot)
            exact.assert_same(_future(env), expected)
        env.restore(snapshot, reseed=5)
        other = _future(env)
        env.restore(snapshot, reseed=5)
        exact.assert_same(_future(env), other)
        snapshot.close()
        with pytest.raises(SnapshotError, match="went with it"):
            env.restore(snapshot)
        exact.assert_same(len(_future(env)), 5)
    assert traces.take().left_since(before) == []


def test_forks_of_a_machine_go_on_from_the_same_moment() -> None:
    before = traces.take()
    with AgentENV.from_env(NATIVE, **QEMU) as env:
        env.reset(seed=2)
        _future(env, 3)
        children = env.fork(2)
        expected = _future(env)
        for child in children:
            with closing(child):
                exact.assert_same(_future(child), expected)
                (grandchild,) = child.fork()
                with closing(grandchild):
                    exact.assert_same(_future(grandchild, 3), _future(child, 3))
        (one, two) = env.fork(2, reseed=7)
        with closing(one), closing(two):
            futures = [_future(one, 8), _future(two, 8)]
        with pytest.raises(AssertionError):
            exact.assert_same(*futures)
        (again, _) = env.fork(2, reseed=7)
        with closing(_), closing(again):
            exact.assert_same(_future(again, 8), futures[0])
    assert traces.take().left_since(before) == []


def test_a_killed_machine_comes_back_from_its_last_snapshot(caplog: pytest.LogCaptureFixture) -> None:
    """Not from its birth: what is repeated is what came after the snapshot."""

    def play(kill: bool) -> list[Any]:
        with closing(AgentVectorEnv.from_env(NATIVE, num_envs=2, seed=5, checkpoint_every=10, **QEMU)) as vec:
            seen: list[Any] = [vec.reset(seed=1)[0].copy()]
            vec.action_space.seed(3)
            for step in range(36):
                if kill and step in (17, 29):
                    os.kill(vec._fleet.sandboxes[0].pid, signal.SIGKILL)
                observations, rewards, terminated, truncated, _ = vec.step(vec.action_space.sample())
                seen.append((observations.copy(), rewards.copy(), terminated.copy(), truncated.copy()))
            return seen

    before = traces.take()
    quiet = play(False)
    exact.assert_same(play(True), quiet)
    told = [record.getMessage() for record in caplog.records if "env_recovered" in record.getMessage()]
    assert [re.search(r"how=(\w+) replayed_steps=(\d+)", line)[1] for line in told] == ["snapshot"] * 2
    assert all(int(re.search(r"replayed_steps=(\d+)", line)[1]) <= 10 for line in told)
    assert traces.take().left_since(before) == []
