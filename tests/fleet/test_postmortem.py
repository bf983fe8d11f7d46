"""What a death leaves behind: events in order, a mark in the logs, a report where the run is recorded."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from agentenv.config import config_from_keywords
from agentenv.errors import CauseKind, SandboxDied
from agentenv.fleet.context import RunContext
from agentenv.fleet.crashes import LAST_STEPS, CrashReport, read_crashes
from agentenv.fleet.fleet import Fleet
from agentenv.fleet.postmortem import describe_recovery
from agentenv.fleet.rundir import RunDir
from agentenv.telemetry.events import EventLog, read_events
from agentenv.wire.slot import Op
from agentenv.wire.values import encode


@contextlib.contextmanager
def opened(env: str, place: Path | None, count: int = 2, **keys: Any) -> Iterator[Fleet]:
    """Environments of a run, recorded below ``place``; killed ones start again at once."""
    folder = {} if place is None else {"run_dir": str(place)}
    keys = {"restart_backoff_s": 0.0, **folder, **keys}
    config = config_from_keywords(env, count=count, **keys)
    members = list(config.expand())
    context = RunContext(config, members, record=place is not None)
    fleet = None
    try:
        if context.run is not None:
            context.crashes.events = EventLog(context.run.path / "events.jsonl")
        fleet = Fleet(context, members)
        yield fleet
    finally:
        if fleet is not None:
            fleet.close()
        context.crashes.events.close()
        context.close()


def reset(fleet: Fleet) -> None:
    fleet.exchange(Op.RESET, 60.0, None, [encode([number, None]) for number in range(fleet.count)])


def step(fleet: Fleet, action: int) -> None:
    fleet.action_bytes[...] = np.frombuffer(np.int64(action).tobytes(), np.uint8)
    fleet.exchange(Op.STEP, 60.0)


def kill(fleet: Fleet, number: int) -> None:
    pid = fleet.sandboxes[number]._worker.pid  # type: ignore[attr-defined]  # a cell's
    os.kill(pid, signal.SIGKILL)


def run_of(fleet: Fleet) -> RunDir:
    assert fleet.context.run is not None
    return fleet.context.run


def reports_of(fleet: Fleet, index: int) -> list[CrashReport]:
    return [report for report in read_crashes(run_of(fleet)) if report.env_id == fleet.members[index].id]


def test_a_death_is_reported_with_what_was_done_before_it(tmp_path: Path) -> None:
    with opened("frail:Walk", tmp_path, checkpoint_every="never") as fleet:
        reset(fleet)
        rewards = []
        for number in range(6):
            step(fleet, number % 3)
            rewards.append(float(fleet.channel.rewards[1]))
        kill(fleet, 1)
        step(fleet, 2)
        (report,) = reports_of(fleet, 1)
        assert reports_of(fleet, 0) == []
        assert (report.cause.kind, report.cause.signal) == (CauseKind.SIGNAL, 9)
        assert list(report.last_actions) == [0, 1, 2, 0, 1, 2], "the step it died in was never answered"
        assert list(report.last_rewards) == rewards
        assert report.recovery is not None
        assert (report.recovery["how"], report.recovery["replayed_steps"]) == ("replay", 7)
        assert report.recovery["checkpoint"] == 0
        assert report.recovery["duration_ms"] > 0
        env_id = fleet.members[1].id
        assert fleet.members[0].id != env_id
        log = (run_of(fleet).environment(env_id).path / "stdout.log").read_text()
        assert f"restarted after: {report.cause.detail}" in log
        events, damaged = read_events(run_of(fleet).path / "events.jsonl")
        assert damaged == 0
        assert [(event.env_id, event.kind) for event in events] == [(env_id, "env_crashed"), (env_id, "env_recovered")]
        assert events[0].fields["cause"] == "signal"
        assert dict(events[1].fields) == dict(report.recovery)


def test_only_the_last_steps_are_kept(tmp_path: Path) -> None:
    with opened("frail:Walk", tmp_path, count=1, env_kwargs={"length": 100_000}, checkpoint_every=50) as fleet:
        reset(fleet)
        for number in range(LAST_STEPS + 30):
            step(fleet, number % 3)
        kill(fleet, 0)
        step(fleet, 0)
        (report,) = reports_of(fleet, 0)
        whole = [number % 3 for number in range(LAST_STEPS + 30)]
        kept = list(report.last_actions)
        assert 0 < len(kept) <= LAST_STEPS
        assert kept == whole[-len(kept) :]
        assert report.recovery is not None
        assert report.recovery["how"] == "state"
        assert report.recovery["replayed_steps"] <= 50


def test_all_of_a_shared_sandbox_are_reported(tmp_path: Path) -> None:
    with opened("frail:Walk", tmp_path, count=3, checkpoint_every="never") as single:
        assert len(single.sandboxes) == 3
    config = config_from_keywords("frail:Walk", count=3, run_dir=str(tmp_path), restart_backoff_s=0.0)
    members = list(config.expand())
    context = RunContext(config, members, record=True)
    fleet = Fleet(context, members, envs_per_sandbox=3)
    try:
        reset(fleet)
        step(fleet, 1)
        kill(fleet, 0)
        step(fleet, 2)
        assert [report.env_id for report in read_crashes(run_of(fleet))] == [member.id for member in members]
        for index in range(3):
            (report,) = reports_of(fleet, index)
            assert list(report.last_actions) == [1]
            assert report.recovery is not None
    finally:
        fleet.close()
        context.close()


@pytest.mark.parametrize(("on_crash", "how"), [("truncate", "truncated"), ("raise", "raised")])
def test_what_is_not_made_up_for_says_so(tmp_path: Path, on_crash: str, how: str) -> None:
    with opened("frail:Walk", tmp_path, on_crash=on_crash) as fleet:
        reset(fleet)
        step(fleet, 1)
        kill(fleet, 0)
        if on_crash == "raise":
            with pytest.raises(SandboxDied):
                step(fleet, 1)
        else:
            step(fleet, 1)
        (report,) = reports_of(fleet, 0)
        assert report.recovery is not None
        assert report.recovery["how"] == how
        assert ("on_crash is truncate" in report.recovery.get("reason", "")) == (on_crash == "truncate")
        events, _ = read_events(run_of(fleet).path / "events.jsonl")
        assert [event.kind for event in events] == [
            "env_crashed",
            "env_recovered" if on_crash == "truncate" else "env_given_up",
        ]


def test_used_up_restarts_are_told_of(tmp_path: Path) -> None:
    with opened("frail:Walk", tmp_path, max_restarts=1) as fleet:
        reset(fleet)
        for _ in range(2):
            kill(fleet, 1)
            step(fleet, 0)
        assert [report.recovery["how"] for report in reports_of(fleet, 1) if report.recovery] == [
            "replay",
            "quarantined",
        ]


def test_variable_actions_are_told_by_their_fixed_part(tmp_path: Path) -> None:
    with opened("frail:Reading", tmp_path, count=1) as fleet:
        reset(fleet)
        fleet.action_bytes[...] = np.frombuffer(np.int64(2).tobytes(), np.uint8)[: fleet.action_bytes.shape[1]]
        fleet.exchange(Op.STEP, 60.0, None, [encode(["hello"])])
        kill(fleet, 0)
        fleet.exchange(Op.STEP, 60.0, None, [encode(["you"])])
        (report,) = reports_of(fleet, 0)
        assert list(report.last_actions) == [fleet.action_bytes[0].tobytes().hex()]


def test_without_a_run_directory_it_is_only_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "agentenv"), opened("frail:Walk", None, count=1) as fleet:
        reset(fleet)
        kill(fleet, 0)
        step(fleet, 1)
        assert fleet.recovery.recovered == 1
        env_id = fleet.members[0].id
    told = [record.getMessage() for record in caplog.records if record.name == "agentenv.events"]
    assert [line.split()[:2] for line in told] == [[f"{env_id}:", "env_crashed"], [f"{env_id}:", "env_recovered"]]
    assert list(tmp_path.iterdir()) == []


def test_a_recovery_is_described_by_what_is_known() -> None:
    began = time.monotonic()
    known = describe_recovery("state", replayed=3, began=began, reason="", base=17)
    assert {key: value for key, value in known.items() if key != "duration_ms"} == {
        "how": "state",
        "replayed_steps": 3,
        "checkpoint": 17,
    }
    cut = describe_recovery("truncated", replayed=0, began=began, reason="it died", base=None)
    assert (cut["reason"], "checkpoint" in cut) == ("it died", False)
    assert cut["duration_ms"] >= 0
