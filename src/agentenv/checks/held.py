"""Holding still, inside a sandbox, what no seed reaches: the clock and the system's entropy.

Done only to explain a difference that was seen without it: if the difference goes away when one of them is held, it
came from there. It must happen before the environment's module is imported, which may bind the functions by name. The
clock that is held moves on by a millisecond each time it is read, so that a loop that waits for a time ends.

Not reached: native code that asks the system itself.
"""

from __future__ import annotations

import datetime
import hashlib
import os
import random
import sys
import sysconfig
import time
from collections.abc import Callable
from types import FrameType
from typing import Any

CLOCK, ENTROPY = "clock", "entropy"

_START_S = 1_700_000_000
_TICK_NS = 1_000_000
_MOST_PLACES = 5
_STDLIB = sysconfig.get_paths()["stdlib"]
_OWN = os.path.dirname(os.path.abspath(__file__))
# A library between the environment and the source; the environment's own line is the one to be changed.
_BETWEEN = ("numpy", "gymnasium")


class Hold:
    """What is held, where it was asked for, and its position, which ``rewind`` puts back to the start.

    Args:
        what: Any of CLOCK and ENTROPY.
    """

    def __init__(self, what: list[str]) -> None:
        self.places: dict[str, dict[str, int]] = {name: {} for name in what}
        self._ticks = 0
        self._drawn = 0
        if CLOCK in what:
            self._hold_clock()
        if ENTROPY in what:
            self._hold_entropy()

    def rewind(self) -> None:
        """Start again: what is asked for next is what was given first."""
        self._ticks = 0
        self._drawn = 0

    def _now_ns(self) -> int:
        self._note(CLOCK)
        self._ticks += 1
        return _START_S * 1_000_000_000 + self._ticks * _TICK_NS

    def _bytes(self, count: int) -> bytes:
        self._note(ENTROPY)
        self._drawn += 1
        return hashlib.shake_128(b"agentenv %d" % self._drawn).digest(count)

    def _hold_clock(self) -> None:
        for name in ("time", "monotonic", "perf_counter", "process_time"):
            setattr(time, name, self._seconds)
            setattr(time, f"{name}_ns", self._now_ns)
        hold = self

        class Datetime(datetime.datetime):
            @classmethod
            def now(cls, tz: datetime.tzinfo | None = None) -> Any:
                return cls.fromtimestamp(hold._seconds(), tz)

            @classmethod
            def today(cls) -> Any:
                return cls.now()

            @classmethod
            def utcnow(cls) -> Any:
                return cls.fromtimestamp(hold._seconds(), datetime.timezone.utc).replace(tzinfo=None)

        datetime.datetime = Datetime  # type: ignore[misc]  # a class in place of a class

    def _seconds(self) -> float:
        return self._now_ns() / 1e9

    def _hold_entropy(self) -> None:
        os.urandom = self._bytes
        # What random's SystemRandom draws from, and through it numpy's seed sequences.
        setattr(random, "_urandom", self._bytes)  # noqa: B010  # its type stubs do not know it
        seed: Callable[..., None] = random.Random.seed
        hold = self

        def seeded(generator: random.Random, a: Any = None, version: int = 2) -> None:
            seed(generator, int.from_bytes(hold._bytes(16), "little") if a is None else a, version)

        random.Random.seed = seeded  # type: ignore[method-assign,assignment]  # taken back below
        random.seed = random._inst.seed

    def _note(self, what: str) -> None:
        places = self.places[what]
        if len(places) >= _MOST_PLACES:
            return
        frame: FrameType | None = sys._getframe(2)
        while frame is not None and _is_between(frame.f_code.co_filename):
            frame = frame.f_back
        if frame is not None:
            place = f"{frame.f_code.co_filename}:{frame.f_lineno}"
            places[place] = places.get(place, 0) + 1


def _is_between(path: str) -> bool:
    if path.startswith(("<", _OWN)):
        return True
    parts = path.split(os.sep)
    if "site-packages" in parts:
        return parts[parts.index("site-packages") + 1] in _BETWEEN
    return path.startswith(_STDLIB) or not os.path.isabs(path)
