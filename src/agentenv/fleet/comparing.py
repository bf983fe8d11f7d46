"""Two runs on the disk, compared: reads their folders for ``agentenv.fleet.differences``."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from agentenv.fleet.differences import (
    Difference,
    EpisodeRecord,
    compare_environments,
    compare_episodes,
    compare_rows,
)
from agentenv.fleet.progress import Outcome
from agentenv.fleet.rundir import EnvDir, RunDir, read_object
from agentenv.fleet.tracefile import read_trace
from agentenv.telemetry.records import read_records

_WHOLE = (Outcome.TERMINATED.value, Outcome.TRUNCATED.value)


@dataclass(frozen=True, slots=True)
class Verdict:
    """What comparing two runs came to.

    Attributes:
        differences: The first one of each environment, in the order of ids; empty where the runs are the same.
        environments, episodes: How many were compared.
        conditions: In what the runs were made otherwise, in sentences; may explain a difference, and is none itself.
        damaged: Records of both runs that could not be read.
    """

    differences: tuple[Difference, ...]
    environments: int
    episodes: int
    conditions: tuple[str, ...]
    damaged: int


def compare_runs(first: RunDir, second: RunDir, *, env_id: str | None = None, with_info: bool = True) -> Verdict:
    """Compare the finished episodes of two runs.

    Args:
        first, second: The runs.
        env_id: Only this environment; None compares all.
        with_info: Whether a difference in infos alone counts.

    Raises:
        OSError: A file exists but cannot be read.
    """
    ours = {place.env_id: place for place in first.environments() if env_id in (None, place.env_id)}
    theirs = {place.env_id: place for place in second.environments() if env_id in (None, place.env_id)}
    found: list[Difference] = []
    if (lone := compare_environments([*ours], [*theirs])) is not None:
        found.append(lone)
    episodes = damaged = 0
    for name in sorted(ours.keys() & theirs.keys()):
        one, lost = _read_episodes(ours[name])
        other, lost_too = _read_episodes(theirs[name])
        damaged += lost + lost_too
        episodes += len(one.keys() & other.keys())
        difference = _compare(name, ours[name], theirs[name], one, other, with_info=with_info)
        if difference is not None:
            found.append(difference)
    conditions = _conditions(read_object(first.manifest) or {}, read_object(second.manifest) or {})
    return Verdict(tuple(found), len(ours.keys() & theirs.keys()), episodes, conditions, damaged)


def _compare(
    env_id: str,
    ours: EnvDir,
    theirs: EnvDir,
    one: dict[int, EpisodeRecord],
    other: dict[int, EpisodeRecord],
    *,
    with_info: bool,
) -> Difference | None:
    difference = compare_episodes(env_id, one, other)
    traces = None
    while (
        difference is not None and difference.what == ("episode",) and difference.episode in one.keys() & other.keys()
    ):
        number = difference.episode
        assert number is not None
        traces = traces or (read_trace(ours.trace).episodes, read_trace(theirs.trace).episodes)
        held = [trace.get(number) for trace in traces]
        if held[0] is None or held[1] is None or not (held[0].whole and held[1].whole):
            detail = f"{difference.detail}; its steps are not kept in both runs, so that where they part is not known"
            return Difference(env_id, number, None, difference.what, detail)
        try:
            first, second = held[0].read(), held[1].read()
        except (ValueError, zlib.error) as error:
            return Difference(env_id, number, None, difference.what, f"{difference.detail}; {error}")
        placed = compare_rows(env_id, number, held[0].parts, first, second, with_info=with_info)
        if placed is not None:
            return placed
        # Only infos differ, and they do not count: on with the episodes after this one.
        one.pop(number)
        other.pop(number)
        difference = compare_episodes(env_id, one, other)
    return difference


def _read_episodes(place: EnvDir) -> tuple[dict[int, EpisodeRecord], int]:
    records, damaged = read_records(place.episodes)
    found = {}
    for record in records:
        try:
            if record["outcome"] in _WHOLE:
                found[int(record["episode"])] = EpisodeRecord(
                    str(record.get("digest", "")),
                    int(record["seed"]),
                    int(record["length"]),
                    float(record["return"]),
                    str(record["outcome"]),
                )
        except (KeyError, TypeError, ValueError):
            damaged += 1
    return found, damaged


def _conditions(first: Mapping[str, Any], second: Mapping[str, Any]) -> tuple[str, ...]:
    found = []
    for name, keys in (
        ("root seed", ("seeds", "root")),
        ("configuration", ("config", "digest")),
        ("git commit", ("config", "git", "commit")),
        ("uncommitted changes", ("config", "git", "dirty")),
        ("runtime", ("runtime", "name")),
        ("host", ("host", "name")),
        ("processor", ("host", "cpu_model")),
    ):
        a, b = _get(first, keys), _get(second, keys)
        if a != b:
            found.append(f"{name}: {_short(a)} against {_short(b)}")
    old, new = first.get("versions") or {}, second.get("versions") or {}
    for name in sorted(old.keys() | new.keys()):
        if old.get(name) != new.get(name):
            found.append(f"{name}: {old.get(name)} against {new.get(name)}")
    return tuple(found)


def _get(manifest: Mapping[str, Any], keys: tuple[str, ...]) -> Any:
    value: Any = manifest
    for key in keys:
        value = value.get(key) if isinstance(value, Mapping) else None
    return value


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 40 else text[:12]
