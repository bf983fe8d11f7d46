"""Whether an environment that died is started again, and when: a pure decision from its history.

Budgets are counted over a sliding window, so an environment that fails once a day is brought back for ever and one
that fails at once every time is not. The first restarts are immediate, because a trainer is waiting; only a quick
succession of them backs off. What is the machinery's fault is charged to an account of its own.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from agentenv.errors import Cause, CauseKind, Owner, counted

IMMEDIATE = 3
"""So many restarts within a window are not delayed."""
INFRASTRUCTURE_FACTOR = 10
"""How many times ``max_restarts`` may be brought back from what is not the environment's fault."""


@dataclass(frozen=True, slots=True)
class RestartPolicy:
    """What to do when an environment dies.

    Attributes:
        restart: "on-failure" restarts it unless it exited with status 0 of its own accord; "always" also then; "never"
            does not.
        max_restarts: Most restarts within a window; the next failure quarantines it.
        restart_window_s: Length of the sliding window, in seconds.
        backoff_s: Upper bound of the first delay, in seconds, once restarts follow each other closely.
        backoff_factor: By how much the bound grows with every further restart in the window.
        backoff_max_s: Where it stops to grow, in seconds.

    Raises:
        ValueError: A value is out of its range.
    """

    restart: Literal["always", "on-failure", "never"] = "on-failure"
    max_restarts: int = 10
    restart_window_s: float = 600.0
    backoff_s: float = 0.5
    backoff_factor: float = 2.0
    backoff_max_s: float = 30.0

    def __post_init__(self) -> None:
        if self.restart not in ("always", "on-failure", "never"):
            raise ValueError(f'restart: expected "always", "on-failure" or "never", got {self.restart!r}')
        _check("max_restarts", self.max_restarts, 0)
        _check("restart_window_s", self.restart_window_s, 0, open_=True)
        _check("backoff_s", self.backoff_s, 0)
        _check("backoff_factor", self.backoff_factor, 1)
        _check("backoff_max_s", self.backoff_max_s, 0)

    def budget(self, cause: Cause) -> int:
        """Most restarts within a window for failures of this kind."""
        return self.max_restarts * (INFRASTRUCTURE_FACTOR if cause.owner is Owner.INFRASTRUCTURE else 1)


@dataclass(frozen=True, slots=True)
class Restart:
    """Start it again.

    Attributes:
        delay_s: After so long, in seconds.
    """

    delay_s: float


@dataclass(frozen=True, slots=True)
class Quarantine:
    """Leave it dead.

    Attributes:
        reason: Why, in words.
    """

    reason: str


@dataclass(frozen=True, slots=True)
class History:
    """The restarts of one environment, by who was to blame for the failure.

    Attributes:
        own: Monotonic times of restarts charged to the environment, in seconds.
        infrastructure: Those charged to the machinery.
    """

    own: tuple[float, ...] = ()
    infrastructure: tuple[float, ...] = ()

    def of(self, cause: Cause) -> tuple[float, ...]:
        """The account to which a failure is charged: what ``decide`` takes."""
        return self.infrastructure if cause.owner is Owner.INFRASTRUCTURE else self.own

    def with_restart(self, cause: Cause, now: float, *, window_s: float) -> History:
        """The history after one more restart, without what no window of ``window_s`` reaches any more."""
        kept = (*(time for time in self.of(cause) if now - time < window_s), now)
        if cause.owner is Owner.INFRASTRUCTURE:
            return History(self.own, kept)
        return History(kept, self.infrastructure)


def decide(
    policy: RestartPolicy, history: Sequence[float], cause: Cause, now: float, jitter: float
) -> Restart | Quarantine:
    """What becomes of an environment that died.

    Looks at nothing but its arguments. More history never gives a shorter delay, nor a restart instead of a quarantine.

    Args:
        policy: The environment's.
        history: Times of the earlier restarts in the account of this cause (``History.of``), ``time.monotonic()``
            seconds, in any order.
        cause: Why it died.
        now: The time, on the same clock.
        jitter: From 0 up to, not including, 1. Full jitter: the delay is this share of its bound, so that environments
            that died together do not start together.

    Raises:
        ValueError: ``jitter`` is out of its range.
    """
    if not 0.0 <= jitter < 1.0:
        raise ValueError(f"jitter: expected a number from 0 up to, not including, 1, got {jitter!r}")
    if cause.kind is CauseKind.CLOSED:
        return Quarantine(cause.detail)
    if policy.restart == "never":
        return Quarantine(f'as restart = "never" says: {cause.detail}')
    if policy.restart == "on-failure" and cause.kind is CauseKind.EXIT and cause.exit_code == 0:
        return Quarantine(
            'it exited with status 0, which restart = "on-failure" takes for its wish;'
            ' restart = "always" starts it again'
        )
    recent = sum(1 for time in history if now - time < policy.restart_window_s)
    budget = policy.budget(cause)
    if recent >= budget:
        whose = "max_restarts" if budget == policy.max_restarts else f"{INFRASTRUCTURE_FACTOR} times max_restarts"
        return Quarantine(
            f"it was restarted {counted(recent, 'time')} within {policy.restart_window_s:g} s"
            f" ({whose} = {budget}); the last cause: {cause.detail}"
        )
    return Restart(jitter * _bound_s(policy, recent))


def _bound_s(policy: RestartPolicy, recent: int) -> float:
    """The longest delay after so many restarts in the window."""
    if recent < IMMEDIATE:
        return 0.0
    try:
        grown = policy.backoff_s * policy.backoff_factor ** (recent - IMMEDIATE)
    except OverflowError:
        grown = math.inf if policy.backoff_s > 0 else 0.0
    return min(grown, policy.backoff_max_s)


def _check(name: str, value: float, least: float, *, open_: bool = False) -> None:
    """Refuse what is not a finite number from ``least`` on."""
    number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    if not number or value < least or (open_ and value == least):
        raise ValueError(f"{name}: expected a number {'above' if open_ else 'of at least'} {least:g}, got {value!r}")
