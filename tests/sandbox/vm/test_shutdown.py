"""The orderly end of a machine as its host holds it: it ends by itself, and what its agent tells is distrusted."""

from __future__ import annotations

import errno
import json
import signal
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from agentenv.errors import CauseKind, RuntimeUnavailable, SandboxDied
from agentenv.fleet.context import RunContext
from agentenv.sandbox.runtimes._vm.sandbox import VmSandbox
from agentenv.sandbox.runtimes._vm.workbench import VmWorkbench
from agentenv.sandbox.workbench import Shutdown, Task
from agentenv.testing.leftovers import becomes_true
from agentenv.testing.workbench_ground import run_of
from agentenv.testing.workbenches import Running, run
from agentenv.wire.frames import WINDOW
from machines_ground import need_machines

_PIPE = 1 << 16
_LAST = _PIPE + WINDOW + _PIPE // 2

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def context() -> Iterator[RunContext]:
    need_machines()
    with run_of("qemu", {"id": "ends", "env": "CartPole-v1", "memory_mb": 256}) as context:
        yield context


@pytest.fixture
def made(context: RunContext) -> Iterator[tuple[VmSandbox, VmWorkbench]]:
    spec = context.spec("ends", context.config.expand())
    (sandbox,) = context.runtime.create([replace(spec, envs=(), command=(), start_timeout_s=120.0)], context.output)
    assert isinstance(sandbox, VmSandbox)
    assert sandbox.workbench is not None
    yield sandbox, sandbox.workbench
    sandbox.destroy()


def test_the_machine_ends_by_itself(made: tuple[VmSandbox, VmWorkbench], monkeypatch: pytest.MonkeyPatch) -> None:
    sandbox, bench = made
    with monkeypatch.context() as patch:
        patch.setattr(sandbox, "kill", lambda: None)
        assert bench.shutdown(5.0) == Shutdown(0, 0)
    assert not sandbox.alive()
    assert sandbox._machine is not None
    assert "reboot: " in sandbox._machine.console(100)
    assert (sandbox.cause().kind, sandbox.cause().detail) == (CauseKind.CLOSED, "it was shut down")


def test_the_agent_begins_nothing_any_more(made: tuple[VmSandbox, VmWorkbench]) -> None:
    """Whatever its host asks for."""
    _, bench = made
    stubborn = Running(bench, Task(("sh", "-c", "trap '' TERM; echo ready; while :; do sleep 0.05; done")))
    assert stubborn.line() == b"ready\n"
    assert bench._agent.call("shutdown", 30.0, seconds=1000.0) == {"over": False, "ended": 0, "killed": 0}
    with pytest.raises(OSError, match="is being shut down") as caught:
        Running(bench, Task(("true",)))
    assert caught.value.errno == errno.EIO
    bench.signal(stubborn.number, signal.SIGKILL)
    assert bench.shutdown(1.0) == Shutdown(1, 0)  # that of the first time to ask goes on
    stubborn.end()


def test_it_is_not_over_while_words_wait_in_the_machine(made: tuple[VmSandbox, VmWorkbench]) -> None:
    """More than may be on its way while nobody reads, but for what a pipe inside holds."""
    _, bench = made
    script = f"trap 'head -c {_LAST} /dev/zero; exit 5' TERM; echo ready; while :; do sleep 0.05; done"
    running = Running(bench, Task(("sh", "-c", script)))
    assert running.line() == b"ready\n"

    def over() -> bool:
        return bool(bench._agent.call("shutdown", 30.0, seconds=1000.0)["over"])

    assert not over()
    with open(running.status, "rb", closefd=False) as file:
        assert json.loads(file.read()) == {"exit": 5}
    assert not becomes_true(over, 1.0)
    assert len(running.end().stdout) == _LAST
    assert becomes_true(over, 100.0)


def test_an_agent_that_knows_nothing_of_it_leaves_all_as_it_was(
    made: tuple[VmSandbox, VmWorkbench], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a machine brought back from a snapshot of an older version."""
    _, bench = made
    call = bench._agent.call
    with monkeypatch.context() as patch:
        patch.setattr(bench._agent, "call", lambda op, timeout_s, **given: call(f"unknown {op}", timeout_s, **given))
        with pytest.raises(RuntimeUnavailable, match="cannot be ended in order: its agent, of another version"):
            bench.shutdown(5.0)
    assert run(bench, "true").status == {"exit": 0}


@pytest.mark.parametrize(
    "told",
    [
        None,
        [],
        {},
        {"over": "yes"},
        {"over": True, "ended": -1, "killed": 0},
        {"over": 1, "ended": 0, "killed": 1 << 80},
    ],
)
def test_what_an_agent_tells_may_be_anything(
    made: tuple[VmSandbox, VmWorkbench], monkeypatch: pytest.MonkeyPatch, told: Any
) -> None:
    sandbox, bench = made
    monkeypatch.setattr(bench._agent, "call", lambda op, timeout_s, **given: told)
    with pytest.raises(SandboxDied, match="tells of its end without saying") as caught:
        bench.shutdown(5.0)
    assert caught.value.cause.kind is CauseKind.PROTOCOL
    assert not sandbox.alive()
