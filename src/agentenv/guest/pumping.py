"""An event loop for a single-threaded process that carries bytes: descriptors with what to do when they are ready."""

from __future__ import annotations

import contextlib
import os
import select
from collections.abc import Callable

Handler = Callable[[int], None]
"""Called with the events that are ready, as ``select.epoll`` gives them."""
READ, WRITE, HANGUP = select.EPOLLIN, select.EPOLLOUT, select.EPOLLHUP | select.EPOLLERR


class Loop:
    """Waits for descriptors and calls their handlers.

    Attributes:
        running: Set it to False to have ``run`` return.
    """

    def __init__(self) -> None:
        """Watch nothing yet."""
        self._epoll = select.epoll()
        self._handlers: dict[int, Handler] = {}
        self._events: dict[int, int] = {}
        self.running = True

    def watch(self, fd: int, events: int, handler: Handler) -> None:
        """Call a handler when any of some events is there; replaces what was said of the descriptor before."""
        before = self._events.get(fd)
        if before is None:
            self._epoll.register(fd, events)
        elif before != events:
            self._epoll.modify(fd, events)
        self._events[fd] = events
        self._handlers[fd] = handler

    def forget(self, fd: int) -> None:
        """Watch a descriptor no longer. Before it is closed, or its number may come again."""
        self._handlers.pop(fd, None)
        if self._events.pop(fd, None) is not None:
            with contextlib.suppress(OSError):
                self._epoll.unregister(fd)

    def run(self) -> None:
        """Wait and call until told to stop."""
        while self.running:
            self.turn(-1)

    def turn(self, timeout_s: float) -> None:
        """Wait once, at most so many seconds (-1: for ever), and call who is ready."""
        for fd, events in self._epoll.poll(timeout_s):
            handler = self._handlers.get(fd)
            if handler is not None:
                handler(events)

    def close(self) -> None:
        """Let go of everything; the descriptors stay open."""
        self._handlers.clear()
        self._events.clear()
        self._epoll.close()


def close_quietly(fd: int) -> None:
    """Close a descriptor, whatever it then says."""
    with contextlib.suppress(OSError):
        os.close(fd)
