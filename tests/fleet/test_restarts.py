"""Restart budgets: the rules by hand, and their promises over any history."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentenv.errors import Cause, CauseKind, Owner
from agentenv.fleet.restarts import (
    IMMEDIATE,
    INFRASTRUCTURE_FACTOR,
    History,
    Quarantine,
    Restart,
    RestartPolicy,
    decide,
)

CRASH = Cause(CauseKind.SIGNAL, Owner.ENVIRONMENT, "killed by SIGSEGV", signal=11)
LOST = Cause(CauseKind.SANDBOX_LOST, Owner.INFRASTRUCTURE, "the outer sandbox was killed")
LEFT = Cause(CauseKind.EXIT, Owner.ENVIRONMENT, "exited with status 0", exit_code=0)
FAILED = Cause(CauseKind.EXIT, Owner.ENVIRONMENT, "exited with status 1", exit_code=1)
CLOSED = Cause(CauseKind.CLOSED, Owner.INFRASTRUCTURE, "ended together with the run")

CAUSES = st.sampled_from([CRASH, LOST, LEFT, FAILED])
JITTERS = st.floats(0, 1, exclude_max=True)
TIMES = st.floats(0, 1e5)
POLICIES = st.builds(
    RestartPolicy,
    restart=st.sampled_from(["always", "on-failure"]),
    max_restarts=st.integers(0, 6),
    restart_window_s=st.floats(1, 1000),
    backoff_s=st.floats(0, 100),
    backoff_factor=st.floats(1, 1e6),
    backoff_max_s=st.floats(0, 1000),
)


def delay(history: int, jitter: float = 0.5, policy: RestartPolicy | None = None) -> float:
    found = decide(policy or RestartPolicy(), [0.0] * history, CRASH, 1.0, jitter)
    assert isinstance(found, Restart)
    return found.delay_s


def test_the_first_restarts_are_immediate_and_the_next_back_off() -> None:
    assert [delay(n) for n in range(8)] == [0, 0, 0, 0.25, 0.5, 1, 2, 4]
    assert delay(9, jitter=0.999) == pytest.approx(0.999 * 30)
    assert delay(9, jitter=0.0) == 0.0


def test_what_lies_outside_the_window_is_forgotten() -> None:
    policy = RestartPolicy(max_restarts=2, restart_window_s=10)
    assert isinstance(decide(policy, [0.0, 5.0], CRASH, 9.9, 0.5), Quarantine)
    assert decide(policy, [0.0, 5.0], CRASH, 10.0, 0.5) == Restart(0.0)


def test_a_quarantine_says_why() -> None:
    found = decide(RestartPolicy(max_restarts=2, restart_window_s=60), [1.0, 2.0], CRASH, 3.0, 0.5)
    assert isinstance(found, Quarantine)
    assert found.reason == (
        "it was restarted 2 times within 60 s (max_restarts = 2); the last cause: killed by SIGSEGV"
    )


@pytest.mark.parametrize(
    ("restart", "cause", "restarted"),
    [
        ("always", CRASH, True),
        ("always", FAILED, True),
        ("always", LEFT, True),
        ("always", CLOSED, False),
        ("on-failure", CRASH, True),
        ("on-failure", FAILED, True),
        ("on-failure", LOST, True),
        ("on-failure", LEFT, False),
        ("on-failure", CLOSED, False),
        ("never", CRASH, False),
        ("never", LOST, False),
    ],
)
def test_the_three_policies(restart: str, cause: Cause, restarted: bool) -> None:
    found = decide(RestartPolicy(restart=restart), [], cause, 0.0, 0.0)  # type: ignore[arg-type]  # any str
    assert isinstance(found, Restart) is restarted


def test_what_is_the_machinerys_fault_is_charged_elsewhere() -> None:
    policy = RestartPolicy(max_restarts=1)
    history = History()
    for _ in range(INFRASTRUCTURE_FACTOR):
        assert isinstance(decide(policy, history.of(LOST), LOST, 0.0, 0.0), Restart)
        history = history.with_restart(LOST, 0.0, window_s=policy.restart_window_s)
    assert isinstance(decide(policy, history.of(LOST), LOST, 0.0, 0.0), Quarantine)
    assert isinstance(decide(policy, history.of(CRASH), CRASH, 0.0, 0.0), Restart)
    history = history.with_restart(CRASH, 0.0, window_s=policy.restart_window_s)
    assert isinstance(decide(policy, history.of(CRASH), CRASH, 0.0, 0.0), Quarantine)


def test_a_history_forgets_what_no_window_reaches() -> None:
    history = History()
    for second in range(100):
        history = history.with_restart(CRASH, float(second), window_s=10)
    assert history.own == tuple(float(second) for second in range(90, 100))


@given(POLICIES, st.lists(st.tuples(st.floats(0, 50), CAUSES), max_size=80), JITTERS)
def test_never_more_than_the_budget_in_any_window(
    policy: RestartPolicy, failures: list[tuple[float, Cause]], jitter: float
) -> None:
    history = History()
    restarts: dict[bool, list[float]] = {True: [], False: []}
    now = 0.0
    for gap, cause in failures:
        now += gap
        if isinstance(decide(policy, history.of(cause), cause, now, jitter), Restart):
            history = history.with_restart(cause, now, window_s=policy.restart_window_s)
            restarts[cause.owner is Owner.INFRASTRUCTURE].append(now)
    for infrastructure, times in restarts.items():
        budget = policy.max_restarts * (INFRASTRUCTURE_FACTOR if infrastructure else 1)
        for start in times:
            assert sum(1 for time in times if 0 <= time - start < policy.restart_window_s) <= budget


@given(POLICIES, st.lists(TIMES, max_size=70), CAUSES, TIMES, JITTERS)
def test_delays_are_bounded_and_decisions_repeatable(
    policy: RestartPolicy, history: list[float], cause: Cause, now: float, jitter: float
) -> None:
    found = decide(policy, history, cause, now, jitter)
    assert decide(policy, sorted(history), cause, now, jitter) == found
    if isinstance(found, Restart):
        assert 0 <= found.delay_s <= policy.backoff_max_s
        if len(history) < IMMEDIATE:
            assert found.delay_s == 0


@given(POLICIES, st.lists(TIMES, max_size=40), st.lists(TIMES, max_size=10), CAUSES, TIMES, JITTERS)
def test_more_history_is_never_treated_better(
    policy: RestartPolicy, history: list[float], more: list[float], cause: Cause, now: float, jitter: float
) -> None:
    less, greater = decide(policy, history, cause, now, jitter), decide(policy, history + more, cause, now, jitter)
    if isinstance(less, Quarantine):
        assert isinstance(greater, Quarantine)
    elif isinstance(greater, Restart):
        assert greater.delay_s >= less.delay_s


def test_a_delay_that_would_overflow_is_capped() -> None:
    policy = RestartPolicy(max_restarts=10_000, backoff_factor=1e300)
    assert delay(9_000, policy=policy) == 15
    assert delay(9_000, policy=RestartPolicy(max_restarts=10_000, backoff_factor=1e300, backoff_s=0)) == 0


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("restart", "sometimes", '"on-failure"'),
        ("max_restarts", -1, "at least 0"),
        ("restart_window_s", 0, "above 0"),
        ("restart_window_s", float("inf"), "above 0"),
        ("backoff_s", float("nan"), "at least 0"),
        ("backoff_factor", 0.5, "at least 1"),
        ("backoff_max_s", True, "at least 0"),
    ],
)
def test_a_policy_refuses_nonsense(key: str, value: object, words: str) -> None:
    with pytest.raises(ValueError, match=f"{key}: expected") as caught:
        RestartPolicy(**{key: value})  # type: ignore[arg-type]  # wrong on purpose
    assert words in str(caught.value)
    assert repr(value) in str(caught.value)


@pytest.mark.parametrize("jitter", [-0.1, 1.0, float("nan")])
def test_jitter_out_of_range_is_refused(jitter: float) -> None:
    with pytest.raises(ValueError, match="jitter: expected"):
        decide(RestartPolicy(), [], CRASH, 0.0, jitter)
