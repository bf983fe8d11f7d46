"""Sleeping on the bells of everything that runs, and on nothing else."""

from __future__ import annotations

import contextlib
import select
from collections.abc import Iterator

from agentenv.fleet.player import Player
from agentenv.fleet.program import Program
from agentenv.telemetry.wake import Wake

Running = Player | Program

# Edge-triggered: a ring is reported and left where it is. Reading a bell might block, because a guest can take its ring
# back between the report and the read.
_RINGS = select.EPOLLIN | select.EPOLLET


class Bells:
    """Who runs, and who of them rang.

    Args:
        wake: Ends a wait for any other reason; cleared here.

    Attributes:
        looks: How often it was looked who rang.
    """

    def __init__(self, wake: Wake) -> None:
        self._wake = wake
        self.looks = 0
        self._running: dict[int, Running] = {}  # by what is listened to
        self._mute: list[Running] = []
        self._epoll = select.epoll()
        self._epoll.register(wake.fd, select.EPOLLIN)

    def __iter__(self) -> Iterator[Running]:
        return iter([*self._running.values(), *self._mute])

    def add(self, running: Running) -> None:
        """Listen to it from now on."""
        self._running[running.bell] = running
        self._epoll.register(running.bell, _RINGS)

    def mute(self, running: Running) -> None:
        """Do not listen to it for a while, in which its bell may become another; it still counts as running."""
        self._forget(running)
        self._mute.append(running)

    def unmute(self, running: Running) -> None:
        """Listen to it again."""
        self._mute.remove(running)
        self.add(running)

    def remove(self, running: Running) -> None:
        """It runs no more. Before its descriptors are closed."""
        if running in self._mute:
            self._mute.remove(running)
        else:
            self._forget(running)

    def wait(self, timeout_s: float) -> list[Running]:
        """Sleep until somebody rings; returns who did. May return nobody, early."""
        rang = []
        for fd, _ in self._epoll.poll(timeout_s):
            if fd == self._wake.fd:
                self._wake.clear()
            elif fd in self._running:
                rang.append(self._running[fd])
        self.looks += 1
        return rang

    def _forget(self, running: Running) -> None:
        fd = next(fd for fd, one in self._running.items() if one is running)
        del self._running[fd]
        with contextlib.suppress(OSError):  # closed meanwhile
            self._epoll.unregister(fd)

    def close(self) -> None:
        """Free the descriptor."""
        self._epoll.close()
