"""Choosing how eagerly the kernel runs many environments, by trying.

The host wakes one environment after another. Scheduled as usual, each may push the host off its core, which then
comes back for the next: two switches for a step that needs one. As batch tasks (sched(7), SCHED_BATCH) they wait
until the host sleeps, and run one after another. But a batch task waits behind everybody else's work too, so on a busy
machine this costs more than it saves. Which is better changes while a run goes on, so both are timed now and then
and the better one is kept. A pure function of the durations it is told; it asks nobody and sets nothing.
"""

from __future__ import annotations

from enum import Enum

_TRIAL_STEPS = 64
_REVIEW_EVERY = 4096
_BETTER = 0.95
LEAST_GROUPS = 4


class Pace(Enum):
    """How environments are scheduled."""

    EAGER = "eager"
    """As usual: a woken environment may interrupt whoever runs."""
    PATIENT = "patient"
    """As a batch task: it waits for a free core."""


class Pacing:
    """Alternates between keeping a pace and trying the other one.

    Attributes:
        pace: What should be in force from the next step on.
    """

    def __init__(self) -> None:
        self.pace = Pace.EAGER
        self._kept_s: float | None = None
        self._trying = False
        self._left = _TRIAL_STEPS
        self._sum_s = 0.0

    def record(self, duration_s: float) -> bool:
        """Count one step; True when ``pace`` has changed and must be put into force.

        The pace in force is timed, then the other one; the better is kept and both are timed again after a while.
        """
        self._sum_s += duration_s
        self._left -= 1
        if self._left:
            return False
        mean_s, self._sum_s, self._left = self._sum_s / _TRIAL_STEPS, 0.0, _TRIAL_STEPS
        if self._kept_s is None:
            self._kept_s, self._trying = mean_s, True
            self.pace = _other(self.pace)
            return True
        if self._trying:
            worse = mean_s > self._kept_s * _BETTER
            self._trying = False
            self._left = _REVIEW_EVERY
            if worse:
                self.pace = _other(self.pace)
            return worse
        # The long stretch is over: time the pace in force afresh before trying the other.
        self._kept_s = None
        return False


def _other(pace: Pace) -> Pace:
    return Pace.PATIENT if pace is Pace.EAGER else Pace.EAGER
