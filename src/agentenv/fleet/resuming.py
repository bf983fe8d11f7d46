"""From the folder of a run whose process died to the state in which each of its environments goes on.

The truth about a finished episode is its record in ``episodes.jsonl``, or the end of its trace where the record was
lost. Of the unfinished one, the recorded actions are executed again and every answer is compared; then it is played
on. Seeds are derived, the policy's memory is in the trace. Reads only; a damaged file costs no more than it held.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from agentenv.config import Config, EnvironmentConfig
from agentenv.errors import Cause, CauseKind, Owner, RunDamaged, counted
from agentenv.fleet.damage import misplaced, reading
from agentenv.fleet.earlier import Earlier, read_earlier
from agentenv.fleet.origin import config_of, mistake, read_point
from agentenv.fleet.progress import EnvState, Outcome, Progress
from agentenv.fleet.rundir import EnvDir, RunDir, RunState, read_object
from agentenv.fleet.seeds import Seeds
from agentenv.fleet.summary import EXIT_CODES
from agentenv.fleet.tracefile import EpisodeTrace, Rows, Trace, read_trace
from agentenv.telemetry.events import Event, read_events
from agentenv.telemetry.records import read_records

_WHOLE = (Outcome.TERMINATED.value, Outcome.TRUNCATED.value)
_NOT_FINITE = ("NaN", "Infinity", "-Infinity")


@dataclass(frozen=True, slots=True)
class Beginning:
    """Where a player begins.

    Attributes:
        rows: The recorded part of the unfinished episode, or None to begin it at its reset.
        attempt: How often that episode was begun before.
        trace_end: Where the whole chunks of the trace end, in bytes.
        policy_state: What the policy remembered after a finished episode, or None.
        draws: Steps of the finished episodes after that one.
        all_draws: Steps of all finished episodes.
        environment_state: A snapshot of the environment at its row ``environment_row``, from which it could go on
            without executing the rows before again; nothing provides one yet.
        environment_row: The row of that snapshot.
    """

    rows: Rows | None = None
    attempt: int = 0
    trace_end: int = 0
    policy_state: bytes | None = None
    draws: int = 0
    all_draws: int = 0
    environment_state: bytes | None = None
    environment_row: int = 0


@dataclass(slots=True)
class Standing:
    """One environment of a run that is resumed.

    Attributes:
        records: Its finished episodes, by number from 0 without a gap.
        lost: Those of them whose record was lost and is known from the trace.
        beginning: Where it goes on; None where it has ended, and for a command.
        state: How it ended, or None.
        cause: Why, where it failed.
        exit_code: Of a command.
        steps: Steps of all recorded episodes, unfinished ones of a failed environment included.
        earlier: Its restarts and memory so far.
    """

    records: list[dict[str, Any]] = field(default_factory=list)
    lost: list[dict[str, Any]] = field(default_factory=list)
    beginning: Beginning | None = None
    state: EnvState | None = None
    cause: Cause | None = None
    exit_code: int | None = None
    steps: int = 0
    earlier: Earlier = field(default_factory=Earlier)

    def fill(self, progress: Progress) -> None:
        """Bring the progress of this environment to where it stands."""
        progress.episodes = len(self.records)
        progress.returns = [float(record["return"]) for record in self.records]
        progress.lengths = sum(int(record["length"]) for record in self.records)
        progress.steps = max(self.steps, progress.lengths)
        progress.earlier_steps = progress.steps
        progress.restarts, progress.memory_peak_bytes = self.earlier.restarts, self.earlier.memory_peak_bytes
        progress.cause, progress.exit_code = self.cause, self.exit_code
        if self.state is not None:
            progress.state = self.state


@dataclass(frozen=True, slots=True)
class Resumption:
    """A run that can go on.

    Attributes:
        run: Its folder.
        config: Its configuration, with the root seed in it.
        cwd: Where its command was started.
        manifest: Its manifest, whole.
        standings: Its environments by id, in the order of the configuration.
        warnings: What is worth knowing, in sentences.
    """

    run: RunDir
    config: Config
    cwd: Path
    manifest: dict[str, Any]
    standings: dict[str, Standing]
    warnings: tuple[str, ...]


def refuse_running(run: RunDir) -> None:
    """Raise where a run's process lives.

    Raises:
        ConfigError: It does.
    """
    if run.state() is RunState.RUNNING:
        process = (read_object(run.manifest) or {}).get("process") or {}
        message = f"expected a run that was interrupted, this one is running (process {process.get('pid')})"
        raise mistake(run, message, "wait for it, or end it")


def ended_as(run: RunDir) -> tuple[str, int] | None:
    """The state and the exit code of a run that has ended in its own time, so that there is nothing to go on with.

    None where it was interrupted, or where its summary is missing or damaged.
    """
    state = (read_object(run.summary) or {}).get("state")
    return (state, EXIT_CODES[state]) if isinstance(state, str) and state in EXIT_CODES else None


def read_resumption(run: RunDir) -> Resumption:
    """Find out where every environment of a run stands.

    Raises:
        ConfigError: The run cannot be resumed; says why.
        RunDamaged: A file or folder of it is something else than it should be.
    """
    refuse_running(run)
    _refuse_misplaced(run)
    point = read_point(run)
    config = config_of(run, point)
    root = config.global_.seed
    assert root is not None  # put there from the manifest
    manifest = read_object(run.manifest)
    warnings: list[str] = []
    if manifest is None and os.path.lexists(run.manifest):
        warnings.append("manifest.json is damaged: written anew from the checked copy")
    if os.path.lexists(run.summary) and read_object(run.summary) is None:
        warnings.append("summary.json is damaged: written anew at the end")
    # What was written at the beginning is checked in the copy; the parts that were resumed are only in the file.
    manifest = {**(manifest or {}), **point["manifest"]}
    with reading(run.events, "the run's events"):
        events, damaged = read_events(run.events)
    if damaged:
        warnings.append(f"events.jsonl: {counted(damaged, 'damaged line')} passed over")
    seeds, earlier, standings = Seeds(root), read_earlier(run, events), {}
    for environment in config.expand():
        place = EnvDir(environment.id, run.path / "environments" / environment.id)
        if wrong := misplaced(place.path, "the folder of an environment", folder=True):
            raise RunDamaged(wrong)
        standings[environment.id] = standing = Standing(earlier=earlier.get(environment.id, Earlier()))
        if environment.command is None:
            warnings += _read_episodes(place, environment, seeds, standing)
        _read_end(environment, events, standing)
        if environment.command is not None and standing.state is None and place.path.is_dir():
            warnings.append(f"{environment.id}: the command had not ended and runs again from its start")
    return Resumption(run, config, Path(point["cwd"]), manifest, standings, tuple(warnings))


def _refuse_misplaced(run: RunDir) -> None:
    """Raise where something is a folder that will be written to as a file, or the other way round.

    Raises:
        RunDamaged: So it is.
    """
    for path, what in (
        (run.manifest, "the run's manifest"),
        (run.config, "the run's configuration"),
        (run.summary, "the run's summary"),
        (run.events, "the run's events"),
    ):
        if wrong := misplaced(path, what):
            raise RunDamaged(wrong)


def find_beginning(
    records: Sequence[Mapping[str, Any]], trace: Trace, *, wanted: int, seed_of: Mapping[int, int] | None = None
) -> tuple[list[dict[str, Any]], list[dict[str, Any]], Beginning]:
    """Where an environment goes on, from its records and its trace.

    Args:
        records: All records of ``episodes.jsonl`` that are whole, in order.
        trace: What its trace holds.
        wanted: Episodes to play.
        seed_of: Seeds that episodes must have been reset with, where that is known.

    Returns:
        The finished episodes' records by number; those that only the trace tells of; and the beginning.
    """
    told = {r["episode"]: dict(r) for r in records if is_whole_record(r)}
    finished: list[dict[str, Any]] = []
    lost: list[dict[str, Any]] = []
    while len(finished) < wanted:
        number = len(finished)
        record = told.get(number)
        if record is None:
            record = record_of(trace.episodes.get(number))
            if record is None:
                break
            lost.append(record)
        finished.append(record)
    count = len(finished)
    lengths = [int(record["length"]) for record in finished]
    state, after = None, 0
    for number in range(count - 1, -1, -1):
        held = trace.episodes.get(number)
        state = None if held is None else _try_policy_state(held)
        if state is not None:
            after = number + 1
            break
    current = trace.episodes.get(count)
    if current is not None and seed_of is not None and current.seed != seed_of.get(count, current.seed):
        current = None
    rows = None if current is None or not current.rows else _try_rows(current)
    beginning = Beginning(
        rows=rows,
        attempt=0 if current is None else current.attempt,
        trace_end=trace.end,
        policy_state=state,
        draws=sum(lengths[after:]),
        all_draws=sum(lengths),
    )
    return finished, lost, beginning


def _read_episodes(place: EnvDir, environment: EnvironmentConfig, seeds: Seeds, standing: Standing) -> list[str]:
    warnings = []
    with reading(place.episodes, "the records of its episodes"):
        records, damaged = read_records(place.episodes)
    with reading(place.trace, "the trace of its episodes"):
        trace = read_trace(place.trace)
    for name, count in (("episodes.jsonl", damaged), ("trace.bin", trace.damaged)):
        if count:
            warnings.append(f"{environment.id}: {name}: {counted(count, 'damaged place')} passed over")
    records = [record for record in records if record.get("env_id", environment.id) == environment.id]
    finished, lost, beginning = find_beginning(
        records,
        trace,
        wanted=environment.episodes,
        seed_of={n: seeds.environment(environment.id, seed=environment.seed, episode=n) for n in trace.episodes},
    )
    for record in lost:
        record["env_id"] = environment.id
    standing.records, standing.lost = finished, lost
    standing.steps = sum({r["episode"]: int(r["length"]) for r in [*records, *finished] if _has_numbers(r)}.values())
    if len(finished) >= environment.episodes:
        standing.state = EnvState.DONE
    else:
        standing.beginning = beginning
    return warnings


def _read_end(environment: EnvironmentConfig, events: Sequence[Event], standing: Standing) -> None:
    """Whether it ended, from the last event that says so."""
    for event in events:
        if event.env_id != environment.id:
            continue
        if event.kind == "env_failed":
            standing.state = EnvState.FAILED
            standing.cause = _cause(event) or standing.cause
        elif event.kind == "env_done" and environment.command is not None:
            standing.state = EnvState.DONE
        elif event.kind in ("env_started", "env_interrupted") and standing.state is EnvState.FAILED:
            standing.state = standing.cause = None
        if event.kind in ("env_done", "env_failed") and type(code := event.fields.get("exit_code")) is int:
            standing.exit_code = code
    if standing.state is not None:
        standing.beginning = None
    else:
        standing.steps = 0  # those of the unfinished episode are taken again and counted then


def _cause(event: Event) -> Cause | None:
    try:
        return Cause(
            CauseKind(str(event.fields["cause"])), Owner(str(event.fields["owner"])), str(event.fields["detail"])
        )
    except (KeyError, ValueError):
        return None


def is_whole_record(record: Mapping[str, Any]) -> bool:
    """Whether a record is one of a finished episode, with all its numbers."""
    return _has_numbers(record) and record.get("outcome") in _WHOLE


def _has_numbers(record: Mapping[str, Any]) -> bool:
    total = record.get("return")
    # An infinite return, or none that is a number, is written as one of these; float() reads them.
    is_number = (isinstance(total, int | float) and not isinstance(total, bool)) or total in _NOT_FINITE
    return is_number and all(type(record.get(key)) is int for key in ("episode", "length", "seed"))


def record_of(held: EpisodeTrace | None) -> dict[str, Any] | None:
    """The record of a finished episode, from its trace; None where that does not hold it whole."""
    if held is None or held.outcome not in _WHOLE or not held.whole or not held.rows:
        return None
    rows = _try_rows(held)
    if rows is None:
        return None
    total = 0.0
    for reward in rows.rewards.tolist():
        total += reward  # in the order of the steps, as it was added up then
    return {
        "episode": held.episode,
        "seed": held.seed,
        "return": total,
        "length": len(rows) - 1,
        "duration_s": None,
        "outcome": held.outcome,
        "digest": held.digest,
    }


def _try_rows(held: EpisodeTrace) -> Rows | None:
    try:
        return held.read()
    except (OSError, ValueError, zlib.error):
        return None


def _try_policy_state(held: EpisodeTrace) -> bytes | None:
    try:
        return held.policy_state()
    except (OSError, ValueError, zlib.error):
        return None
