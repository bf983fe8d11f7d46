"""Looking for an answer for a moment before sleeping.

Waking a core that was halted costs tens of microseconds, more than a cheap environment's step. Where there are cores to
spare, both sides look at the shared word first. A spin that finds nothing is wasted time, so after a few such
spins it is only tried once in a while: a trainer that thinks between steps pays next to nothing.
"""

from __future__ import annotations

from time import perf_counter

SPIN_US = 60
_MISSES = 4
_RETRY_EVERY = 64


class Spin:
    """Decides whether to look, and looks.

    Attributes:
        wanted: Whether it ever looks.
    """

    __slots__ = ("_misses", "_span_s", "wanted")

    def __init__(self, span_us: float) -> None:
        """``span_us`` is the longest look in microseconds; 0 never looks."""
        self._span_s = span_us / 1e6
        self._misses = 0
        self.wanted = span_us > 0

    def until_equal(self, words: memoryview, at: int, value: int) -> bool:
        """Look until ``words[at] == value``; False when it is not after the span, or when not worth trying."""
        if self._skip():
            return False
        ends = perf_counter() + self._span_s
        while words[at] != value:
            if perf_counter() > ends:
                self._misses += 1
                return False
        self._misses = 0
        return True

    def until_differ(self, words: memoryview, at: int, other: int) -> bool:
        """Look until ``words[at] != words[other]``; else as ``until_equal``."""
        if self._skip():
            return False
        ends = perf_counter() + self._span_s
        while words[at] == words[other]:
            if perf_counter() > ends:
                self._misses += 1
                return False
        self._misses = 0
        return True

    def _skip(self) -> bool:
        if not self.wanted:
            return True
        if self._misses < _MISSES:
            return False
        self._misses += 1
        if self._misses < _MISSES + _RETRY_EVERY:
            return True
        self._misses = _MISSES - 1
        return False
