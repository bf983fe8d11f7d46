"""Telling how far long work is; short work is not worth a word."""

from __future__ import annotations

import time
from collections.abc import Callable

Progress = Callable[[str, int, int], None]
"""Is told what is done, how many bytes of it are done, and how many there are."""
LONG_S = 2.0
_EVERY_S = 0.1


class Pace:
    """A piece of work.

    Args:
        progress: Whom to tell, from two seconds on and at most ten times in a second; None for nobody.
        text: What is done, as in "comparing with the snapshot before".
        total: Bytes.
    """

    def __init__(self, progress: Progress | None, text: str, total: int) -> None:
        self._progress = progress
        self._text = text
        self._total = total
        self._done = 0
        self._next = time.monotonic() + LONG_S

    def advance(self, amount: int) -> None:
        """So many more bytes are done."""
        self._done += amount
        if self._progress is not None and time.monotonic() >= self._next:
            self._next = time.monotonic() + _EVERY_S
            # Blocks are rounded up, and files may have grown since they were counted.
            self._progress(self._text, min(self._done, self._total), self._total)
