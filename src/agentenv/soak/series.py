"""What is watched: each resource's name, unit and tolerance, and its series out of the samples.

Pure. An environment that was killed and started again begins a new life, with other processes and fresh memory; what
belongs to an environment is judged over its longest life.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any

from agentenv.errors import counted
from agentenv.soak.judge import Limit, Outcome, Verdict, judge

_MANY_MB = Limit(per_hour=1.0, least=1.0)
_COUNTS = Limit(per_hour=0.1, least=3.0)


@dataclass(frozen=True, slots=True)
class Resource:
    """One kind of thing that is measured.

    Attributes:
        key: Its name in the samples; those of an environment stand under ``env.<id>.``.
        label: For people.
        unit: MB are MiB.
        limit: What is tolerated.
        each: Whether every environment has one.
    """

    key: str
    label: str
    unit: str
    limit: Limit
    each: bool = False


RESOURCES = (
    Resource("memory", "memory of the host process", "MB", Limit(per_hour=1.0, least=2.0)),
    Resource("descriptors", "descriptors of the host process", "", _COUNTS),
    Resource("threads", "threads of the host process", "", _COUNTS),
    Resource("processes", "processes below it, zombies too", "", _COUNTS),
    Resource("cgroups", "control groups of the run", "", _COUNTS),
    Resource("run_dir", "disk: run directory", "MB", _MANY_MB),
    Resource("tmp", "disk: temporary files of the host process", "MB", _MANY_MB),
    # The logs of one environment hold 48 MiB. Slower output than this is seen as growth of the run directory.
    Resource("output", "output of environments, kept or not", "MB", Limit(per_hour=512.0, least=8.0)),
    Resource("p50", "step latency, median", "ms", Limit(0.01, 0.4, relative=True, fault=Outcome.SLOWER)),
    Resource("p99", "step latency, 99 %", "ms", Limit(0.02, 1.0, relative=True, fault=Outcome.SLOWER)),
    Resource("rate", "steps a second", "/s", Limit(0.01, 0.3, relative=True, falls=True, fault=Outcome.SLOWER)),
    Resource("memory", "memory of an environment", "MB", _MANY_MB, each=True),
    Resource("descriptors", "descriptors of an environment", "", _COUNTS, each=True),
    Resource("processes", "processes and threads of an environment", "", _COUNTS, each=True),
    Resource("tmp", "disk: /tmp and /dev/shm of an environment", "MB", _MANY_MB, each=True),
)


@dataclass(frozen=True, slots=True)
class Series:
    """One resource over the run.

    Attributes:
        resource: What it is.
        sandbox: Whose, where each has one; else empty.
        times_s: Seconds since the beginning.
        values: In the resource's unit.
        lives: How often its sandbox was there anew; 1 where nothing died.
    """

    resource: Resource
    sandbox: str
    times_s: list[float]
    values: list[float]
    lives: int = 1

    @property
    def key(self) -> str:
        """Unique in a report."""
        return f"env.{self.sandbox}.{self.resource.key}" if self.resource.each else self.resource.key

    def judge(self) -> Verdict:
        """What is to be said of it."""
        verdict = judge(self.times_s, self.values, self.resource.limit)
        if verdict.trend is None and self.lives > 1:
            return replace(
                verdict, reason=f"killed too often: its longest life has {counted(verdict.samples, 'sample')}"
            )
        return verdict


def split(samples: Sequence[Mapping[str, Any]]) -> list[Series]:
    """All series of a run, in the order of ``RESOURCES``; what was never measured has none.

    Args:
        samples: Records of ``Sample.to_record``, in order of time.
    """
    found = []
    for resource in RESOURCES:
        if not resource.each:
            found.append(_series(resource, "", samples))
            continue
        ids = dict.fromkeys(name for sample in samples for name in sample["sandboxes"])
        found += [_series(resource, name, _longest_life(samples, name)) for name in ids]
    lives = {name: len(_lives(samples, name)) for name in {one.sandbox for one in found if one.sandbox}}
    return [
        Series(one.resource, one.sandbox, one.times_s, one.values, lives.get(one.sandbox, 1))
        for one in found
        if one.values
    ]


def _series(resource: Resource, sandbox: str, samples: Sequence[Mapping[str, Any]]) -> Series:
    times, values = [], []
    for sample in samples:
        value = (sample["sandboxes"][sandbox] if resource.each else sample["host"]).get(resource.key)
        if isinstance(value, int | float) and math.isfinite(value):
            times.append(float(sample["t"]))
            values.append(float(value))
    return Series(resource, sandbox, times, values)


def _longest_life(samples: Sequence[Mapping[str, Any]], name: str) -> list[Mapping[str, Any]]:
    return max(_lives(samples, name), key=lambda life: life[-1]["t"] - life[0]["t"])


def _lives(samples: Sequence[Mapping[str, Any]], name: str) -> list[list[Mapping[str, Any]]]:
    there = [sample for sample in samples if name in sample["sandboxes"]]
    return [list(life) for _, life in groupby(there, key=lambda sample: sample["sandboxes"][name]["pid"])]
