from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentenv.soak.judge import HOUR_S, MIN_SAMPLES, Limit, Outcome, judge, warm_up_s

MEMORY = Limit(per_hour=1.0, least=2.0)
LATENCY = Limit(0.01, 0.4, relative=True, fault=Outcome.SLOWER)
RATE = Limit(0.01, 0.3, relative=True, falls=True, fault=Outcome.SLOWER)
TIMES = np.linspace(0.0, 120.0, 240)
SHARE = TIMES / TIMES[-1]


def outcome(values: np.ndarray, limit: Limit, times: np.ndarray = TIMES) -> Outcome:
    return judge(times.tolist(), values.tolist(), limit).outcome


@given(rate=st.floats(1.5, 1000), level=st.floats(0, 1e4), seed=st.integers(0, 1000))
def test_growth_well_above_the_limit_is_a_leak_in_spite_of_noise(rate: float, level: float, seed: int) -> None:
    noise = np.random.default_rng(seed).normal(0, 0.1, TIMES.size)
    assert outcome(level + 2.0 * rate * TIMES / 96 + noise, MEMORY) is Outcome.LEAK


@given(rate=st.floats(-100, 0.5), level=st.floats(0, 1e4), seed=st.integers(0, 1000))
def test_growth_well_below_the_limit_is_none(rate: float, level: float, seed: int) -> None:
    noise = np.random.default_rng(seed).normal(0, 0.1, TIMES.size)
    assert outcome(level + 2.0 * rate * TIMES / 96 + noise, MEMORY) is Outcome.STEADY


@given(at=st.floats(0.0, 1.0), height=st.floats(0.1, 1000), seed=st.integers(0, 1000))
def test_a_single_step_up_is_no_leak_wherever_it_is(at: float, height: float, seed: int) -> None:
    noise = np.random.default_rng(seed).normal(0, 0.01 * height, TIMES.size)
    assert outcome(height * (at < SHARE) + noise, MEMORY) is not Outcome.LEAK


@given(scale=st.floats(0.001, 1000), seed=st.integers(0, 1000))
def test_latency_is_judged_by_its_own_size(scale: float, seed: int) -> None:
    noise = np.random.default_rng(seed).normal(1, 0.03, TIMES.size)
    assert outcome(scale * (1 + 2 * SHARE) * noise, LATENCY) is Outcome.SLOWER
    assert outcome(scale * (1 + 0.1 * SHARE) * noise, LATENCY) is Outcome.STEADY
    assert outcome(scale * (1 - 0.9 * SHARE) * noise, LATENCY) is Outcome.STEADY


@given(scale=st.floats(0.001, 1e6), seed=st.integers(0, 1000))
def test_throughput_is_at_fault_when_it_falls(scale: float, seed: int) -> None:
    noise = np.random.default_rng(seed).normal(1, 0.02, TIMES.size)
    assert outcome(scale / (1 + 2 * SHARE) * noise, RATE) is Outcome.SLOWER
    assert outcome(scale * (1 + 2 * SHARE) * noise, RATE) is Outcome.STEADY


@pytest.mark.parametrize(
    ("curve", "what"),
    [
        (10 * SHARE**2, "ever faster"),
        (10 * np.sqrt(SHARE), "ever slower"),
        (np.floor(8 * SHARE), "in stairs"),
    ],
)
def test_a_leak_need_not_be_straight(curve: np.ndarray, what: str) -> None:
    assert outcome(80 + curve, MEMORY) is Outcome.LEAK, what


@given(st.floats(0.0, 0.72))
def test_what_grew_until_it_was_full_is_no_leak(at: float) -> None:
    assert outcome(24 * np.minimum(SHARE, at), MEMORY) is not Outcome.LEAK


def test_what_grew_and_does_no_more_is_said() -> None:
    verdict = judge(TIMES.tolist(), (24 * np.minimum(SHARE, 0.7)).tolist(), MEMORY)
    assert verdict.outcome is Outcome.STEADY
    assert "earlier" in verdict.reason


def test_the_warm_up_does_not_count() -> None:
    warming = np.where(SHARE < 0.19, 100 * SHARE, 19.0)
    verdict = judge(TIMES.tolist(), warming.tolist(), MEMORY)
    assert verdict.outcome is Outcome.STEADY
    assert verdict.begins_s == pytest.approx(24.0, abs=1.0)
    assert warm_up_s(24 * HOUR_S) == 0.5 * HOUR_S


def test_a_long_run_tolerates_less_than_a_short_one() -> None:
    day = np.linspace(0.0, 24 * HOUR_S, 2880)
    slow = 80 + 1.5 * day / HOUR_S  # MB an hour
    noise = np.random.default_rng(3).normal(0, 0.5, day.size)
    assert outcome(slow + noise, MEMORY, day) is Outcome.LEAK
    assert outcome(80 + 1.5 * TIMES / HOUR_S, MEMORY) is Outcome.STEADY
    counts = np.floor(22 + 0.5 * day / HOUR_S)  # a descriptor every two hours
    assert outcome(counts, Limit(0.1, 3.0), day) is Outcome.LEAK


@pytest.mark.parametrize("count", [0, 1, MIN_SAMPLES - 1])
def test_too_few_samples_leave_it_undecided(count: int) -> None:
    verdict = judge(TIMES[:count].tolist(), (1000 * TIMES[:count]).tolist(), MEMORY)
    assert verdict.outcome is Outcome.UNDECIDED
    assert "sample" in verdict.reason
    assert verdict.to_json()["slope_per_hour"] is None


def test_noise_that_hides_a_fault_leaves_it_undecided() -> None:
    noise = np.random.default_rng(4).normal(0, 40, TIMES.size)
    assert outcome(100 + noise, MEMORY) is Outcome.UNDECIDED
