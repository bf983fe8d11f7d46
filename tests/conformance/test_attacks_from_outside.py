"""kill -9 of every process of the machinery: the cause is typed, nothing is left, the next reset works."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from agentenv import AgentVectorEnv
from agentenv.errors import CauseKind, Owner, SandboxDied
from agentenv.testing import traces
from agentenv.testing.attacks import SUBJECT

_STILL = np.zeros(2, np.int64)


@pytest.fixture
def pair() -> Iterator[AgentVectorEnv]:
    before = traces.take()
    vector = AgentVectorEnv.from_env(SUBJECT, num_envs=2, runtime="bubblewrap", step_timeout_s=20.0, on_crash="raise")
    namespaces: frozenset[str] = frozenset()
    try:
        vector.reset()
        namespaces = traces.pid_namespaces(set(traces.take().children))
        yield vector
    finally:
        vector.close()
    assert traces.take().left_since(before) == []
    # What lost its own parent is reaped by the machine's first process, when that gets to it.
    assert traces.inhabitants(namespaces, within_s=5.0) == []


def _kill(pid: int) -> None:
    fd = os.pidfd_open(pid)
    try:
        signal.pidfd_send_signal(fd, signal.SIGKILL)
    finally:
        os.close(fd)


def _parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def _step_on(vector: AgentVectorEnv) -> None:
    """Until a death has been noticed: answers may be given before it, and it takes the kernel its time."""
    ends = time.monotonic() + 30
    while time.monotonic() < ends:
        vector.step(_STILL)


def _fails_as_lost(vector: AgentVectorEnv) -> SandboxDied:
    with pytest.raises(SandboxDied) as caught:
        _step_on(vector)
    assert caught.value.cause.kind is CauseKind.SANDBOX_LOST
    assert caught.value.cause.owner is Owner.INFRASTRUCTURE
    return caught.value


def _works_again(vector: AgentVectorEnv) -> None:
    vector.reset()
    assert vector.step(_STILL)[0].tolist() == [1, 1]


def test_first_process_of_a_cell(pair: AgentVectorEnv) -> None:
    victim, neighbour = pair._fleet.sandboxes
    _kill(victim.pid)
    error = _fails_as_lost(pair)
    assert error.index == 0
    assert neighbour.alive()
    pair.reset(options={"reset_mask": np.array([True, False])})
    assert pair.step(_STILL)[0][0] == 1
    assert pair._fleet.sandboxes[1] is neighbour


def test_environment_itself(pair: AgentVectorEnv) -> None:
    victim = pair._fleet.sandboxes[1].pid
    (child,) = traces.descendants(victim)
    _kill(child)
    with pytest.raises(SandboxDied) as caught:
        _step_on(pair)
    assert (caught.value.cause.kind, caught.value.cause.signal) == (CauseKind.SIGNAL, 9)
    _works_again(pair)


def test_zygote(pair: AgentVectorEnv) -> None:
    """The ancestor of every cell is the first process of their common namespace: all of them go with it."""
    zygote = _parent(pair._fleet.sandboxes[0].pid)
    _kill(zygote)
    _fails_as_lost(pair)
    for sandbox in pair._fleet.sandboxes:  # they do not all die in the same instant
        assert select.select([sandbox.pidfd], [], [], 10.0)[0]
    _works_again(pair)


def test_bubblewrap_itself(pair: AgentVectorEnv) -> None:
    """It only waits. The environments go on, and the next one is started as before."""
    outer = _parent(_parent(pair._fleet.sandboxes[0].pid))
    assert b"bwrap" in Path(f"/proc/{outer}/cmdline").read_bytes()
    _kill(outer)
    assert pair.step(_STILL)[0].tolist() == [1, 1]
    _kill(pair._fleet.sandboxes[0].pid)
    _fails_as_lost(pair)
    neighbour = pair._fleet.sandboxes[1]
    _works_again(pair)
    assert pair._fleet.sandboxes[1] is neighbour


_OWNER = f"""
import sys
from agentenv import AgentVectorEnv
vector = AgentVectorEnv.from_env({SUBJECT!r}, num_envs=2, runtime="bubblewrap")
vector.reset()
print("up", flush=True)
sys.stdin.read()
"""


def test_owner() -> None:
    """The process that holds the run: nobody is left to clean up, so the kernel has to."""
    with subprocess.Popen([sys.executable, "-c", _OWNER], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as owner:
        assert owner.stdout is not None
        assert owner.stdout.readline() == b"up\n"
        namespaces = traces.pid_namespaces(traces.descendants(owner.pid))
        assert len(namespaces) >= 3  # the outer one and two cells
        owner.kill()
    assert traces.inhabitants(namespaces, within_s=10.0) == []
