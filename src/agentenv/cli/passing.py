"""Passing bytes and signals between this process and a program in a sandbox, until that one has ended.

The descriptors of this process are never given away: a terminal, or a pipe that others write to as well, would become
non-blocking for all of them. A thread for each direction copies, so that none waits for another.
"""

from __future__ import annotations

import contextlib
import errno
import math
import os
import select
import signal
import stat
import threading
import time
from types import FrameType
from typing import IO

from agentenv.boxes.process import Process
from agentenv.boxes.results import Ending
from agentenv.cli.exits import Ended
from agentenv.errors import AgentEnvError, RuntimeUnavailable

_CHUNK = 1 << 16
_LATE = 124
_STANDARD = 3
_FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
# After the end of the program: what it has left running may hold its output open for ever, and write to it.
_QUIET_MS = 1000
_IN_FLIGHT = 8 << 20
_WAITED_S = 10.0
_KILLED_S = 10.0
_LOOK_S, _LEAST_S = 1.0, 0.01
_PATIENCE = 2


class Passing:
    """One program.

    Attributes:
        failed: Why one of our descriptors did not give or take all of it, by its number; that a reader has left or a
            terminal is gone is no failure.
    """

    def __init__(self, process: Process, timeout_s: float | None, name: str) -> None:
        """Pass nothing yet.

        Args:
            process: The program.
            timeout_s: Seconds until it is killed; None for as long as it takes.
            name: Of its sandbox.
        """
        self._name = name
        self._leave_by = math.inf
        self._process = process
        self._timeout_s = timeout_s
        self._signals = 0
        self.failed: dict[int, OSError] = {}
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
            ending, late = self._await_end()
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

    def _await_end(self) -> tuple[Ending, bool]:
        """How it ended, and whether that was because its time was over."""
        over = math.inf if self._timeout_s is None else time.monotonic() + self._timeout_s
        late = False
        while True:
            now = time.monotonic()
            if now >= self._leave_by:
                said = f"it has not told that the program ended, {_KILLED_S:g} s after it was told to kill it"
                raise RuntimeUnavailable(f"{self._name}: {said}", f"agentenv sandbox rm {self._name}")
            if now >= over and not late:
                late = True
                self._leave_by = now + _KILLED_S
                self._tell(signal.SIGKILL)
            try:
                left = min(_LOOK_S, self._leave_by - now, math.inf if late else over - now)
                return self._process.wait(max(left, _LEAST_S)), late
            except TimeoutError as error:
                if isinstance(error, AgentEnvError):
                    raise

    def _forward(self, number: int, _frame: FrameType | None) -> None:
        """A signal that came here is meant for the program; the second one kills it; the third one ends us alone."""
        self._signals += 1
        if self._signals > _PATIENCE:
            raise Ended(number)
        if self._signals == _PATIENCE:
            self._leave_by = min(self._leave_by, time.monotonic() + _KILLED_S)
        # In a thread, since a machine that does not answer would hold up whoever waits here.
        wanted = number if self._signals == 1 else signal.SIGKILL
        threading.Thread(target=self._tell, args=(wanted,), daemon=True).start()

    def _tell(self, number: int) -> None:
        with contextlib.suppress(AgentEnvError, OSError):
            self._process.signal(number)

    def _pass_in(self) -> None:
        stream = self._process.stdin
        if stream is None:
            return
        with contextlib.suppress(OSError, ValueError):  # it reads no more
            while data := self._take_in():
                _write(stream.fileno(), data)
        with contextlib.suppress(OSError):
            stream.close()

    def _take_in(self) -> bytes:
        try:
            return os.read(0, _CHUNK)
        except OSError as error:
            self._note(0, error)
            return b""

    def _note(self, number: int, error: OSError) -> None:
        over = error.errno == errno.EPIPE or (error.errno == errno.EIO and stat.S_ISCHR(os.fstat(number).st_mode))
        if not over:
            self.failed[number] = error

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
                    try:
                        _write(number, data)
                    except OSError as error:
                        self._note(number, error)
                        raise
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
