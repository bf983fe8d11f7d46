"""Choosing how many environments are woken and scheduled, by trying.

The host wakes one environment after another. Scheduled as usual, each may push the host off its core, which then
comes back for the next: two switches for a step that needs one. As batch tasks (sched(7), SCHED_BATCH) they wait
until the host sleeps, and run one after another. Or nobody sleeps: all look at shared memory and give way in turn,
which passes a core on for a fraction of what it costs to wake a sleeper, but takes time from a trainer that thinks
between steps, and from everybody else on the machine, so all of them together are then given the share of two processes
a processor. Where each has a control group for its own share, the kernel takes the longer to come to whose turn it is
the more there are: with 50 on two processors it is better to sleep. Which is best changes while a run goes on, so all
are timed now and then and the best is kept. A pure function of the durations it is told; it asks nobody and sets
nothing.
"""

from __future__ import annotations

from enum import Enum

from agentenv.wire.slot import Op

_SETTLING_STEPS = 192
_TRIAL_STEPS = 64
_COUNTED = 56
_REVIEW_EVERY = 32768
# After a change the next review comes soon. At first much else goes on, such as finding out how states are saved and
# the kernel's spreading of new processes; and what is fast when it is tried may become slow, as the kernel's accounts
# of who has had how much grow apart.
_FIRST_REVIEW = 4096
_FIRST_REVIEW_S, _LEAST = 0.5, 512
_FORGIVEN = 0.25
_BETTER = 0.95
LEAST_GROUPS = 2


class Pace(Enum):
    """How environments are scheduled and wait; the value is the request that says so."""

    EAGER = Op.EAGER
    """As usual: a woken environment may interrupt whoever runs."""
    PATIENT = Op.PATIENT
    """As a batch task: it waits for a free core."""
    STAND_BY = Op.STAND_BY
    """As a batch task that does not sleep between two steps that follow each other closely."""


class Pacing:
    """Alternates between keeping a pace and trying the others.

    Attributes:
        pace: What should be in force from the next step on.
    """

    def __init__(self) -> None:
        self.pace = self._kept = Pace.EAGER
        self._to_try: list[Pace] = []
        self._tried_s: dict[Pace, float] = {}
        self._means_s: dict[Pace, float] = {}
        self._wear = dict.fromkeys(Pace, 1.0)  # how much longer steps took after a while than when the pace was tried
        self._durations: list[float] = []
        self._timing, self._left = True, 0
        self._is_new = self._began = False
        self._spent_s = 0.0
        self._review()

    def record(self, duration_s: float) -> bool:
        """Count one step; True when ``pace`` has changed and must be put into force.

        The pace in force is timed, then the others; the best is kept and all are timed again after a while.

        Args:
            duration_s: From the end of the step before to the end of this one: what the trainer does in between
                counts too, for environments that do not sleep hold it up. Of each trial the first steps are left out,
                in which the kernel moves processes to other cores, and of the rest the longest eighth; there the
                trainer may have learned.
        """
        self._left -= 1
        if not self._timing:
            self._spent_s += duration_s
            soon = self._is_new and self._spent_s > _FIRST_REVIEW_S and self._left < _FIRST_REVIEW - _LEAST
            if soon or not self._left:
                self._review()
            return False
        if self._left < _TRIAL_STEPS:
            self._durations.append(duration_s)
        if self._left:
            return False
        self._judge(sum(sorted(self._durations)[:_COUNTED]) / _COUNTED)
        self._left, self._durations = _SETTLING_STEPS + _TRIAL_STEPS, []
        before = self.pace
        if self._to_try:
            self.pace = self._to_try.pop()
        else:
            self._choose()
        return self.pace is not before

    def _judge(self, mean_s: float) -> None:
        """Note how long a step takes at the pace in force."""
        pace, kept = self.pace, self.pace is self._kept
        if kept and self._is_new and pace in self._tried_s:
            self._wear[pace] = max(1.0, mean_s / self._tried_s[pace])
        self._tried_s[pace] = mean_s
        self._means_s[pace] = mean_s if kept else mean_s * self._wear[pace]

    def _choose(self) -> None:
        best = min(self._means_s, key=self._means_s.__getitem__)
        better = self._means_s[best] < self._means_s[self._kept] * _BETTER
        self.pace = best if better else self._kept
        self._is_new = better or not self._began
        self._began = True
        for pace in Pace:
            if pace is not self.pace:
                self._wear[pace] -= (self._wear[pace] - 1.0) * _FORGIVEN
        self._timing, self._left = False, _FIRST_REVIEW if self._is_new else _REVIEW_EVERY
        self._spent_s = 0.0

    def _review(self) -> None:
        """The long stretch is over: time the pace in force afresh, then the others."""
        self._kept = self.pace
        self._to_try = [pace for pace in Pace if pace is not self._kept]
        self._means_s, self._durations = {}, []
        self._timing, self._left = True, _SETTLING_STEPS + _TRIAL_STEPS
