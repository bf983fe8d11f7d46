from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentenv.soak.slope import fit

SLOPES = st.floats(-1e3, 1e3, allow_nan=False)
LENGTHS = st.integers(8, 400)


@given(slope=SLOPES, level=st.floats(-1e6, 1e6), n=LENGTHS)
def test_a_straight_line_is_its_own_trend(slope: float, level: float, n: int) -> None:
    times = np.linspace(0, 100, n)
    trend = fit(times, level + slope * times)
    near = pytest.approx(slope, abs=1e-6 * (1 + abs(level)))
    assert trend.slope == near
    assert trend.start == pytest.approx(level, abs=1e-3 * (1 + abs(level) + abs(slope)))
    if n >= 16:
        assert trend.low == near
        assert trend.high == near


@given(
    values=st.lists(st.floats(-1e6, 1e6), min_size=4, max_size=100),
    shift=st.floats(-1e3, 1e3),
    scale=st.floats(0.01, 100),
)
def test_bounds_hold_the_slope_and_follow_shift_and_scale(values: list[float], shift: float, scale: float) -> None:
    times = np.arange(len(values), dtype=float)
    trend, moved = fit(times, values), fit(times, scale * np.array(values) + shift)
    assert trend.low <= trend.slope <= trend.high
    assert moved.slope == pytest.approx(scale * trend.slope, rel=1e-6, abs=1e-4)
    assert moved.low <= moved.slope <= moved.high


@given(
    values=st.lists(st.floats(-1e3, 1e3), min_size=30, max_size=30),
    spoiled=st.sets(st.integers(0, 29), max_size=3),
    by=st.floats(-1e9, 1e9),
)
def test_a_few_outliers_cannot_carry_the_slope_away(values: list[float], spoiled: set[int], by: float) -> None:
    times = np.arange(30.0)
    clean = fit(times, values)
    spoilt = fit(times, [value + by * (i in spoiled) for i, value in enumerate(values)])
    steepest = max(abs(a - b) for a in values for b in values)
    assert abs(spoilt.slope) <= max(steepest, abs(clean.slope)) + 1e-9


def test_the_bounds_hold_the_truth_about_as_often_as_they_say() -> None:
    rng = np.random.default_rng(1)
    times = np.linspace(0, 100, 200)
    hits = 0
    for _ in range(300):
        trend = fit(times, 0.5 * times + rng.normal(0, 20, times.size), confidence=0.9)
        hits += trend.low <= 0.5 <= trend.high
    assert 255 <= hits <= 295  # 270 are expected; binomial, five standard deviations


def test_dependence_between_neighbours_widens_the_bounds() -> None:
    rng = np.random.default_rng(2)
    times = np.arange(32.0)
    noise = rng.normal(0, 1, 32)
    dependent = np.convolve(rng.normal(0, 1, 40), np.ones(9) / 3, "valid")
    free, bound = fit(times, noise), fit(times, dependent * noise.std() / dependent.std())
    assert bound.high - bound.low > free.high - free.low


def test_stairs_and_bends_are_not_taken_for_dependence() -> None:
    times = np.arange(256.0)
    for curve in (np.floor(times / 32), (times / 64) ** 2):
        assert fit(times, curve).low > 0
        assert fit(times, -curve).high < 0


def test_too_few_points_bound_nothing() -> None:
    trend = fit([0, 1, 2, 3], [1, 2, 3, 5])
    assert (trend.low, trend.high) == (-math.inf, math.inf)


@pytest.mark.parametrize(
    ("times", "values"), [([0, 1, 2], [1, 2, 3]), ([0, 1, 2, 3], [1, 2, 3]), ([0, 1, 2, 3], [1, 2, math.nan, 3])]
)
def test_what_is_no_series_is_refused(times: list[float], values: list[float]) -> None:
    with pytest.raises(ValueError, match="expected"):
        fit(times, values)
