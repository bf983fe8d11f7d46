"""Environments that really die, hang and stop in real sandboxes: what is found out about each."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agentenv.config import load_config
from agentenv.errors import CauseKind, EnvError, Owner, SandboxError, StepTimeout
from agentenv.fleet.context import RunContext
from agentenv.fleet.evidence import environment_of, find_stack, full_disks, state_of
from agentenv.fleet.fleet import Fleet
from agentenv.fleet.output import SandboxOutput
from agentenv.fleet.watch import Watch
from agentenv.testing.leftovers import becomes_true
from agentenv.wire.slot import Op

ENVIRONMENT, RESOURCES, INFRASTRUCTURE = Owner.ENVIRONMENT, Owner.RESOURCES, Owner.INFRASTRUCTURE
DYING = {"id": "env", "env": "fleet.dying:Dying", "memory_mb": 256, "disk_mb": 8, "pids": 64, "on_crash": "raise"}


@pytest.fixture(scope="module", params=["bubblewrap", "process"])
def context(request: pytest.FixtureRequest) -> Iterator[RunContext]:
    config = load_config({"global": {"runtime": request.param}, "environments": [DYING]})
    context = RunContext(config, config.expand(), record=False)
    yield context
    context.close()


@pytest.fixture
def fleet(context: RunContext) -> Iterator[Fleet]:
    fleet = Fleet(context, context.config.expand())
    yield fleet
    fleet.close()


def call(fleet: Fleet, name: str, *arguments: Any, timeout_s: float = 60) -> Any:
    return fleet.call(Op.CALL, [name, list(arguments), {}], [0], timeout_s)[0]


def fails(fleet: Fleet, name: str, *arguments: Any, timeout_s: float = 60) -> SandboxError:
    with pytest.raises(SandboxError) as caught:
        call(fleet, name, *arguments, timeout_s=timeout_s)
    return caught.value


def dies(fleet: Fleet, pid: int) -> SandboxError:
    """The error of the first call after one of its processes was killed."""
    os.kill(pid, signal.SIGKILL)
    assert becomes_true(lambda: fleet.dead() == [0], 10)
    return fails(fleet, "nothing")


def in_sandboxes(context: RunContext) -> None:
    if context.runtime_name == "process":
        pytest.skip("runtime 'process' limits and hides nothing of this")


@pytest.mark.parametrize(
    ("name", "arguments", "kind", "words", "code", "number"),
    [
        ("leave", (0,), CauseKind.EXIT, "called exit", 0, None),
        ("leave", (3,), CauseKind.EXIT, "status 3", 3, None),
        ("segfault", (), CauseKind.SIGNAL, "SIGSEGV: a crash in native code", None, signal.SIGSEGV),
        ("abort", (), CauseKind.SIGNAL, "SIGABRT: it aborted itself", None, signal.SIGABRT),
    ],
)
def test_a_death(
    context: RunContext,
    fleet: Fleet,
    name: str,
    arguments: tuple[int, ...],
    kind: CauseKind,
    words: str,
    code: int | None,
    number: int | None,
) -> None:
    cause = fails(fleet, name, *arguments).cause
    assert (cause.kind, cause.owner, cause.exit_code, cause.signal) == (kind, ENVIRONMENT, code, number)
    assert words in cause.detail
    stack = find_stack(context.output.text("env", "stderr"))
    assert (f"in {name}" in stack) is (kind is CauseKind.SIGNAL)
    assert context.watch.evidence("env") is None


def test_too_much_memory(context: RunContext, fleet: Fleet) -> None:
    if not context.runtime.limits()["memory"].startswith("cgroup"):
        pytest.skip("no control group holds the memory here; `agentenv runtimes` says what helps")
    cause = fails(fleet, "hog", 600).cause
    assert (cause.kind, cause.owner, cause.oom_kills) == (CauseKind.OUT_OF_MEMORY, RESOURCES, 1)
    assert "256 MB" in cause.detail


def test_the_memory_of_the_surroundings_runs_out(context: RunContext, fleet: Fleet) -> None:
    """As in a container with a limit of its own: the group above the sandbox's is given less than the sandbox."""
    group = fleet.sandboxes[0]._house.cgroup  # type: ignore[attr-defined]  # a cell's
    if group is None or fleet.sandboxes[0].usage().memory_bytes == 0:  # type: ignore[union-attr]  # it lives
        pytest.skip("no control group holds the memory here; `agentenv runtimes` says what helps")
    files = [d.parent / name for d in group.directories for name in ("memory.max", "memory.limit_in_bytes")]
    (file,) = (file for file in files if file.exists())
    before = file.read_text()
    file.write_text(str(128 << 20))
    try:
        cause = fails(fleet, "hog", 200).cause
    finally:
        file.write_text(before)
    assert (cause.kind, cause.owner, cause.oom_kills) == (CauseKind.HOST_OUT_OF_MEMORY, RESOURCES, 1)
    assert "below its own limit of 256 MB" in cause.detail


@pytest.mark.parametrize("path", ["/tmp", "/dev/shm"])
def test_a_full_disk(context: RunContext, fleet: Fleet, path: str) -> None:
    in_sandboxes(context)
    pid = environment_of(fleet.sandboxes[0])
    assert pid is not None
    assert full_disks(pid) == ()
    error = fails(fleet, "fill", f"{path}/large", 20)
    assert isinstance(error, EnvError)
    assert full_disks(pid) == (path,)
    assert (error.cause.kind, error.cause.owner) == (CauseKind.DISK_FULL, RESOURCES)
    assert path in error.cause.detail
    assert call(fleet, "nothing") == 7


def test_shared_memory_mapped_beyond_its_size(context: RunContext, fleet: Fleet) -> None:
    in_sandboxes(context)
    cause = fails(fleet, "map_shared_memory", 6, 3).cause
    assert (cause.kind, cause.owner, cause.signal) == (CauseKind.DISK_FULL, RESOURCES, signal.SIGBUS)
    assert "no room left in /dev/shm" in cause.detail


@pytest.mark.parametrize(("path", "code", "kind"), [("/tmp", 1, CauseKind.DISK_FULL), ("/tmp", 0, CauseKind.EXIT)])
def test_leaving_with_a_full_disk(context: RunContext, fleet: Fleet, path: str, code: int, kind: CauseKind) -> None:
    in_sandboxes(context)
    fails(fleet, "fill", f"{path}/large", 20)
    cause = fails(fleet, "leave", code).cause
    assert (cause.kind, cause.exit_code) == (kind, code)


@pytest.mark.parametrize(
    ("name", "how", "inner"),
    [
        ("spin", "busy computing", "in spin"),
        ("redirect_and_spin", "busy computing", "in spin"),
        ("sleep_in_python", "blocked, using no CPU", "in sleep_in_python"),
        ("read_in_native_code", "blocked, using no CPU", "in read_in_native_code"),
        ("deadlock", "blocked, using no CPU", "in deadlock"),
        ("ignore_signals", "blocked, using no CPU", None),
    ],
)
def test_no_answer(context: RunContext, fleet: Fleet, name: str, how: str, inner: str | None) -> None:
    cause = fails(fleet, name, timeout_s=1).cause
    assert (cause.kind, cause.owner) == (CauseKind.TIMEOUT, ENVIRONMENT)
    assert how in cause.detail
    found = context.watch.evidence("env")
    assert found is not None
    assert found.usage is not None
    assert found.usage.processes >= 1
    if inner is None:
        assert found.stack == ""
    else:
        assert inner in found.stack
        assert "dying.py" in found.stack
        assert found.stack.count("most recent call first") == (2 if name == "deadlock" else 1)
    if name == "deadlock":
        assert "in hold" in found.stack


def test_being_asked_does_not_wake_it_into_an_answer(context: RunContext, fleet: Fleet) -> None:
    cause = fails(fleet, "sleep_in_native_code", timeout_s=1).cause
    assert cause.kind is CauseKind.TIMEOUT
    found = context.watch.evidence("env")
    assert found is not None
    assert "in sleep_in_native_code" in found.stack


def test_stopped_by_itself(context: RunContext, fleet: Fleet) -> None:
    error = fails(fleet, "stop", timeout_s=1)
    assert isinstance(error, StepTimeout)
    cause = error.cause
    assert (cause.kind, cause.owner) == (CauseKind.FROZEN, ENVIRONMENT)
    found = context.watch.evidence("env")
    assert found is not None
    assert (found.look.state, found.stack) == ("stopped", "")


def test_stopped_from_outside(context: RunContext, fleet: Fleet) -> None:
    pid = environment_of(fleet.sandboxes[0])
    assert pid is not None
    for one in (fleet.sandboxes[0].pid, pid):
        os.kill(one, signal.SIGSTOP)
    assert becomes_true(lambda: state_of(pid) == "stopped", 10)
    cause = fails(fleet, "nothing", timeout_s=1).cause
    assert (cause.kind, cause.owner) == (CauseKind.FROZEN, INFRASTRUCTURE)


def test_states(fleet: Fleet) -> None:
    pid = environment_of(fleet.sandboxes[0])
    assert pid is not None
    assert becomes_true(lambda: state_of(pid) == "sleeping", 10)
    fleet.sandboxes[0].kill()
    assert becomes_true(lambda: state_of(pid) == "gone", 10)
    assert environment_of(fleet.sandboxes[0]) is None
    assert full_disks(pid) == ()


def test_the_environments_process_killed(fleet: Fleet) -> None:
    pid = environment_of(fleet.sandboxes[0])
    assert pid is not None
    cause = dies(fleet, pid).cause
    assert (cause.kind, cause.owner, cause.signal) == (CauseKind.SIGNAL, ENVIRONMENT, signal.SIGKILL)


def test_the_first_process_killed(fleet: Fleet) -> None:
    cause = dies(fleet, fleet.sandboxes[0].pid).cause
    assert (cause.kind, cause.owner) == (CauseKind.SANDBOX_LOST, INFRASTRUCTURE)
    assert "the first process of its sandbox" in cause.detail


def test_the_outer_sandbox_killed(context: RunContext, fleet: Fleet) -> None:
    in_sandboxes(context)
    cause = dies(fleet, parent_of(fleet.sandboxes[0].pid)).cause
    assert (cause.kind, cause.owner) == (CauseKind.SANDBOX_LOST, INFRASTRUCTURE)
    assert "the outer sandbox" in cause.detail
    fleet.close()
    again = Fleet(context, context.config.expand())
    assert call(again, "nothing") == 7
    again.close()


def test_bubblewraps_own_process_may_go(context: RunContext, fleet: Fleet) -> None:
    in_sandboxes(context)
    bubblewrap = parent_of(parent_of(fleet.sandboxes[0].pid))
    assert Path(f"/proc/{bubblewrap}/exe").resolve().name == "bwrap"
    os.kill(bubblewrap, signal.SIGKILL)
    assert becomes_true(lambda: state_of(bubblewrap) == "gone", 10)
    assert call(fleet, "nothing") == 7


class Gate:
    """Lets stacks be read only once it is opened, so that looking at somebody takes as long as a test wants."""

    def __init__(self, output: SandboxOutput) -> None:
        self.output, self.reached, self.open = output, threading.Event(), threading.Event()

    def drain(self, sandbox_id: str) -> None:
        self.output.drain(sandbox_id)

    def received(self, sandbox_id: str, stream: str) -> int:
        self.reached.set()
        assert self.open.wait(30)
        return self.output.received(sandbox_id, stream)

    def text(self, sandbox_id: str, stream: str) -> str:
        return self.output.text(sandbox_id, stream)


def test_looking_at_one_does_not_hold_up_the_news_of_another(context: RunContext) -> None:
    before, gate = context.watch, Gate(context.output)
    context.watch = Watch(gate)
    config = load_config({"environments": [DYING | {"id": f"env-{n}"} for n in range(2)]})
    fleets = [Fleet(context, [member]) for member in config.expand()]
    errors: list[SandboxError] = []
    thread = threading.Thread(target=lambda: errors.append(fails(fleets[0], "spin", timeout_s=0.5)))
    thread.start()
    assert gate.reached.wait(30)
    assert dies(fleets[1], fleets[1].sandboxes[0].pid).cause.kind is CauseKind.SANDBOX_LOST
    assert errors == []
    gate.open.set()
    thread.join(30)
    assert errors[0].cause.kind is CauseKind.TIMEOUT
    for fleet in fleets:
        fleet.close()
    context.watch.close()
    context.watch = before


def parent_of(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("PPid:"))
