"""Writing to a program and reading all it writes, at once and within bounds, until it ends.

Whatever it does - writes megabytes before it reads, reads nothing, closes its output and lives on, leaves others that
hold its output open - this ends: by its end, by the deadline, or by the sandbox's.
"""

from __future__ import annotations

import os
import selectors
import time
from collections.abc import Callable
from dataclasses import dataclass

from agentenv.boxes.pipes import Pipes
from agentenv.boxes.status import MOST_BYTES

_CHUNK = 1 << 16
# What it has left running may hold its output open for ever; what it wrote itself is on its way when its end is told.
_LINGER_S = 1.0
_LINGER_AT_MOST_S = 10.0
_IN_FLIGHT = 8 << 20
_KILL_S = 10.0


@dataclass(slots=True)
class Exchange:
    """What came of it.

    Attributes:
        stdout: What was written, the beginning of it.
        stderr: The same for the standard error.
        status: How it ended, as it was told; empty if that was never told.
        timed_out: Whether the deadline passed first.
        truncated: Whether more was written than was kept.
        deaf: Whether it had not ended some seconds after it was killed.
    """

    stdout: bytearray
    stderr: bytearray
    status: bytearray
    timed_out: bool = False
    truncated: bool = False
    deaf: bool = False


def converse(
    pipes: Pipes, stdin: bytes, *, deadline: float | None, most_bytes: int, kill: Callable[[], None]
) -> Exchange:
    """Write and read until the program has ended.

    Args:
        pipes: To it; used up.
        stdin: What it may read.
        deadline: ``time.monotonic()`` at which it is killed; None for never.
        most_bytes: Kept of each of its outputs; the rest is read and thrown away.
        kill: Ends it.
    """
    done = Exchange(bytearray(), bytearray(), bytearray())
    kept = {pipes.stdout: (done.stdout, most_bytes), pipes.stderr: (done.stderr, most_bytes)}
    kept[pipes.status] = (done.status, MOST_BYTES)
    left = memoryview(stdin)
    given_up: float | None = None
    over: float | None = None
    in_flight = _IN_FLIGHT
    with selectors.DefaultSelector() as selector:
        for fd in {pipes.stdout, pipes.stderr, pipes.status} - {-1}:
            selector.register(fd, selectors.EVENT_READ)
        if pipes.stdin >= 0:
            os.set_blocking(pipes.stdin, False)
            selector.register(pipes.stdin, selectors.EVENT_WRITE)
        open_ = {pipes.stdout, pipes.stderr, pipes.status} - {-1}
        while open_:
            ended = pipes.status not in open_
            now = time.monotonic()
            if not ended and given_up is not None and now > given_up:
                done.deaf = True
                break
            if not ended and given_up is None and deadline is not None and now >= deadline:
                done.timed_out = True
                given_up = now + _KILL_S
                kill()
            wake = given_up if given_up is not None else deadline
            wait = _LINGER_S if ended else None if wake is None else max(0.0, wake - now)
            events = selector.select(wait)
            if ended:
                over = over or now + _LINGER_AT_MOST_S
                if not events or now > over or in_flight < 0:
                    break
            for key, _ in events:
                if key.fd == pipes.stdin:
                    left = _give(pipes.stdin, left)
                    if not left:
                        selector.unregister(pipes.stdin)
                        pipes.drop(pipes.stdin)
                    continue
                data = os.read(key.fd, _CHUNK)
                if not data:
                    selector.unregister(key.fd)
                    open_.discard(key.fd)
                    continue
                in_flight -= len(data) if ended else 0
                buffer, most = kept[key.fd]
                done.truncated |= len(buffer) + len(data) > most and key.fd != pipes.status
                buffer += data[: max(0, most - len(buffer))]
    return done


def _give(fd: int, left: memoryview) -> memoryview:
    """Write as much as fits; what is left, which is nothing where nobody reads any more."""
    try:
        return left[os.write(fd, left[:_CHUNK]) :]
    except BlockingIOError:
        return left
    except BrokenPipeError:
        return left[:0]
