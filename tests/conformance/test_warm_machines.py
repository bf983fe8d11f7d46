"""Machines kept ready: who asks for one gets it, others take its place, and none is left."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import numpy as np
import pytest

from agentenv import AgentVectorEnv
from agentenv.testing import traces
from agentenv.testing.leftovers import becomes_true
from agentenv.testing.workbenches import run
from machines_ground import need_machines

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.timeout(300)]

WARM: dict[str, Any] = {"runtime": "qemu", "start_timeout_s": 120.0, "memory_mb": 256, "warm": 2}


@pytest.fixture(scope="module", autouse=True)
def machines() -> None:
    """What has to be fetched first."""
    need_machines()


@pytest.fixture
def vec() -> Iterator[AgentVectorEnv]:
    before = traces.take()
    with closing(AgentVectorEnv.from_env("CartPole-v1", num_envs=1, **WARM)) as vec:
        vec.reset(seed=1)
        pool = vec._context.runtime._pool
        assert becomes_true(lambda: pool.ready() == 2, 60)
        yield vec
    assert traces.take().left_since(before) == []


def test_one_that_is_killed_is_replaced_by_one_that_stood_ready(vec: AgentVectorEnv) -> None:
    pool = vec._context.runtime._pool
    ready = {warm.machine.pid for kept in pool._ready.values() for warm in kept}
    os.kill(vec._fleet.sandboxes[0].pid, signal.SIGKILL)
    vec.step(np.zeros(1, np.int64))
    assert vec._fleet.recovery.recovered == 1
    assert vec._fleet.sandboxes[0].pid in ready
    assert becomes_true(lambda: pool.ready() == 2, 60)


def test_one_that_died_while_it_stood_ready_is_given_to_nobody(vec: AgentVectorEnv) -> None:
    pool = vec._context.runtime._pool
    dead = {warm.machine.pid for kept in pool._ready.values() for warm in kept}
    for pid in dead:
        os.kill(pid, signal.SIGKILL)
    os.kill(vec._fleet.sandboxes[0].pid, signal.SIGKILL)
    vec.step(np.zeros(1, np.int64))
    assert vec._fleet.sandboxes[0].pid not in dead
    assert becomes_true(lambda: pool.ready() == 2, 60)


def test_machines_that_stood_ready_are_somebody_of_their_own(vec: AgentVectorEnv) -> None:
    who = "cat /etc/machine-id; head -c 16 /dev/urandom | od -An -tx8"
    seen = []
    for _ in range(3):
        workbench = vec._fleet.sandboxes[0].workbench
        assert workbench is not None
        seen.append(run(workbench, "sh", "-c", who).stdout.split())
        os.kill(vec._fleet.sandboxes[0].pid, signal.SIGKILL)
        vec.step(np.zeros(1, np.int64))
    assert all(len(set(column)) == 3 for column in zip(*seen, strict=True))
