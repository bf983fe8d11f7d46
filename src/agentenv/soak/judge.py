"""From the trend of a resource to a verdict, by rules that are the same for two minutes and for a week.

Something leaks when three things are true at once:

1. it grows faster than is tolerated, and the *lower* bound of the slope says so too;
2. over the time watched, the growth would be more than what short-lived disturbances amount to (``Limit.least``). What
   is tolerated an hour is therefore more in a short run and falls to ``Limit.per_hour`` in a long one;
3. it grows throughout: every quarter of the time lies above the one before. A cache that fills, a log that reached its
   cap or a neighbour that started in the middle do not.

Pure: numbers in, a verdict out.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from agentenv.errors import counted
from agentenv.soak.slope import Trend, fit

HOUR_S = 3600.0
MIN_SAMPLES = 16
_WARM_UP_SHARE = 0.2
_WARM_UP_MOST_S = 1800.0
# Of an even quarter's share of the growth, what each quarter must add at least.
_STEADINESS = 1 / 3


class Outcome(StrEnum):
    """What became of a resource; the values stand in the report."""

    LEAK = "leak"
    SLOWER = "slower"
    UNDECIDED = "undecided"
    STEADY = "steady"


FOUND = (Outcome.LEAK, Outcome.SLOWER)


@dataclass(frozen=True, slots=True)
class Limit:
    """What is tolerated of one kind of resource.

    Attributes:
        per_hour: Growth an hour; of the level (0.01 is one percent) where ``relative``.
        least: Growth over the whole time watched below which nothing is said; likewise.
        relative: Whether both are shares of the level.
        falls: Whether falling, not growing, is the fault.
        fault: The outcome when it is exceeded.
    """

    per_hour: float
    least: float
    relative: bool = False
    falls: bool = False
    fault: Outcome = Outcome.LEAK


@dataclass(frozen=True, slots=True)
class Verdict:
    """What is said of one series.

    Attributes:
        outcome: In a word.
        reason: In a sentence.
        trend: The line, in units a second; None where there are too few samples.
        limit_per_hour: Growth an hour that was tolerated, in the series' unit; None likewise.
        samples: How many were used.
        window_s: Seconds they span.
        begins_s: Seconds since the beginning at which they begin: what came before is warm-up.
    """

    outcome: Outcome
    reason: str
    trend: Trend | None = None
    limit_per_hour: float | None = None
    samples: int = 0
    window_s: float = 0.0
    begins_s: float = 0.0

    @property
    def excess(self) -> float:
        """The slope as a multiple of what is tolerated; how one orders verdicts of the same kind."""
        if self.trend is None or not self.limit_per_hour:
            return 0.0
        return abs(self.trend.slope) * HOUR_S / self.limit_per_hour

    def to_json(self) -> dict[str, Any]:
        """As plain data; slopes are per hour, bounds that do not exist are None."""
        trend = self.trend
        return {
            "outcome": self.outcome.value,
            "reason": self.reason,
            "slope_per_hour": None if trend is None else trend.slope * HOUR_S,
            "low_per_hour": None if trend is None else _finite(trend.low * HOUR_S),
            "high_per_hour": None if trend is None else _finite(trend.high * HOUR_S),
            "limit_per_hour": self.limit_per_hour,
            "level": None if trend is None else trend.level,
            "start": None if trend is None else trend.start,
            "end": None if trend is None else trend.end,
            "samples": self.samples,
            "window_s": self.window_s,
            "begins_s": self.begins_s,
        }


def warm_up_s(duration_s: float) -> float:
    """How long after the beginning nothing counts yet, seconds."""
    return min(_WARM_UP_SHARE * duration_s, _WARM_UP_MOST_S)


def judge(times_s: Sequence[float], values: Sequence[float], limit: Limit) -> Verdict:
    """Judge one series.

    Args:
        times_s: Seconds since the beginning of the run, ascending; shape (n,).
        values: Shape (n,), finite.
        limit: What is tolerated.
    """
    if not times_s:
        return Verdict(Outcome.UNDECIDED, "no samples")
    starts = times_s[0] + warm_up_s(times_s[-1] - times_s[0])
    first = next(i for i, time_s in enumerate(times_s) if time_s >= starts)
    times, kept = times_s[first:], values[first:]
    window_s = times[-1] - times[0]
    if len(kept) < MIN_SAMPLES or window_s <= 0:
        reason = f"{counted(len(kept), 'sample')} after the warm-up, {MIN_SAMPLES} are needed: run longer"
        return Verdict(Outcome.UNDECIDED, reason, samples=len(kept), window_s=window_s, begins_s=times[0])
    trend = fit(times, kept)
    unit = abs(trend.level) if limit.relative else 1.0
    tolerated = max(limit.per_hour, limit.least * HOUR_S / window_s) * unit
    outcome, reason = _decide(trend, tolerated / HOUR_S, window_s, limit)
    return Verdict(outcome, reason, trend, tolerated, len(kept), window_s, times[0])


def _decide(trend: Trend, tolerated: float, window_s: float, limit: Limit) -> tuple[Outcome, str]:
    """``tolerated`` in units a second."""
    sign = -1.0 if limit.falls else 1.0
    word = "falls" if limit.falls else "grows"
    slope = sign * trend.slope
    low, high = (trend.low, trend.high) if sign > 0 else (-trend.high, -trend.low)
    if low > tolerated:
        share = slope * window_s / 4
        rises = [sign * (b - a) for a, b in zip(trend.quarters[:-1], trend.quarters[1:], strict=True)]
        if min(rises) >= _STEADINESS * share:
            return limit.fault, f"{word} throughout"
        if rises[-1] < _STEADINESS / 2 * share:
            return Outcome.STEADY, "grew earlier and does no more" if sign > 0 else "fell earlier and does no more"
        return Outcome.UNDECIDED, f"{word} unevenly: run longer"
    if high <= tolerated:
        return Outcome.STEADY, f"{word} by no more than is tolerated"
    return Outcome.UNDECIDED, "the bounds hold both a fault and none: run longer"


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
