"""A program in a sandbox that is talked to while it runs."""

from __future__ import annotations

import contextlib
import io
import os
import select
import signal as signals
import threading
import time
from types import TracebackType
from typing import IO, Any, Self

from agentenv.boxes.access import Access
from agentenv.boxes.arguments import read_signal, read_size, read_wait
from agentenv.boxes.pipes import Pipes
from agentenv.boxes.results import Ending
from agentenv.boxes.status import MOST_BYTES, died, read_ending
from agentenv.errors import AgentEnvError
from agentenv.sandbox.workbench import Task

_GONE_S = 5.0
_CHUNK = 4096
_SHOWN = 200


class _Input(io.BufferedWriter):
    """What is written is written whole, and at once."""

    def write(self, data: Any, /) -> int:
        count = super().write(data)
        self.flush()
        return count


class Process:
    """A program that runs in a sandbox, or has ended there.

    It goes on when nobody listens. As a context manager it is killed at the end of the block, unless it has ended.
    Whoever starts a program that writes much must read it, or it waits; ``Sandbox.exec`` does all of it at once.

    Attributes:
        stdin: A binary file that it reads; close it to tell it that there is no more. None where it was given nothing.
        stdout: A binary file with what it writes.
        stderr: The same for its standard error; None with a terminal, where all comes on ``stdout``.
        number: Of the task, in its sandbox.
    """

    def __init__(self, access: Access, task: Task, *, stdin: bool, stdout: bool = True, stderr: bool = True) -> None:
        """Start it.

        Raises:
            OSError: It cannot be started; as the right builtin.
            RuntimeUnavailable: The sandbox stands still.
            SandboxDied: It is gone.
        """
        self._access = access
        words = task.argv or [str((task.work or {}).get(key, "")) for key in ("op", "path")]
        self._called = " ".join(words)[:_SHOWN]  # for people
        self._lock = threading.Lock()
        self._told = b""
        self._ending: Ending | None = None
        pipes = Pipes(stdin=stdin, stdout=stdout, stderr=stderr and task.terminal is None)
        try:
            self.number = access.start(task, pipes.theirs)
            pipes.send_off()
            self.stdin: IO[bytes] | None = None
            if pipes.stdin >= 0:
                self.stdin = _Input(io.FileIO(pipes.release(pipes.stdin), "wb"))
            self.stdout: IO[bytes] | None = self._open(pipes, pipes.stdout)
            self.stderr: IO[bytes] | None = self._open(pipes, pipes.stderr)
            self._status = pipes.release(pipes.status)
        except BaseException:
            pipes.close()
            raise

    @staticmethod
    def _open(pipes: Pipes, fd: int) -> IO[bytes] | None:
        return None if fd < 0 else open(pipes.release(fd), "rb")  # the caller of Process closes it

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def ending(self) -> Ending | None:
        """How it ended; None while it runs. Does not wait."""
        try:
            return self.wait(0.0)
        except TimeoutError:
            return None

    def wait(self, timeout_s: float | None = None) -> Ending:
        """Wait until it has ended.

        Args:
            timeout_s: Seconds to wait at most, 0 for not at all; None for as long as it takes.

        Raises:
            TimeoutError: It still runs.
            SandboxDied: Its sandbox is gone, and with it how it ended.
            OSError: For work on files: it failed; as the right builtin.
        """
        patience_s = read_wait(timeout_s)
        deadline = None if patience_s is None else time.monotonic() + patience_s
        with self._lock:
            if self._ending is not None:
                return self._ending
            while self._status >= 0:
                left = None if deadline is None else max(0.0, deadline - time.monotonic())
                poller = select.poll()
                poller.register(self._status, select.POLLIN)
                if not poller.poll(None if left is None else int(left * 1000 + 0.999)):
                    what = f"{self._called!r} still runs after {patience_s:g} s"
                    raise TimeoutError(f"sandbox {self._access.id!r}: {what}")
                part = os.read(self._status, _CHUNK)
                self._told += part[: MOST_BYTES - len(self._told)]
                if not part:
                    self._close_status()
            if not self._told:
                raise died(self._access.id, self._access.await_cause(_GONE_S))
            self._ending = read_ending(self._told, self._access.id)
            return self._ending

    def signal(self, number: int | str) -> None:
        """Send it a signal; one that has ended is left alone. SIGKILL ends all it has started as well.

        Args:
            number: As a number, as one of ``signal.Signals``, or as its name with or without "SIG".

        Raises:
            ConfigError: There is no such signal.
        """
        self._access.signal(self.number, read_signal(number))

    def kill(self) -> None:
        """End it, and all it has started."""
        self.signal(signals.SIGKILL)

    def resize(self, rows: int, columns: int) -> None:
        """Change the size of its terminal."""
        self._access.resize(self.number, *read_size((rows, columns), "rows, columns"))

    def close(self) -> None:
        """Let go of it; kill it if it still runs. Idempotent."""
        if self._status >= 0:
            with contextlib.suppress(OSError, AgentEnvError):
                if self.ending is None:
                    self.kill()
        self.let_go()

    def let_go(self) -> None:
        """Close the files, and leave the program to itself. Idempotent."""
        for stream in (self.stdin, self.stdout, self.stderr):
            if stream is not None:
                with contextlib.suppress(OSError):  # what was not written yet is for nobody any more
                    stream.close()
        with self._lock:
            self._close_status()

    def _close_status(self) -> None:
        if self._status >= 0:
            os.close(self._status)
            self._status = -1
