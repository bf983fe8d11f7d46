"""Looking for a moment before sleeping.

Waking a core that was halted costs tens of microseconds, more than a cheap environment's step. Where there are cores to
spare, both sides look at the shared word first. Where there are not, waking whoever sleeps still costs several times as
much as passing the core on, so environments may look and give way in turn, as long as others run meanwhile. A look that
finds nothing is wasted time, so after a few of them it is only tried once in a while: a trainer that thinks between
steps pays next to nothing.
"""

from __future__ import annotations

import os
from time import perf_counter

SPIN_US = 60
STAND_US = 1000
"""How long to look while giving way: others run meanwhile, so it is what a round of many environments may take."""
ORDERED = os.uname().machine in ("x86_64", "AMD64", "i686")
"""Whether who sees a ticket also sees what was written before it. Elsewhere requests and answers come by bells, which
order memory."""
_MISSES = 4
_RETRY_EVERY = 64


class Spin:
    """Decides whether to look, from what came of it before.

    Attributes:
        wanted: Whether it is ever worth looking.
        span_s: The longest look, seconds.
        misses: How often in a row nothing came of it; while it is 0 there is no need to ask ``tries``.
    """

    __slots__ = ("misses", "span_s", "wanted")

    def __init__(self, span_us: float) -> None:
        """``span_us`` is the longest look in microseconds; 0 never looks."""
        self.span_s = span_us / 1e6
        self.misses = 0
        self.wanted = span_us > 0

    def tries(self) -> bool:
        """Whether to look this time; ``found`` or ``missed`` must follow if so."""
        if not self.wanted:
            return False
        if self.misses < _MISSES:
            return True
        self.misses += 1
        if self.misses < _MISSES + _RETRY_EVERY:
            return False
        self.misses = _MISSES - 1
        return True

    def found(self) -> None:
        """It was worth it."""
        self.misses = 0

    def missed(self) -> None:
        """It was not."""
        self.misses += 1

    def until_equal(self, words: memoryview, at: int, value: int) -> bool:
        """Look until ``words[at] == value``; False when it is not after the span, or when not worth trying."""
        if not self.tries():
            return False
        ends = perf_counter() + self.span_s
        while words[at] != value:
            if perf_counter() > ends:
                self.missed()
                return False
        self.found()
        return True
