"""What the earlier processes of a run left to be counted on with, for the summary of the one that goes on.

Steps and returns are in the records of the episodes. Restarts are events. Memory was seen by the process that died and
is known only where something wrote it down: the summary of a part that was interrupted, the event of an environment
that ended, the report of a crash. Nothing is guessed; damaged files count for nothing.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from agentenv.fleet.crashes import read_crashes
from agentenv.fleet.rundir import RunDir, read_object
from agentenv.telemetry.events import Event


@dataclass(frozen=True, slots=True)
class Earlier:
    """One environment, in all processes of its run before this one.

    Attributes:
        restarts: Times its process died and was made up for.
        memory_peak_bytes: The most memory seen; 0 where nothing tells.
    """

    restarts: int = 0
    memory_peak_bytes: int = 0


def read_earlier(run: RunDir, events: Sequence[Event]) -> dict[str, Earlier]:
    """What is known, by id of the environment.

    Args:
        run: The folder of the run.
        events: Its events.
    """
    restarts = Counter(str(event.env_id) for event in events if event.kind == "env_recovered")
    peaks: dict[str, float] = {}

    def saw(env_id: object, memory: object, unit: float = 1.0) -> None:
        if isinstance(memory, int | float) and not isinstance(memory, bool) and math.isfinite(memory):
            peaks[str(env_id)] = max(peaks.get(str(env_id), 0.0), memory * unit)

    for event in events:
        saw(event.env_id, event.fields.get("memory_peak_mb"), 2**20)
    for report in read_crashes(run):
        saw(report.env_id, (report.usage or {}).get("memory_bytes"))
    for record in _summarised(run):
        env_id = str(record.get("id"))
        saw(env_id, record.get("memory_peak_mb"), 2**20)
        if type(count := record.get("restarts")) is int:
            restarts[env_id] = max(restarts[env_id], count)
    return {env_id: Earlier(restarts[env_id], int(peaks.get(env_id, 0.0))) for env_id in {*restarts, *peaks}}


def _summarised(run: RunDir) -> Iterator[Mapping[str, Any]]:
    """The environments as the summaries of interrupted parts tell of them."""
    for path in (run.summary, run.earlier_summary):
        listed = (read_object(path) or {}).get("environments")
        if isinstance(listed, list):
            yield from (record for record in listed if isinstance(record, dict))
