"""A bell whose rings two sides take at once."""

from __future__ import annotations

import os
import threading
from contextlib import suppress

import pytest

from agentenv.channel.bell import Bell


@pytest.mark.timeout(20)
def test_taking_rings_that_the_other_side_takes_waits_for_nothing() -> None:
    bell = Bell.create()
    over = threading.Event()

    def take() -> None:
        while not over.is_set():
            with suppress(BlockingIOError):
                os.preadv(bell.reader, [bytearray(8)], -1, os.RWF_NOWAIT)

    other = threading.Thread(target=take)
    other.start()
    try:
        for _ in range(20_000):
            bell.ring()
            bell.clear()
    finally:
        over.set()
        other.join()
        bell.close()


def test_what_was_rung_is_taken() -> None:
    bell = Bell.create()
    bell.clear()
    bell.ring()
    bell.clear()
    with pytest.raises(BlockingIOError):
        os.preadv(bell.reader, [bytearray(8)], -1, os.RWF_NOWAIT)
    bell.close()
