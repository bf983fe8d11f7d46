"""What monitors print: the serial consoles of their machines and their own complaints, kept up to a limit.

A machine can print without end, and what it printed last is what explains its death. So a monitor writes into a pipe
that never makes it wait (what does not fit is lost), and one thread for all of them moves it into files. A file that
has reached its limit keeps its last half. Nothing here is ever fatal to a machine: a full disk loses lines.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import selectors
import threading
from pathlib import Path

logger = logging.getLogger("agentenv.sandbox")

_CHUNK = 1 << 16
_TAIL_BYTES = 1 << 16
# Escape sequences, and what else a terminal would act on.
_UNPRINTABLE = re.compile(r"\x1b\[[0-?]{0,64}[ -/]{0,8}[@-~]|[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e]")


def printable(text: str) -> str:
    """A text from inside a machine without what a terminal would act on, and such that files can hold it."""
    return _UNPRINTABLE.sub("", text).encode("utf-8", "replace").decode("utf-8")


class Console:
    """The console of one machine; made by ``Consoles.open``."""

    def __init__(self, path: Path, limit: int) -> None:
        self._limit = max(limit, 2)
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        self._size = 0
        self._lock = threading.Lock()
        self._ended = threading.Event()

    def tail(self, lines: int) -> str:
        """The last lines, safe for a terminal."""
        with self._lock:
            if self._file < 0:
                return ""
            data = os.pread(self._file, _TAIL_BYTES, max(0, self._size - _TAIL_BYTES))
        text = printable(data.decode("utf-8", "replace"))
        return "\n".join(text.rstrip("\n").split("\n")[-lines:])

    def await_end(self, timeout_s: float) -> bool:
        """Wait until all that a monitor printed before it ended has arrived."""
        return self._ended.wait(timeout_s)

    def add(self, data: bytes) -> None:
        """Append; what is older than the limit allows goes."""
        with self._lock, contextlib.suppress(OSError):
            if self._file < 0:
                return
            if self._size + len(data) > self._limit:
                keep = self._limit // 2
                data = (os.pread(self._file, keep, max(0, self._size - keep)) + data)[-keep:]
                os.ftruncate(self._file, 0)
                self._size = 0
            self._size += os.pwrite(self._file, data, self._size)

    def finish(self) -> None:
        """Nothing more will come."""
        self._ended.set()

    def close(self) -> None:
        """Close the file, which stays. Idempotent."""
        with self._lock:
            if self._file >= 0:
                os.close(self._file)
                self._file = -1


class Consoles:
    """Reads all consoles of a run in one thread, which starts with the first."""

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()
        self._wake_read, self._wake_write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._selector.register(self._wake_read, selectors.EVENT_READ)
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._closed = False

    def open(self, path: Path, limit: int) -> tuple[Console, int]:
        """Begin a console.

        Args:
            path: The file it is kept in; made anew.
            limit: How many bytes of it are kept.

        Returns:
            The console, and the descriptor that the monitor writes to: the caller closes it once the monitor has it.
        """
        with self._lock:
            if self._closed:
                raise ValueError("the consoles are closed; expected to be asked before the end of the run")
            console = Console(path, limit)
            read, write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
            self._selector.register(read, selectors.EVENT_READ, console)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="agentenv-consoles", daemon=True)
                self._thread.start()
            return console, write

    def close(self) -> None:
        """Stop reading. Idempotent."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            os.close(self._wake_write)
        if self._thread is not None:
            self._thread.join()
        for key in list(self._selector.get_map().values()):
            self._drop(key)
        self._selector.close()

    def _run(self) -> None:
        while True:
            for key, _events in self._selector.select():
                if key.data is None:
                    return
                self._read(key)

    def _read(self, key: selectors.SelectorKey) -> None:
        try:
            data = os.read(key.fd, _CHUNK)
        except BlockingIOError:
            return
        except OSError as error:
            logger.warning("a console cannot be read any more: %s", error)
            data = b""
        if data:
            key.data.add(data)
        else:
            self._drop(key)

    def _drop(self, key: selectors.SelectorKey) -> None:
        self._selector.unregister(key.fd)
        os.close(key.fd)
        if key.data is not None:
            key.data.finish()
