"""Two runs on the disk, compared: reads their folders for ``agentenv.fleet.differences``.

They are the same only where everything is there that they recorded: what was lost cannot be compared.
"""

from __future__ import annotations

import os
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
from agentenv.fleet.expected import read_expected
from agentenv.fleet.holdings import Holding, read_holding
from agentenv.fleet.rundir import RunDir, read_object


@dataclass(frozen=True, slots=True)
class Verdict:
    """What comparing two runs came to.

    Attributes:
        differences: The first one of each environment, in the order of ids; empty where the runs are the same.
        faults: What was lost of what the runs recorded, in sentences that name the file: with any, nobody knows whether
            they are the same.
        environments, episodes: How many were compared.
        conditions: In what the runs were made otherwise, in sentences; may explain a difference, and is none itself.
        unknown: Why that is not known of a run, likewise.
        damaged: Records of both runs that could not be read.
    """

    differences: tuple[Difference, ...]
    faults: tuple[str, ...]
    environments: int
    episodes: int
    conditions: tuple[str, ...]
    unknown: tuple[str, ...]
    damaged: int

    @property
    def same(self) -> bool:
        """Whether everything was compared, there was something, and nothing differs."""
        return not self.differences and not self.faults and self.episodes > 0


def compare_runs(first: RunDir, second: RunDir, *, env_id: str | None = None, with_info: bool = True) -> Verdict:
    """Compare the finished episodes of two runs.

    Args:
        first, second: The runs.
        env_id: Only this environment; None compares all.
        with_info: Whether a difference in infos alone counts.

    Raises:
        RunDamaged: The folder of a run's environments cannot be read.
    """
    both = (read_expected(first), read_expected(second))
    ids: list[list[str]] = []
    found: list[Difference] = []
    faults: list[str] = []
    for expected in both:
        there = {place.env_id for place in expected.run.environments()}
        missing = {name: text for name, text in expected.missing().items() if env_id in (None, name)}
        faults += missing.values()
        ids.append([name for name in {*there, *missing} if env_id in (None, name)])
    if (lone := compare_environments(*ids)) is not None:
        found.append(lone)
    environments = episodes = damaged = 0
    for name in sorted({*ids[0]} & {*ids[1]}):
        if not all(expected.place(name).path.is_dir() for expected in both):
            continue  # that was told
        held = [read_holding(expected, name) for expected in both]
        for one in held:
            damaged += one.passed_over
            faults += [*one.record_faults, *one.trace_faults]
        episodes += (count := len(held[0].records.keys() & held[1].records.keys()))
        environments += count > 0
        difference = _compare(name, *held, with_info=with_info)
        if difference is not None:
            found.append(difference)
    made = [_made(run) for run in (first, second)]
    conditions = _conditions(*(manifest for manifest, _ in made)) if all(manifest for manifest, _ in made) else ()
    unknown = tuple(text for _, text in made if text)
    return Verdict(tuple(found), tuple(faults), environments, episodes, conditions, unknown, damaged)


def _compare(env_id: str, ours: Holding, theirs: Holding, *, with_info: bool) -> Difference | None:
    lost = ours.lost | theirs.lost
    one, other = (
        {number: _episode(record) for number, record in held.records.items() if number not in lost}
        for held in (ours, theirs)
    )
    difference = compare_episodes(env_id, one, other)
    while (
        difference is not None and difference.what == ("episode",) and difference.episode in one.keys() & other.keys()
    ):
        number = difference.episode
        assert number is not None
        held = [holding.trace.episodes.get(number) for holding in (ours, theirs)]
        if held[0] is None or held[1] is None or not (held[0].whole and held[1].whole):
            detail = f"{difference.detail}; its steps are not kept in both runs, so that where they part is not known"
            return Difference(env_id, number, None, difference.what, detail)
        try:
            first, second = held[0].read(), held[1].read()
        except (OSError, ValueError, zlib.error) as error:
            return Difference(env_id, number, None, difference.what, f"{difference.detail}; {error}")
        placed = compare_rows(env_id, number, held[0].parts, first, second, with_info=with_info)
        if placed is not None:
            return placed
        if with_info:
            detail = f"{difference.detail}; every step that is kept is the same: a record was changed afterwards"
            return Difference(env_id, number, None, ("digest",), detail)
        # Only infos differ, and they do not count: on with the episodes after this one.
        one.pop(number)
        other.pop(number)
        difference = compare_episodes(env_id, one, other)
    return difference


def _episode(record: Mapping[str, Any]) -> EpisodeRecord:
    return EpisodeRecord(
        str(record.get("digest") or ""),
        int(record["seed"]),
        int(record["length"]),
        float(record["return"]),
        str(record["outcome"]),
    )


def _made(run: RunDir) -> tuple[Mapping[str, Any], str]:
    """How a run was made, by the checked copy of its manifest where there is one; or why that is not known."""
    checked = run.resume_point().get("manifest")
    found = checked if isinstance(checked, dict) else read_object(run.manifest)
    if found:
        return found, ""
    state = "damaged" if os.path.lexists(run.manifest) else "missing"
    return {}, f"{run.manifest}: {state}, and so are its checked copies: how this run was made is not known"


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
    old, new = _mapping(first.get("versions")), _mapping(second.get("versions"))
    for name in sorted(old.keys() | new.keys()):
        if old.get(name) != new.get(name):
            found.append(f"{name}: {old.get(name)} against {new.get(name)}")
    return tuple(found)


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _get(manifest: Mapping[str, Any], keys: tuple[str, ...]) -> Any:
    value: Any = manifest
    for key in keys:
        value = value.get(key) if isinstance(value, Mapping) else None
    return value


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 40 else text[:12]
