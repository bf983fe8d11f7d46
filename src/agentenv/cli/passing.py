"""Passing bytes and signals between this process and a program in a sandbox, until that one has ended.

The descriptors of this process are never given away: a terminal, or a pipe that others write to as well, would become
non-blocking for all of them. A thread for each direction copies, so that none waits for another.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import threading
import time
from types import FrameType
from typing import IO

from agentenv.boxes.process import Process
from agentenv.errors import AgentEnvError

_CHUNK = 1 << 16
_LATE = 124
_STANDARD = 3
_FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
# After the end of the program: what it has left running may hold its output open for ever, and write to it.
_QUIET_MS = 1000
_IN_FLIGHT = 8 << 20
_WAITED_S = 10.0
_KILLED_S = 10.0


class Passing:
    """One program."""

    def __init__(self, process: Process, timeout_s: float | None) -> None:
        """Pass nothing yet.

        Args:
            process: The program.
            timeout_s: Seconds until it is killed; None for as long as it takes.
        """
        self._process = process
        self._timeout_s = timeout_s
        self._signals = 0
        self._over, self._end = os.pipe()

    def run(self) -> int:
        """Pass everything on until it has ended; returns the exit code, as shells have it.

        Raises:
            SandboxDied: The sandbox is gone.
        """
        process = self._process
        before = {number: signal.signal(number, self._forward) for number in _FORWARDED}
        outputs = [
            threading.Thread(target=self._pass_out, args=(stream, number), daemon=True)
            for stream, number in ((process.stdout, 1), (process.stderr, 2))
            if stream is not None
        ]
        try:
            threading.Thread(target=self._pass_in, daemon=True).start()
            for thread in outputs:
                thread.start()
            try:
                ending, late = process.wait(self._timeout_s), False
            except TimeoutError as error:
                if isinstance(error, AgentEnvError):
                    raise
                process.kill()
                ending, late = process.wait(_KILLED_S), True
            os.write(self._end, b"x")
            for thread in outputs:
                thread.join()
            return _LATE if late else ending.shell_code
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
            for fd in (self._over, self._end):
                os.close(fd)
            process.let_go()

    def _forward(self, number: int, _frame: FrameType | None) -> None:
        """A signal that came here is meant for the program; the second one is meant."""
        self._signals += 1
        with contextlib.suppress(AgentEnvError, OSError):
            self._process.signal(number if self._signals == 1 else signal.SIGKILL)

    def _pass_in(self) -> None:
        stream = self._process.stdin
        if stream is None:
            return
        with contextlib.suppress(OSError, ValueError):  # it reads no more, or we have none
            while data := os.read(0, _CHUNK):
                _write(stream.fileno(), data)
        with contextlib.suppress(OSError):
            stream.close()

    def _pass_out(self, stream: IO[bytes], number: int) -> None:
        source = stream.fileno()
        left = _IN_FLIGHT
        waited = 0.0
        ended = False
        poller = select.poll()
        poller.register(source, select.POLLIN)
        poller.register(self._over, select.POLLIN)
        with contextlib.suppress(OSError):
            while left > 0 and waited < _WAITED_S:
                began = time.monotonic()
                ready = {fd for fd, _ in poller.poll(_QUIET_MS if ended else None)}
                waited += time.monotonic() - began if ended else 0.0
                if not ended and self._over in ready:
                    ended = True
                    poller.unregister(self._over)
                elif not ready:
                    return
                if source in ready:
                    data = os.read(source, _CHUNK)
                    if not data:
                        return
                    left -= len(data) if ended else 0
                    _write(number, data)
            return
        # Whoever read us has gone: so the program is told, by a pipe that nobody reads.
        with contextlib.suppress(OSError):
            stream.close()


def have_standard_descriptors() -> None:
    """Where one of the first three is closed, something else would get its number, and be taken for it."""
    while (fd := os.open(os.devnull, os.O_RDWR)) < _STANDARD:
        os.set_inheritable(fd, True)
    os.close(fd)


def _write(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        try:
            view = view[os.write(fd, view) :]
        except BlockingIOError:  # somebody else made it so
            select.select([], [fd], [])
