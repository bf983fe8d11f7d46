"""The trend of a series of measurements, with bounds that outliers and ties do not move.

Theil-Sen: the median of the slopes between all pairs of points; its bounds are Sen's, from the variance of Kendall's
S with the correction for ties (Sen 1968, doi:10.1080/01621459.1968.10480934). Measurements of one process one after
the other are not independent: they are first reduced to medians of consecutive blocks, and what dependence is left
widens the bounds (the variance correction of Yue and Wang 2004, doi:10.1023/B:WARM.0000043140.61082.60). It says how
steep a series is, not whether that is bad: see ``judge``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

MAX_BLOCKS = 32
CONFIDENCE = 0.99
# More cannot be told from as few blocks.
_MOST_DEPENDENCE = 0.6


@dataclass(frozen=True, slots=True)
class Trend:
    """A straight line through a series.

    Attributes:
        slope: Units a second.
        low, high: Bounds of the slope; infinite where the points are too few to bound it.
        level: Median of the values.
        start, end: The line's values at the first and the last point.
        quarters: Median of the values in each quarter of the time.
    """

    slope: float
    low: float
    high: float
    level: float
    start: float
    end: float
    quarters: tuple[float, float, float, float]


def fit(times_s: Sequence[float] | Floats, values: Sequence[float] | Floats, confidence: float = CONFIDENCE) -> Trend:
    """Fit a line.

    Args:
        times_s: When each value was measured, seconds, ascending; shape (n,).
        values: Shape (n,), n >= 4.
        confidence: That the true slope lies within the bounds, 0 to 1.

    Raises:
        ValueError: Fewer than four points, shapes that differ, or values that are not finite.
    """
    times, levels = np.asarray(times_s, np.float64), np.asarray(values, np.float64)
    if times.shape != levels.shape or times.ndim != 1 or times.size < 4:
        raise ValueError(
            f"expected two series of the same length, at least 4, got shapes {times.shape}, {levels.shape}"
        )
    if not (np.isfinite(times).all() and np.isfinite(levels).all()):
        raise ValueError("expected finite times and values")
    quarters = tuple(float(np.median(part)) for part in np.array_split(levels, 4))
    x, y = _blocks(times, levels)
    slopes = _slopes(x, y)
    slope = float(np.median(slopes)) if slopes.size else 0.0
    intercept = float(np.median(y - slope * x))
    spread = math.sqrt(_variance(y) * _inflation(y - _monotone(y, rising=slope >= 0)))
    low, high = _bounds(slopes, NormalDist().inv_cdf(0.5 + confidence / 2) * spread)
    return Trend(
        slope=slope,
        low=low,
        high=high,
        level=float(np.median(levels)),
        start=intercept + slope * float(times[0]),
        end=intercept + slope * float(times[-1]),
        quarters=quarters,  # type: ignore[arg-type]  # array_split gives exactly four
    )


def _blocks(times: Floats, values: Floats) -> tuple[Floats, Floats]:
    parts = min(MAX_BLOCKS, times.size)
    x = np.array([part.mean() for part in np.array_split(times, parts)])
    y = np.array([np.median(part) for part in np.array_split(values, parts)])
    return x, y


def _slopes(x: Floats, y: Floats) -> Floats:
    """The slopes of all pairs, ascending; pairs of the same time have none."""
    first, second = np.triu_indices(x.size, 1)
    apart = x[second] - x[first]
    kept = apart > 0
    return np.sort((y[second] - y[first])[kept] / apart[kept])


def _variance(y: Floats) -> float:
    """Of Kendall's S where there is no trend, with the correction for values that are equal."""
    n = y.size
    ties = np.unique(y, return_counts=True)[1].astype(np.float64)
    return float(n * (n - 1) * (2 * n + 5) - (ties * (ties - 1) * (2 * ties + 5)).sum()) / 18


def _monotone(y: Floats, *, rising: bool) -> Floats:
    """The monotone series nearest to this one: neighbours in the wrong order are replaced by their mean.

    What is left beside it is noise. Beside a straight line, the bend of a curve or the treads of stairs would be left
    as well, and would count as dependence.
    """
    levels: list[tuple[float, int]] = []
    for value in y if rising else -y:
        mean, count = float(value), 1
        while levels and levels[-1][0] > mean:
            before, weight = levels.pop()
            mean, count = (mean * count + before * weight) / (count + weight), count + weight
        levels.append((mean, count))
    curve = np.repeat([mean for mean, _ in levels], [count for _, count in levels])
    return curve if rising else -curve


def _inflation(residuals: Floats) -> float:
    centred = residuals - residuals.mean()
    power = float(centred @ centred)
    if power <= 0.0:
        return 1.0
    dependence = min(max(float(centred[1:] @ centred[:-1]) / power, 0.0), _MOST_DEPENDENCE)
    return (1 + dependence) / (1 - dependence)


def _bounds(slopes: Floats, reach: float) -> tuple[float, float]:
    count = slopes.size
    lower, upper = math.floor((count - reach) / 2), math.ceil((count + reach) / 2)
    if lower < 0 or upper > count:
        return -math.inf, math.inf
    return float(slopes[lower]), float(slopes[min(upper, count - 1)])
