"""How often the state of environments is saved: a pure decision from what saving costs and what a step costs.

Saving costs time now; not saving costs time when one dies, because every step since must be done again. "auto" spends
at most a fixed share of the environments' own time on saving, and nothing before they have run for a while, so that
short lives pay nothing. Whatever share that is, the expected repetition is half of the time between two states.
"""

from __future__ import annotations

from dataclasses import dataclass

from agentenv.config.values import checkpoint_rule

SHARE = 0.015
"""Share of the environments' own time that "auto" spends on saving. It may cost 3 %; the rest is for what no clock of
ours sees: caches that are cold afterwards, pages that are copied because a parked copy shares them."""
FIRST_S = 0.25
"""Seconds of the environments' own time before the first state is saved."""
LEAST_S = 0.02


@dataclass(frozen=True, slots=True)
class Cadence:
    """When to save; the unset rules do not apply.

    Attributes:
        auto: By what it costs.
        steps: After so many entries of the journal.
        seconds: After so many seconds of wall time.
    """

    auto: bool = False
    steps: int | None = None
    seconds: float | None = None

    @classmethod
    def parse(cls, setting: str | int) -> Cadence:
        """From the configuration's ``checkpoint_every``: "auto", "never", a number of steps, or "2.5s".

        Raises:
            ValueError: It is none of these.
        """
        match checkpoint_rule(setting):
            case ("auto", _):
                return cls(auto=True)
            case ("never", _):
                return cls()
            case ("steps", number):
                return cls(steps=int(number))
            case ("seconds", number):
                return cls(seconds=number)
        raise ValueError(f'expected "auto", "never", a number of steps or of seconds such as "2.5s", got {setting!r}')

    def next_busy_s(self, busy_s: float, cost_s: float | None) -> float:
        """For "auto": at how many busy seconds to save next.

        Args:
            busy_s: Seconds the environments have been busy so far.
            cost_s: What saving took the last time; None before the first time.
        """
        if not self.auto:
            return float("inf")
        if cost_s is None:
            return busy_s + FIRST_S
        return busy_s + max(cost_s / SHARE, LEAST_S)
