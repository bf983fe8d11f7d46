"""Faults planted inside a machine by whoever is root there: each is told by its true name and made up for, and its
sibling notices nothing.

One vector of two machines lives through all of them, beside one of ordinary sandboxes that nothing happens to.
"""

from __future__ import annotations

import os
import shutil
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import psutil
import pytest

from agentenv import AgentVectorEnv
from agentenv.errors import Cause, CauseKind, Owner, SandboxDied
from agentenv.fleet import machines as machines_module
from agentenv.sandbox.runtimes._vm.relay import RelayProcess
from agentenv.sandbox.runtimes._vm.sandbox import VmSandbox
from agentenv.testing import exact, traces
from cli_watch import poll
from machines_ground import need_machines
from sandbox.vm.planted import initramfs

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.timeout(300)]

ENVIRONMENT, RESOURCES, INFRASTRUCTURE = Owner.ENVIRONMENT, Owner.RESOURCES, Owner.INFRASTRUCTURE


@pytest.fixture(scope="module", autouse=True)
def machines() -> None:
    need_machines()


class Pair:
    """The vector things are done to, and the one that shows what it should have returned."""

    def __init__(self, templates: Path) -> None:
        self.templates = templates
        keys: dict[str, Any] = {
            "num_envs": 2, "seed": 5, "max_restarts": 1000, "restart_backoff_s": 0.0, "step_timeout_s": 20.0,
            "memory_mb": 192, "disk_mb": 64,
        }  # fmt: skip
        self.vec = AgentVectorEnv.from_env("frail:Walk", runtime="qemu", start_timeout_s=120.0, **keys)
        self.quiet = AgentVectorEnv.from_env("frail:Walk", **{**keys, "memory_mb": 512})
        self.vec.action_space.seed(3)
        exact.assert_same(self.vec.reset(seed=1), self.quiet.reset(seed=1))

    @property
    def first(self) -> Any:
        return self.vec._fleet.sandboxes[0]

    @property
    def sibling(self) -> Any:
        return self.vec._fleet.sandboxes[1]

    def plan(self, deed: str) -> None:
        self.first.agent.call("plan", 10.0, deed=deed)

    def step(self, times: int = 4) -> None:
        for _ in range(times):
            actions = self.vec.action_space.sample()
            exact.assert_same(self.vec.step(actions), self.quiet.step(actions))

    def close(self) -> None:
        self.vec.close()
        self.quiet.close()


def crashes(caplog: pytest.LogCaptureFixture) -> list[tuple[Any, ...]]:
    found = [record.event for record in caplog.records if record.name == "agentenv.events"]
    return [
        (event.env_id, *(str(event.fields[key]) for key in ("cause", "owner", "detail")))
        for event in found
        if event.kind == "env_crashed"
    ]


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    before = traces.take()
    with pytest.MonkeyPatch.context() as patch:
        place = tmp_path_factory.mktemp("faults")
        patch.setattr(machines_module, "initramfs_for", initramfs(place, traitor=True))
        patch.setattr(machines_module, "_TEMPLATES", str(place / "templates"))
        with closing(Pair(place / "templates")) as made:
            yield made
    assert traces.take().left_since(before) == []


DEATHS = [
    ("garbage", CauseKind.PROTOCOL, ENVIRONMENT, "its machine broke the protocol: a frame of kind 255"),
    ("huge", CauseKind.PROTOCOL, ENVIRONMENT, "4294967295 bytes"),
    ("beyond_credit", CauseKind.PROTOCOL, ENVIRONMENT, "more bytes on a stream than were granted"),
    ("no_answer", CauseKind.PROTOCOL, ENVIRONMENT, "cut short"),
    ("for_another_slot", CauseKind.PROTOCOL, ENVIRONMENT, "for a slot"),
    ("too_long", CauseKind.PROTOCOL, ENVIRONMENT, "100 bytes too many"),
    ("forged_reports", CauseKind.SANDBOX_LOST, INFRASTRUCTURE, "ended without a report"),
    ("panic", CauseKind.SANDBOX_LOST, ENVIRONMENT, "its kernel panicked: sysrq triggered crash"),
    ("agent_exits", CauseKind.SANDBOX_LOST, INFRASTRUCTURE, "exitcode=0x00000300"),
    ("agent_crashes", CauseKind.SANDBOX_LOST, INFRASTRUCTURE, "exitcode=0x0000000b"),
    ("agent_fails", CauseKind.SANDBOX_LOST, INFRASTRUCTURE, "RuntimeError: a mistake in the agent"),
    ("kill_cell", CauseKind.SANDBOX_LOST, INFRASTRUCTURE, "its cell ended without a report"),
    ("eat_memory", CauseKind.OUT_OF_MEMORY, RESOURCES, "raise memory_mb"),
    ("reboot", CauseKind.SANDBOX_LOST, INFRASTRUCTURE, "ended from inside (Restarting system)"),
    ("reset", CauseKind.SANDBOX_LOST, INFRASTRUCTURE, "ended from inside (it restarted)"),
]


@pytest.mark.parametrize(("deed", "kind", "owner", "words"), DEATHS, ids=[death[0] for death in DEATHS])
def test_a_machine_that_goes_wrong(
    pair: Pair, caplog: pytest.LogCaptureFixture, deed: str, kind: CauseKind, owner: Owner, words: str
) -> None:
    pair.step(1)
    sibling = pair.sibling
    pair.plan(deed)
    # Some die a moment after the deed, and may answer until then.
    ends = time.monotonic() + 60
    while not crashes(caplog):
        assert time.monotonic() < ends, "it went on"
        pair.step(1)
    pair.step(2)
    (crash,) = crashes(caplog)
    assert crash[:3] == ("env-0", kind, owner), crash
    assert words in crash[3]
    assert pair.sibling is sibling
    assert sibling.alive()


@pytest.mark.parametrize("deed", ["nonsense", "kill_first", "kill_zygote", "fill_disk", "another_time"])
def test_a_machine_that_goes_on_all_the_same(pair: Pair, caplog: pytest.LogCaptureFixture, deed: str) -> None:
    pair.plan(deed)
    pair.step()
    assert crashes(caplog) == []


def test_a_console_that_is_flooded_keeps_its_end(pair: Pair, caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(4):
        pair.plan("flood_console")
        pair.step(1)
    assert crashes(caplog) == []
    assert 1 << 18 < (pair.first.home / "console.log").stat().st_size <= 1 << 20


def test_processors_that_stand_still_are_late(pair: Pair, caplog: pytest.LogCaptureFixture) -> None:
    sibling = pair.sibling
    pair.first._machine.pause()
    pair.step(2)
    (crash,) = crashes(caplog)
    assert crash[:2] == ("env-0", CauseKind.TIMEOUT)
    assert pair.sibling is sibling


def test_what_is_no_message_is_no_traceback(pair: Pair) -> None:
    pair.plan("babble")
    pair.step(1)
    with pytest.raises(SandboxDied, match="its machine broke the protocol: asked for 'settle'") as caught:
        pair.first.agent.call("settle", 10.0)
    assert (caught.value.cause.kind, caught.value.cause.owner) == (CauseKind.PROTOCOL, ENVIRONMENT)
    pair.first.kill()
    pair.step(2)


def test_a_relay_that_is_killed_while_machines_start_is_followed_by_another(
    pair: Pair, caplog: pytest.LogCaptureFixture
) -> None:
    """The first is killed with the machines, the second as soon as it has started a monitor."""
    first = pair.vec._context.runtime._relay._process.pid  # type: ignore[attr-defined]  # machines'

    def strike() -> None:
        poll(lambda: relay().pid != first and bool(relay().children()), "another relay with a monitor", 60)
        relay().kill()

    def relay() -> psutil.Process:
        return psutil.Process(pair.vec._context.runtime._relay._process.pid)  # type: ignore[attr-defined]  # machines'

    os.kill(first, signal.SIGKILL)
    striker = threading.Thread(target=strike)
    striker.start()
    pair.step()
    striker.join()
    assert len(crashes(caplog)) >= 2
    assert {crash[1:3] for crash in crashes(caplog)} == {(CauseKind.SANDBOX_LOST, INFRASTRUCTURE)}


@pytest.mark.parametrize("at", ["join", "tie", "attach"])
def test_a_relay_that_is_killed_at_any_request_of_a_birth_is_followed_by_another(
    pair: Pair, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, at: str
) -> None:
    ask, struck = getattr(RelayProcess, at), []

    def strike(relay: Any, *args: Any, **kwargs: Any) -> Any:
        if not struck:
            struck.append(relay)
            relay._process.kill()
            relay._process.wait()
        return ask(relay, *args, **kwargs)

    monkeypatch.setattr(RelayProcess, at, strike)
    pair.first.kill()
    pair.step()
    assert struck
    assert {crash[1:3] for crash in crashes(caplog)} == {(CauseKind.SANDBOX_LOST, INFRASTRUCTURE)}


def test_an_agent_that_refuses_what_its_environment_needs_ends_that_one_alone(
    pair: Pair, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What an environment does as it is built comes before it is given its slots."""
    attach, refusals = VmSandbox.attach, []

    def turned(sandbox: VmSandbox, *args: Any) -> None:
        if not refusals:
            refusals.append(sandbox)
            sandbox.agent.call("plan", 10.0, deed="refuse")
        attach(sandbox, *args)

    monkeypatch.setattr(VmSandbox, "attach", turned)
    sibling = pair.sibling
    pair.first.kill()
    pair.step()
    (refused,) = refusals
    assert refused.cause() == Cause(
        CauseKind.START_FAILED, INFRASTRUCTURE, "its machine cannot be used: asked to 'attach', its agent says: never?"
    )
    assert pair.sibling is sibling


def test_a_template_removed_while_its_machines_run_is_made_again(pair: Pair) -> None:
    sibling = pair.sibling
    (template,) = [path for path in pair.templates.iterdir() if path.is_dir()]
    shutil.rmtree(template)
    pair.step(2)
    pair.first.kill()
    pair.step(2)
    assert pair.sibling is sibling
    assert template.is_dir()
