"""Taking hold of whoever carries an environment: a number is somebody else's by the time it is looked at."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest

from agentenv import AgentENV, SandboxDied, SnapshotError
from agentenv.errors import CauseKind, Owner, RuntimeUnavailable
from agentenv.sandbox.runtimes import _cell, _family
from agentenv.sandbox.runtimes._family import Worker
from agentenv.testing import traces


@pytest.fixture
def stranger() -> Iterator[subprocess.Popen[bytes]]:
    """A process of the host's; whatever is done with its number, it must live."""
    process = subprocess.Popen(["sleep", "1000"])
    try:
        yield process
        assert process.poll() is None
    finally:
        process.kill()
        process.wait()


def begun(runtime: str = "auto") -> AgentENV:
    made = AgentENV.from_env("frail:Native", runtime=runtime, on_crash="raise")
    made.reset(seed=3)
    return made


def test_a_child_of_the_first_process_is_taken_hold_of(stranger: subprocess.Popen[bytes]) -> None:
    worker = Worker.open(stranger.pid, os.getpid)
    assert (worker.pid, worker.inner, worker.alive()) == (stranger.pid, stranger.pid, True)
    worker.close()


@pytest.mark.parametrize("first", [0, 1])
def test_a_stranger_is_left_alone(stranger: subprocess.Popen[bytes], first: int) -> None:
    descriptors = len(os.listdir("/proc/self/fd"))
    with pytest.raises(ProcessLookupError):
        Worker.open(stranger.pid, lambda: first)
    assert len(os.listdir("/proc/self/fd")) == descriptors


def test_who_has_ended_meanwhile_is_not_taken_for_what_was_read_of_its_number() -> None:
    process = subprocess.Popen(["true"])
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)  # still to be reaped, so that its number is read of
    with pytest.raises(ProcessLookupError):
        Worker.open(process.pid, os.getpid)
    process.wait()


@pytest.mark.parametrize("runtime", ["bubblewrap", "process"])
def test_a_stranger_with_the_number_of_whoever_introduced_it_lives(
    stranger: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch, runtime: str
) -> None:
    asked: list[int] = []

    def told(sock: Any) -> int:
        """First the cell's first process speaks, then somebody who has ended, and whose number is used again."""
        asked.append(honest(sock))
        return asked[0] if len(asked) == 1 else stranger.pid

    honest = _cell.sender_pid
    monkeypatch.setattr(_cell, "sender_pid", told)
    before = traces.take()
    with pytest.raises(SandboxDied, match="a process that has ended") as caught:
        begun(runtime)
    assert (caught.value.cause.kind, caught.value.cause.owner) == (CauseKind.PROTOCOL, Owner.ENVIRONMENT)
    assert traces.take().left_since(before) == []


@pytest.mark.parametrize("runtime", ["bubblewrap", "process"])
def test_a_stranger_with_the_number_of_a_copy_lives(
    stranger: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch, runtime: str
) -> None:
    before = traces.take()
    with begun(runtime) as env:
        monkeypatch.setattr(_family, "sender_pid", lambda _sock: stranger.pid)
        with pytest.raises(SnapshotError, match="has ended"):
            env.snapshot(how="fork")
        with pytest.raises(RuntimeUnavailable, match="has ended"):
            env.fork(1)
        monkeypatch.undo()
        env.step(0)
        env.snapshot(how="fork").close()
        env.fork(1)[0].close()
    assert traces.take().left_since(before) == []
