"""Durations of steps in a fixed number of buckets: percentiles of any number of steps in constant memory.

A bucket is 1/32 of a power of two wide, so a percentile is wrong by 3 % at most, from a nanosecond to centuries.
"""

from __future__ import annotations

_BITS = 5
_SUB = 1 << _BITS


class Latencies:
    """Counts durations between two looks."""

    def __init__(self) -> None:
        self._buckets: dict[int, int] = {}
        self._count = 0

    @property
    def count(self) -> int:
        """Durations since the last ``clear``."""
        return self._count

    def add(self, duration_ns: int) -> None:
        """Count one duration, nanoseconds; what is below 1 counts as 1."""
        exponent = max(duration_ns, 1).bit_length() - 1
        key = (exponent << _BITS) | (((max(duration_ns, 1) << _BITS) >> exponent) & (_SUB - 1))
        self._buckets[key] = self._buckets.get(key, 0) + 1
        self._count += 1

    def percentile(self, share: float) -> float | None:
        """The duration that a share (0 to 1) of all does not exceed, nanoseconds; None where there are none."""
        if not self._count:
            return None
        wanted = share * self._count
        seen = 0
        low = width = 0.0
        inside = 1.0
        for key in sorted(self._buckets):
            count = self._buckets[key]
            exponent = key >> _BITS
            low, width = (1 << exponent) * (1 + (key & (_SUB - 1)) / _SUB), (1 << exponent) / _SUB
            if seen + count >= wanted:
                inside = max(0.0, wanted - seen) / count
                break
            seen += count
        return low + inside * width

    def clear(self) -> None:
        """Begin anew."""
        self._buckets.clear()
        self._count = 0
