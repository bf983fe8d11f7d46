"""An orderly end of a sandbox that this process holds, and what is said where it fails."""

from __future__ import annotations

import gc
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agentenv import Sandbox
from agentenv.errors import ClosedError, ConfigError, SandboxDied, StepTimeout
from agentenv.sandbox.runtimes._vm import workbench
from agentenv.sandbox.runtimes._vm.agent import Agent, AgentRefusal
from agentenv.sandbox.workbench import Shutdown
from agentenv.testing import traces
from agentenv.testing.leftovers import becomes_true

pytestmark = pytest.mark.timeout(300)


@pytest.fixture
def own(ground: Path) -> Iterator[Sandbox]:
    """A sandbox of which nothing is left after the test."""
    before = traces.take()
    box = Sandbox.create(name="own", runtime="qemu", memory_mb=256)
    homes = Path(f"/proc/{box.describe().pid}/cwd").resolve()
    try:
        yield box
        assert box.state == "destroyed"
    finally:
        box.destroy()
    assert not homes.exists()
    assert traces.take().left_since(before) == []


def test_it_is_destroyed_afterwards(own: Sandbox) -> None:
    with own.start("trap 'echo bye; exit 3' TERM; echo ready; while :; do sleep 0.05; done") as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        assert own.shutdown(100) == Shutdown(ended=1, killed=0)
        assert process.stdout.read() == b"bye\n"
        assert process.wait(0).exit_code == 3
    for call in (own.health, own.pause, own.resume, own.shutdown, lambda: own.exec("true"), lambda: own.fork()):
        with pytest.raises(ClosedError, match="destroyed"):
            call()
    own.destroy()


def test_one_that_nobody_refers_to_any_more_was_ended(ground: Path) -> None:
    box = Sandbox.create(name="forgotten", runtime="qemu", memory_mb=256)
    assert box.shutdown() == Shutdown(ended=0, killed=0)
    del box
    gc.collect()  # warnings are errors


def test_one_that_does_not_answer_is_destroyed_all_the_same(own: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workbench, "_CALL_S", 1.0)
    os.kill(own.describe().pid, signal.SIGSTOP)
    with pytest.raises(StepTimeout, match=r"sandbox 'own': its agent did not answer .* it was destroyed all the same"):
        own.shutdown()


@pytest.mark.parametrize(
    ("refusal", "said"),
    [
        ({"error": "KeyError: 'shutdown'"}, "its agent, of another version, knows nothing of that"),
        ({"error": "OSError: I\x1b[2J will not", "errno": 1, "text": "I\x1b[2J will not"}, "I will not"),
    ],
)
def test_one_whose_agent_refuses_is_destroyed_all_the_same(
    own: Sandbox, monkeypatch: pytest.MonkeyPatch, refusal: dict[str, Any], said: str
) -> None:
    def refuse(agent: Agent, op: str, timeout_s: float, **given: Any) -> Any:
        raise AgentRefusal("own", refusal)

    with monkeypatch.context() as patch:
        patch.setattr(Agent, "call", refuse)
        with pytest.raises(SandboxDied, match=f"cannot be ended in order: {said}; it was destroyed all the same"):
            own.shutdown()
    assert own.state == "destroyed"


def test_one_that_has_died_is_destroyed_and_says_why(own: Sandbox) -> None:
    os.kill(own.describe().pid, signal.SIGKILL)
    with pytest.raises(SandboxDied, match="sandbox 'own': its machine's monitor was killed"):
        own.shutdown()


@pytest.mark.parametrize("paused", [False, True])
def test_one_that_has_died_neither_stands_still_nor_goes_on(own: Sandbox, paused: bool) -> None:
    if paused:
        own.pause()
    os.kill(own.describe().pid, signal.SIGKILL)
    assert becomes_true(lambda: own.state == "died", 30)
    for call in (own.resume, own.pause, own.resume):
        with pytest.raises(SandboxDied, match="sandbox 'own': its machine's monitor was killed"):
            call()
    own.destroy()


@pytest.mark.parametrize("wrong", [-1, float("nan"), float("inf"), 10**6, "10", None, True])
def test_what_is_no_time_ends_nothing(box: Sandbox, wrong: Any) -> None:
    with pytest.raises(ConfigError, match="timeout_s: expected a number of seconds from 0 to 86400"):
        box.shutdown(wrong)
    assert box.exec("true").exit_code == 0
