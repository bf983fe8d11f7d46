"""What a resumed run says in the end is of all its processes, as far as its folder tells."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from agentenv.config import load_config
from agentenv.errors import Cause, CauseKind, Owner
from agentenv.fleet.crashes import CrashReport, write_crash
from agentenv.fleet.earlier import Earlier, read_earlier
from agentenv.fleet.play import Play
from agentenv.fleet.progress import EnvState, Progress
from agentenv.fleet.resuming import Standing, read_resumption
from agentenv.fleet.rundir import RunDir
from agentenv.fleet.summary import Summary
from agentenv.fleet.tracefile import read_trace
from agentenv.telemetry.events import EventLog, read_events
from cgroup_children import SUPPORT

CAUSE = Cause(CauseKind.SIGNAL, Owner.ENVIRONMENT, "killed by SIGSEGV", signal=11)


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    return RunDir.create(tmp_path, "test", "id")


def told(run: RunDir, *events: tuple[str, str, dict[str, Any]]) -> dict[str, Earlier]:
    with EventLog(run.events) as log:
        for kind, env_id, fields in events:
            log.emit(kind, env_id, **fields)
    return read_earlier(run, read_events(run.events)[0])


def summarise(path: Path, **environment: Any) -> None:
    path.write_text(json.dumps({"state": "interrupted", "environments": [{"id": "a", **environment}]}))


def test_nothing_tells_of_nothing(run: RunDir) -> None:
    assert told(run) == {}


def test_restarts_are_events(run: RunDir) -> None:
    recovered = ("env_recovered", "a", {"how": "replay"})
    others = (("env_crashed", "a", {}), ("env_given_up", "a", {}), ("env_recovered", "b", {}))
    found = told(run, recovered, *others, recovered)
    assert (found["a"].restarts, found["b"].restarts) == (2, 1)


@pytest.mark.parametrize("name", ["summary.json", "summary.json.prev"])
def test_where_events_were_lost_the_summary_of_an_earlier_part_tells(run: RunDir, name: str) -> None:
    summarise(run.path / name, restarts=5, memory_peak_mb=12.5)
    assert told(run, ("env_recovered", "a", {})) == {"a": Earlier(5, int(12.5 * 2**20))}
    summarise(run.path / name, restarts=1, memory_peak_mb=12.5)
    assert told(run, ("env_recovered", "a", {}))["a"].restarts == 2


def test_the_most_memory_that_anything_tells_of_counts(run: RunDir) -> None:
    usage = {"memory_bytes": 30 << 20}
    write_crash(run.environment("a"), CrashReport("a", 0, 1.0, CAUSE, usage=usage))
    write_crash(run.environment("a"), CrashReport("a", 0, 2.0, CAUSE))
    assert told(run)["a"].memory_peak_bytes == 30 << 20
    assert told(run, ("env_done", "a", {"memory_peak_mb": 40.0}))["a"].memory_peak_bytes == 40 << 20
    summarise(run.summary, memory_peak_mb=50.0)
    assert told(run)["a"].memory_peak_bytes == 50 << 20


@pytest.mark.parametrize("value", [None, "9", True, [1], float("nan")])
def test_damaged_numbers_count_for_nothing(run: RunDir, value: Any) -> None:
    summarise(run.summary, restarts=value, memory_peak_mb=value)
    assert told(run, ("env_done", "a", {"memory_peak_mb": value})).get("a", Earlier()) == Earlier()
    run.summary.write_text('{"environments": [3, {"id": 4}]}')
    assert told(run).get("a", Earlier()) == Earlier()


def test_a_rate_is_of_the_process_that_took_the_steps() -> None:
    progress = Progress("a", 5)
    records = [{"episode": 0, "seed": 1, "return": 1.0, "length": 900, "outcome": "terminated"}]
    Standing(records, earlier=Earlier(3, 1 << 20)).fill(progress)
    assert (progress.steps, progress.restarts, progress.memory_peak_bytes) == (900, 3, 1 << 20)
    progress.steps, progress.active_s = progress.steps + 100, 2.0
    assert progress.steps_per_s == 50.0
    assert progress.to_json()["steps_per_s"] == 50.0
    whole = Summary("r", "n", Path(), "process", "process", {}, 1, 0.0, 1.0, 5.0, None, [progress])
    assert (whole.steps, whole.steps_per_s) == (1000, 25.0)


def test_a_run_that_is_gone_on_with_counts_on(tmp_path: Path) -> None:
    """Every episode of it dies once at its third step, and is truncated there."""
    table = {"id": "a", "env": "misbehaving:Segfaults", "episodes": 3, "restart_backoff_s": 0.0}
    settings = {"seed": 3, "run_dir": str(tmp_path), "runtime": "process"}
    summary = Play(load_config({"global": settings, "environments": [table]})).run()
    run = RunDir.open(summary.run_dir)
    (whole,) = summary.environments
    assert (summary.state, whole.episodes, whole.restarts) == ("finished", 3, 3)
    counted = "memory" in SUPPORT.controllers  # else it is seen only if it is looked at while it lives
    assert "memory_peak_mb" in read_events(run.events)[0][-2].fields or not counted
    # As if the process had been killed after the first episode.
    place = run.environment("a")
    place.episodes.write_bytes(place.episodes.read_bytes().splitlines(keepends=True)[0])
    end = read_trace(place.trace).episodes[0].end
    assert end is not None
    place.trace.write_bytes(place.trace.read_bytes()[: end.offset + end.length])
    lines = run.events.read_bytes().splitlines(keepends=True)
    (first, *_) = [number for number, line in enumerate(lines) if b"env_recovered" in line]
    run.events.write_bytes(b"".join(lines[: first + 1]))
    summarise(run.summary, memory_peak_mb=5000.0)
    manifest = json.loads(run.manifest.read_bytes())
    manifest["process"]["start_ticks"] += 1
    run.manifest.write_text(json.dumps(manifest))

    resumption = read_resumption(run)
    assert resumption.standings["a"].earlier == Earlier(1, 5000 << 20)
    (found,) = Play(resumption.config, resumption=resumption).run().environments
    assert (found.state, found.episodes, found.restarts, found.steps) == (EnvState.DONE, 3, 3, whole.steps)
    assert found.earlier_steps == whole.steps // 3
    assert found.to_json()["memory_peak_mb"] == 5000.0


def test_the_memory_of_one_that_nobody_had_looked_at_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Play, "_tick", lambda self, now: None)
    table = {"id": "a", "env": "misbehaving:Fine", "episodes": 1}
    settings = {"seed": 3, "run_dir": str(tmp_path), "runtime": "process"}
    (whole,) = Play(load_config({"global": settings, "environments": [table]})).run().environments
    assert whole.memory_peak_bytes > 0
