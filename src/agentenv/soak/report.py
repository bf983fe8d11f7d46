"""What a soak found, as one record: a verdict for each resource and one for the run."""

from __future__ import annotations

import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from agentenv.soak.judge import FOUND, Outcome, Verdict
from agentenv.soak.series import Series, split
from agentenv.telemetry.records import read_records

_WORST_FIRST = (Outcome.LEAK, Outcome.SLOWER, Outcome.UNDECIDED, Outcome.STEADY)


@dataclass(frozen=True, slots=True)
class Judged:
    """A series and what is said of it."""

    series: Series
    verdict: Verdict

    def to_json(self) -> dict[str, Any]:
        """As plain data, without the points."""
        return {
            "key": self.series.key,
            "resource": self.series.resource.label,
            "unit": self.series.resource.unit,
            "environment": self.series.sandbox or None,
            "lives": self.series.lives,
            **self.verdict.to_json(),
        }


@dataclass(frozen=True, slots=True)
class Report:
    """A soak and its verdicts.

    Attributes:
        run_dir: Its folder.
        config: Name of the configuration.
        duration_s: Seconds of stepping.
        wanted_s: Seconds it was asked to last.
        chaos_per_minute: Kills a minute that were asked for.
        steps, kills, losses, failures, last_failure: As in ``driver.Tally``.
        samples: Looks that were recorded.
        lost_samples: Looks that could not be written, or were damaged.
        number: The signal that ended it, or None.
        error: Why it ended early, where something failed for good; else empty.
        resources: All series with their verdicts.
        plot: The picture, or None.
        plot_note: Why there is none; else empty.
    """

    run_dir: Path
    config: str
    duration_s: float
    wanted_s: float
    chaos_per_minute: float
    steps: int
    kills: int
    losses: int
    failures: int
    last_failure: str
    samples: int
    lost_samples: int
    number: int | None
    error: str
    resources: Sequence[Judged] = field(repr=False)
    plot: Path | None = None
    plot_note: str = ""

    @property
    def faults(self) -> list[Judged]:
        """What leaks or becomes slower, the worst first."""
        return worst_first(one for one in self.resources if one.verdict.outcome in FOUND)

    @property
    def verdict(self) -> str:
        """``leak``, ``slower``, ``failed``, ``undecided`` or ``steady``, for the whole run."""
        outcomes = {one.verdict.outcome for one in self.resources}
        for outcome in FOUND:
            if outcome in outcomes:
                return outcome.value
        if self.failures or self.error:
            return "failed"
        return (Outcome.STEADY if outcomes == {Outcome.STEADY} else Outcome.UNDECIDED).value

    @property
    def exit_code(self) -> int:
        """1 for a fault or a failure, else 128 plus the signal's number when one ended it, else 0."""
        if self.verdict in ("leak", "slower", "failed"):
            return 1
        return 0 if self.number is None else 128 + self.number

    def to_json(self) -> dict[str, Any]:
        """As plain data."""
        return {
            "verdict": self.verdict,
            "exit_code": self.exit_code,
            "faults": [one.series.key for one in self.faults],
            "state": "finished" if self.number is None and not self.error else "interrupted",
            "signal": None if self.number is None else signal.Signals(self.number).name,
            "error": self.error or None,
            "config": self.config,
            "run_dir": str(self.run_dir),
            "plot": None if self.plot is None else str(self.plot),
            "duration_s": round(self.duration_s, 3),
            "wanted_s": self.wanted_s,
            "samples": self.samples,
            "lost_samples": self.lost_samples,
            "steps": self.steps,
            "chaos_per_minute": self.chaos_per_minute,
            "kills": self.kills,
            "losses": self.losses,
            "failures": self.failures,
            "last_failure": self.last_failure or None,
            "resources": [one.to_json() for one in self.resources],
        }


def judge_all(samples: Sequence[Mapping[str, Any]]) -> list[Judged]:
    """Judge every series that the samples hold."""
    return [Judged(series, series.judge()) for series in split(samples)]


def read_samples(path: Path) -> tuple[list[dict[str, Any]], int]:
    """The samples of a run, and how many lines were damaged.

    Raises:
        OSError: The file exists but cannot be read.
    """
    return read_records(path)


def worst_first(judged: Any) -> list[Judged]:
    """Ordered by outcome, then by how far each exceeds what is tolerated."""
    return sorted(judged, key=lambda one: (_WORST_FIRST.index(one.verdict.outcome), -one.verdict.excess))
