"""The watch of a cell's first process over its children: reaps everything, tells the host how the environment ended.

It speaks on a socket of its own, which the environment does not hold, so that nobody inside can forge a report or keep
one out. Without further word from the host it ends when the environment has. The host can tell it to stay, where
processes are parked beside the environment that can take its place, and to report another child as well.

    host -> keeper   HOLD: stay, whoever ends.   WATCH: report this child too
    keeper -> host   EXIT: a child that is watched has ended
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import struct

EXIT = struct.Struct("<4sIiI")
"""Magic; 1 (exited) or 2 (killed by a signal), with a bit of ``FULL`` for each disk that is full; exit status or
signal; pid as its namespace numbers it."""
EXIT_MAGIC = b"\x00EXT"
ORDER = struct.Struct("<4sI")
"""``HOLD`` or ``WATCH``, and a pid."""
HOLD, WATCH = b"hold", b"wtch"
FULL = {"/tmp": 16, "/dev/shm": 32}
"""Bits for the private file systems, where no room is left in them."""

_NO_ROOM_BYTES = 64 << 10

_REMEMBERED = 256


class Keeper:
    """Reaps the children of this process. Make it before the first is forked."""

    def __init__(self, report: socket.socket) -> None:
        """Take over the keeper's end of the report socket."""
        self._report = report
        self._wake, self._woken = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._watched: set[int] = set()
        self._ended: dict[int, int] = {}  # statuses of children nobody had asked about when they were reaped
        self._hold = False
        self._stopped = False
        signal.signal(signal.SIGCHLD, lambda _number, _frame: None)
        signal.set_wakeup_fd(self._woken, warn_on_full_buffer=False)

    def leave(self) -> None:
        """In a child: give up everything of the keeper's."""
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.close(self._wake)
        os.close(self._woken)
        self._report.close()

    def stop(self) -> None:
        """End ``keep`` soon. For a signal handler."""
        self._stopped = True

    def keep(self, child: int) -> None:
        """Reap until ``child`` has ended or, when told to stay, until told to go; then close the report socket."""
        self._watched.add(child)
        self._report.setblocking(False)
        poller = select.poll()
        poller.register(self._report, select.POLLIN)
        poller.register(self._wake, select.POLLIN)
        while not self._stopped:
            self._reap()
            if not self._obey():
                break
            if not self._watched and not self._hold:
                break
            poller.poll()
            with contextlib.suppress(BlockingIOError):
                os.read(self._wake, 4096)
        self._report.close()

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if pid in self._watched:
                self._watched.discard(pid)
                self._tell(pid, status)
            else:
                self._ended[pid] = status
                if len(self._ended) > _REMEMBERED:
                    del self._ended[next(iter(self._ended))]

    def _obey(self) -> bool:
        """Read the host's orders; False when it is gone."""
        while True:
            try:
                data = self._report.recv(ORDER.size)
            except BlockingIOError:
                return True
            except OSError:
                return False
            if len(data) < ORDER.size:
                return False
            word, pid = ORDER.unpack(data)
            if word == HOLD:
                self._hold = True
            elif word == WATCH:
                status = self._ended.pop(pid, None)
                if status is None:
                    self._watched.add(pid)
                else:
                    self._tell(pid, status)

    def _tell(self, pid: int, status: int) -> None:
        full = sum(bit for path, bit in FULL.items() if _is_full(path))
        if os.WIFSIGNALED(status):
            record = EXIT.pack(EXIT_MAGIC, 2 | full, os.WTERMSIG(status), pid)
        else:
            record = EXIT.pack(EXIT_MAGIC, 1 | full, os.WEXITSTATUS(status), pid)
        with contextlib.suppress(OSError):
            self._report.send(record)


def _is_full(path: str) -> bool:
    try:
        found = os.statvfs(path)
    except OSError:
        return False
    return found.f_blocks > 0 and (
        found.f_bavail * found.f_frsize < _NO_ROOM_BYTES or (found.f_files > 0 and found.f_favail == 0)
    )
