"""What goes wrong while a machine is stopped or goes on: what is said of it holds, nothing hangs, nothing is left.

The machine, its agent and its relay are real; a call of one of them fails where a test says so.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agentenv.errors import AgentEnvError, CauseKind, RuntimeUnavailable, SandboxDied, StepTimeout
from agentenv.fleet.context import RunContext
from agentenv.sandbox.runtimes._vm.agent import AgentRefusal
from agentenv.sandbox.runtimes._vm.workbench import VmWorkbench
from agentenv.sandbox.workbench import Task
from agentenv.testing.workbench_ground import run_of
from agentenv.testing.workbenches import Running, run
from machines_ground import need_machines

pytestmark = pytest.mark.timeout(300)

_COUNT = "n=0; while read -r word; do n=$((n+1)); echo $n $word; done; echo over"


class Failing:
    """An object of which one call fails, once or for ever, before or after it has done what it does."""

    def __init__(self, real: Any, name: str, error: Exception, *, after: bool = False, times: int = 1) -> None:
        self._real, self._name, self._error, self._after, self._times = real, name, error, after, times

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._real, name)
        if name != self._name or not self._times:
            return found

        def fail(*given: Any, **keys: Any) -> Any:
            if self._times and (given[:1] == ("part",) or self._name != "call"):
                self._times -= 1
                if self._after:
                    found(*given, **keys)
                raise self._error
            return found(*given, **keys)

        return fail


@pytest.fixture(scope="module")
def context() -> Iterator[RunContext]:
    need_machines()
    with run_of("qemu", {"id": "bench", "env": "CartPole-v1", "memory_mb": 256}) as context:
        yield context


@pytest.fixture(scope="module")
def make(context: RunContext) -> Callable[[str], VmWorkbench]:
    def make_one(id: str) -> VmWorkbench:
        spec = context.spec("bench", context.config.expand())
        plain = replace(spec, id=id, envs=(), command=(), start_timeout_s=120.0)
        (sandbox,) = context.runtime.create([plain], context.output)
        assert isinstance(sandbox.workbench, VmWorkbench)
        return sandbox.workbench

    return make_one


@pytest.fixture(scope="module")
def shared(make: Callable[[str], VmWorkbench]) -> VmWorkbench:
    return make("shared")


@pytest.fixture
def bench(shared: VmWorkbench) -> Iterator[VmWorkbench]:
    """A machine with a program that answers; after the test it answers still, and in order."""
    parts = shared._machine, shared._agent
    program = Running(shared, Task(("sh", "-c", _COUNT)), stdin=None)
    os.write(program.stdin, b"first\n")
    assert program.line() == b"1 first\n"
    yield shared
    shared._machine, shared._agent = parts
    shared.resume()
    os.write(program.stdin, b"second\n")
    assert program.line() == b"2 second\n"
    os.close(program.stdin)
    program.stdin = os.open(os.devnull, os.O_RDONLY)
    assert program.end().stdout == b"over\n"


def status(bench: VmWorkbench) -> str:
    """What the monitor says of it."""
    found: str = bench._machine._execute("query-status")["status"]  # type: ignore[attr-defined]  # QEMU's
    return found


def kept(bench: VmWorkbench) -> list[Path]:
    return list(bench._machine.home.parent.glob("kept-*"))


def test_one_whose_agent_is_not_found_is_paused_still_and_can_be_resumed(bench: VmWorkbench) -> None:
    bench.pause()
    bench._machine = Failing(bench._machine, "connect", TimeoutError("no agent listened"))  # type: ignore[assignment]  # stands in
    with pytest.raises(StepTimeout, match="no agent listened"):
        bench.resume()
    assert bench.paused
    assert status(bench) == "paused"
    bench.resume()
    assert not bench.paused
    assert status(bench) == "running"


def test_streams_flow_where_the_agent_does_not_part(bench: VmWorkbench) -> None:
    refusal = AgentRefusal("bench", {"id": 1, "error": "ValueError: not now", "text": "not now"})
    bench._agent = Failing(bench._agent, "call", refusal)  # type: ignore[assignment]  # stands in
    with pytest.raises(RuntimeUnavailable, match="not now"):
        bench.pause()
    assert not bench.paused
    assert status(bench) == "running"


@pytest.mark.parametrize("after", [False, True], ids=["and did not", "and did"])
def test_one_that_does_not_stop_in_time_goes_on(bench: VmWorkbench, after: bool) -> None:
    bench._machine = Failing(bench._machine, "pause", TimeoutError("stop not done"), after=after)  # type: ignore[assignment]  # stands in
    with pytest.raises(StepTimeout, match="stop not done"):
        bench.pause()
    assert not bench.paused
    assert status(bench) == "running"


def test_a_snapshot_of_one_that_does_not_stop_in_time_is_none(bench: VmWorkbench, tmp_path: Path) -> None:
    bench._machine = Failing(bench._machine, "pause", TimeoutError("stop not done"))  # type: ignore[assignment]  # stands in
    with pytest.raises(StepTimeout, match="stop not done"):
        bench.snapshot(tmp_path)
    assert not bench.paused
    assert status(bench) == "running"
    assert not list(tmp_path.iterdir())


def test_a_snapshot_after_which_it_does_not_go_on_is_not_kept(bench: VmWorkbench) -> None:
    bench._machine = Failing(bench._machine, "connect", TimeoutError("no agent listened"))  # type: ignore[assignment]  # stands in
    with pytest.raises(StepTimeout, match="no agent listened"):
        bench.keep()
    assert kept(bench) == []
    assert bench.paused
    assert status(bench) == "paused"


def test_a_directory_with_something_in_it_is_left_as_it_is(bench: VmWorkbench, tmp_path: Path) -> None:
    (tmp_path / "theirs").write_text("of somebody else")
    with pytest.raises(RuntimeUnavailable, match="expected an existing, empty directory"):
        bench.snapshot(tmp_path)
    assert (tmp_path / "theirs").read_text() == "of somebody else"
    assert not bench.paused


def test_one_that_neither_goes_on_nor_stands_still_is_ended(make: Callable[[str], VmWorkbench]) -> None:
    bench = make("ended")
    assert run(bench, "true").status == {"exit": 0}
    bench.pause()
    machine = Failing(bench._machine, "connect", TimeoutError("no agent listened"))
    bench._machine = Failing(machine, "pause", TimeoutError("stop not done"))  # type: ignore[assignment]  # stands in
    with pytest.raises(SandboxDied, match="neither go on nor be stopped again, and was ended: no agent") as caught:
        bench.resume()
    assert caught.value.cause.kind is CauseKind.TIMEOUT
    assert not bench._machine.alive()
    with pytest.raises(AgentEnvError):
        bench.resume()


def test_one_that_is_killed_while_it_stands_still_is_gone_for_everybody(
    make: Callable[[str], VmWorkbench], tmp_path: Path
) -> None:
    """Not one whose snapshot did not fit on a disk, nor one that only has to be resumed."""
    bench = make("killed")
    bench.pause()
    os.kill(bench._machine.pid, signal.SIGKILL)
    for ask in (lambda: bench.snapshot(tmp_path), bench.keep, bench.health, lambda: run(bench, "true"), bench.resume):
        with pytest.raises(SandboxDied) as caught:
            ask()
        assert caught.value.cause.kind is CauseKind.SANDBOX_LOST
    assert kept(bench) == []
    assert not list(tmp_path.iterdir())


def test_one_whose_monitor_stops_answering_is_late(bench: VmWorkbench, tmp_path: Path) -> None:
    bench.pause()
    bench._machine = Failing(bench._machine, "snapshot", TimeoutError("query-status not done"))  # type: ignore[assignment]  # stands in
    with pytest.raises(StepTimeout, match="query-status not done"):
        bench.snapshot(tmp_path)
    assert bench.paused
    assert not list(tmp_path.iterdir())
