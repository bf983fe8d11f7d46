"""The host's end of a cell's report socket: how the processes in it ended, in the words of its first process."""

from __future__ import annotations

import contextlib
import select
import socket

from agentenv.guest.keeper import EXIT, EXIT_MAGIC, FULL, HOLD, ORDER, WATCH
from agentenv.sandbox.cause import Exit


class Report:
    """What ended, and the orders to the one who reports it.

    Attributes:
        theirs: The end that goes into the cell; the caller closes it when it was sent.
    """

    def __init__(self) -> None:
        """Make the sockets.

        Raises:
            OSError: No descriptor is left.
        """
        self._mine, self.theirs = socket.socketpair()
        self._mine.setblocking(False)
        self._exits: dict[int, Exit] = {}
        self._rest = b""

    def hold(self) -> None:
        """Have the cell stay when its environment ends."""
        self._order(HOLD, 0)

    def watch(self, pid: int) -> None:
        """Have another process reported, by its pid inside."""
        self._order(WATCH, pid)

    def exit_of(self, pid: int | None, timeout_s: float = 0.0) -> Exit | None:
        """How a process ended, or the first of all where its pid is not known; None when that was not reported."""
        self._read()
        if timeout_s and self._find(pid) is None:
            poller = select.poll()
            poller.register(self._mine, select.POLLIN)
            poller.poll(int(timeout_s * 1000))
            self._read()
        return self._find(pid)

    def close(self) -> None:
        """Close both ends. Idempotent."""
        self._mine.close()
        self.theirs.close()

    def _find(self, pid: int | None) -> Exit | None:
        return next(iter(self._exits.values()), None) if pid is None else self._exits.get(pid)

    def _order(self, word: bytes, pid: int) -> None:
        with contextlib.suppress(OSError):  # gone: that will be seen elsewhere
            self._mine.send(ORDER.pack(word, pid))

    def _read(self) -> None:
        with contextlib.suppress(OSError):
            while part := self._mine.recv(1 << 12):
                self._rest += part
        while len(self._rest) >= EXIT.size:
            magic, kind, value, pid = EXIT.unpack(self._rest[: EXIT.size])
            self._rest = self._rest[EXIT.size :]
            if magic == EXIT_MAGIC:
                full = tuple(path for path, bit in FULL.items() if kind & bit)
                self._exits[pid] = Exit(None, value, full) if kind & 2 else Exit(value, None, full)
