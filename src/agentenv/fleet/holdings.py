"""What an environment's folder still holds of its finished episodes, and what of them is lost.

A record that is lost is taken from the trace where that holds the whole episode; both carry the same digest. A trace
keeps the newest episodes only and writes nothing on a full disk; what lacks for the first reason is no damage.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from agentenv.errors import RunDamaged, counted
from agentenv.fleet.damage import REMEDY, misplaced, reading
from agentenv.fleet.expected import Expected
from agentenv.fleet.resuming import is_whole_record, record_of
from agentenv.fleet.rundir import EnvDir, RunState
from agentenv.fleet.trace import older
from agentenv.fleet.tracefile import Trace, read_trace
from agentenv.telemetry.records import read_records

_SHOWN = 5


@dataclass(frozen=True, slots=True)
class Holding:
    """One environment.

    Attributes:
        place: Its folder.
        records: Of its finished episodes, by number.
        trace: What can be read of it.
        lost: Numbers of episodes that were finished and of which nothing tells what came out.
        unheld: Numbers of those whose steps should be in the trace and are not, or not all.
        record_faults, trace_faults: What is damaged, in sentences that name the file.
        passed_over: Damaged lines among the records.
    """

    place: EnvDir
    records: dict[int, dict[str, Any]]
    trace: Trace
    lost: frozenset[int]
    unheld: frozenset[int]
    record_faults: tuple[str, ...]
    trace_faults: tuple[str, ...]
    passed_over: int


def read_holding(expected: Expected, env_id: str) -> Holding:
    """Read an environment's records and trace, and compare them with what should be there.

    Args:
        expected: What the run says of itself.
        env_id: The environment.
    """
    place = expected.place(env_id)
    records, passed_over, record_faults = _read_records(place)
    trace, trace_faults = _read_trace(place)
    told = expected.episodes.get(env_id)
    known = max(told or 0, max(records, default=-1) + 1)
    missing = [number for number in range(known) if number not in records]
    # A process that was killed may have written the end of an episode's trace and not its record any more.
    after = () if expected.state is RunState.RUNNING else (n for n in sorted(trace.episodes) if n >= known)
    for number in [*missing, *after]:
        if (record := record_of(trace.episodes.get(number))) is not None:
            records[number] = record
            known = max(known, number + 1)
    if not record_faults:
        record_faults = _judge_records(expected, place, known, missing, passed_over)
    lost = frozenset(range(known)) - records.keys()
    unheld = _unheld(place, trace, known)
    if not trace_faults:
        trace_faults = _judge_trace(expected, place, trace, unheld)
    return Holding(place, records, trace, lost, unheld, record_faults, trace_faults, passed_over)


def _read_records(place: EnvDir) -> tuple[dict[int, dict[str, Any]], int, tuple[str, ...]]:
    try:
        with reading(place.episodes, "the records of its episodes"):
            records, damaged = read_records(place.episodes)
    except RunDamaged as error:
        return {}, 0, (str(error),)
    whole = {record["episode"]: record for record in records if is_whole_record(record)}
    return whole, damaged, ()


def _read_trace(place: EnvDir) -> tuple[Trace, tuple[str, ...]]:
    try:
        for file in (place.trace, older(place.trace)):
            if wrong := misplaced(file, "the trace of its episodes"):
                raise RunDamaged(wrong)
        with reading(place.trace, "the trace of its episodes"):
            return read_trace(place.trace), ()
    except RunDamaged as error:
        return Trace({}, 0, 0), (str(error),)


def _judge_records(
    expected: Expected, place: EnvDir, known: int, missing: list[int], passed_over: int
) -> tuple[str, ...]:
    file, told = place.episodes, expected.episodes.get(place.env_id)
    if missing and not os.path.lexists(file):
        return (f"{file}: expected the records of {counted(known, 'episode')}, it is missing ({REMEDY})",)
    if missing:
        damage = f"; {counted(passed_over, 'damaged line')}" if passed_over else ""
        return (
            f"{file}: expected the records of {counted(known, 'episode')}; missing: {_numbers(missing)}{damage}"
            f" ({REMEDY})",
        )
    if passed_over and told is None and expected.state is not RunState.RUNNING:
        # A process that was killed leaves half a line; whether it was that of an episode nothing tells here.
        return (f"{file}: {counted(passed_over, 'damaged line')}, and nothing tells what was there ({REMEDY})",)
    return ()


def _unheld(place: EnvDir, trace: Trace, known: int) -> frozenset[int]:
    # Where there is an older file, there may have been one before that.
    first = min(trace.episodes, default=0) if os.path.lexists(older(place.trace)) else 0
    held = trace.episodes
    return frozenset(
        number
        for number in range(first, known)
        if number not in held or held[number].outcome is None or (trace.damaged and not held[number].whole)
    )


def _judge_trace(expected: Expected, place: EnvDir, trace: Trace, unheld: frozenset[int]) -> tuple[str, ...]:
    configured = expected.environments.get(place.env_id)
    file = place.trace
    there = os.path.lexists(file) or os.path.lexists(older(file))
    names = " and ".join(str(path) for path in trace.damaged_files) or str(file)
    if unheld and not there:
        if configured is None or configured.trace_mb == 0:
            return ()  # it may have been told to write none
        return (f"{file}: expected the trace of {counted(len(unheld), 'episode')}, it is missing ({REMEDY})",)
    if unheld:
        why = "it was cut, trace.old.bin beside it was removed, or the disk was full"
        why = counted(trace.damaged, "damaged place") if trace.damaged else why
        what = f"expected the steps of every finished episode; not whole: {_numbers(unheld)}; {why}"
        return (f"{names}: {what} ({REMEDY})",)
    if trace.damaged and expected.state is RunState.FINISHED:
        return (f"{names}: {counted(trace.damaged, 'damaged place')} ({REMEDY})",)
    return ()


def _numbers(numbers: Iterable[int]) -> str:
    listed = sorted(numbers)
    shown = ", ".join(map(str, listed[:_SHOWN])) + (", ..." if len(listed) > _SHOWN else "")
    return f"episode{'' if len(listed) == 1 else 's'} {shown}"
