"""One thread that carries the output of every environment from its pipe to its sink.

An environment that floods is read as fast as the disk takes it but never before its siblings' turn; one that dies
is read to its end; one whose sink fails is dropped and said. The thread never blocks on a pipe and never dies of
what comes out of one. It does not look at the bytes: that is the reader's business.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import selectors
import threading
import weakref
from types import TracebackType
from typing import Self

from agentenv.errors import ClosedError, ResourceLimit, counted
from agentenv.telemetry.sink import LogSink
from agentenv.telemetry.stream import TURN_BYTES, Stream
from agentenv.telemetry.wake import Wake

_logger = logging.getLogger("agentenv.telemetry")

# After a turn that found little, wait this long before the next look. Environments that print a line a step would
# otherwise wake this thread at every step, and each wake-up takes the interpreter lock from the thread that steps.
_COALESCE_S = 0.001
_JOIN_S = 5.0


class LogPump:
    """Reads any number of pipes with one daemon thread, started at the first ``attach``.

    In a forked child the pump is inert: the child's copies of the descriptors are closed, ``attach`` raises,
    everything else does nothing; the parent's pump goes on untouched.
    """

    def __init__(self) -> None:
        # Order of locks: a stream's, then this one. Never the other way round.
        self._lock = threading.Lock()
        self._streams: dict[int, Stream] = {}
        self._selector: selectors.BaseSelector | None = None
        self._wake: Wake | None = None
        self._thread: threading.Thread | None = None
        self._stop = threading.Event()
        self._closed = False
        _pumps.add(self)

    @property
    def closed(self) -> bool:
        """Whether it was closed, or belongs to the process this one was forked from."""
        return self._closed

    def start(self) -> None:
        """Starts the thread. Idempotent; ``attach`` does it too.

        Raises:
            ClosedError: after ``close``, or in a forked child.
            ResourceLimit: no descriptor or thread is left for it.
        """
        with self._lock:
            self._start()

    def attach(self, fd: int, sink: LogSink) -> None:
        """Takes ownership of a read end: makes it non-blocking, reads it to its end, closes it.

        If this raises, the descriptor still belongs to the caller.

        Args:
            fd: The read end of a pipe, a socket or a pseudo-terminal.
            sink: Takes its bytes. One sink may take several descriptors, one after the other or at once.

        Raises:
            ClosedError: after ``close``, or in a forked child.
            ResourceLimit: no descriptor or thread is left for it.
            ValueError: not an open descriptor, one that cannot be waited for, or attached already.
        """
        with self._lock:
            selector, wake = self._start()
            if fd in self._streams:
                raise ValueError(f"expected a descriptor not attached yet, got {fd}, which is")
            stream = Stream(fd, sink, self._ended)
            try:
                os.set_blocking(fd, False)
                selector.register(fd, selectors.EVENT_READ, stream)
            except (OSError, ValueError) as error:
                if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.ENOMEM):
                    raise ResourceLimit(error.errno, f"no room to watch one more descriptor: {error}") from error
                raise ValueError(f"expected the read end of a pipe or socket, got descriptor {fd}: {error}") from error
            self._streams[fd] = stream
        wake.set()

    def detach(self, fd: int) -> None:
        """Stops reading a descriptor and closes it; what it still holds is lost. Unknown descriptors are ignored."""
        with self._lock:
            stream = self._streams.get(fd)
        if stream is not None:
            stream.end()

    def release(self, sink: LogSink) -> None:
        """Stops reading every descriptor of a sink and closes it. By sink, because a number may be another's by now."""
        for stream in self._of(sink):
            stream.end()

    def drain(self, sink: LogSink) -> None:
        """Reads what is in the sink's pipes now, without waiting; at most 1 MiB from each.

        For the moment after a process died: when this returns, the sink's tail holds its last words. Any thread.
        """
        for stream in self._of(sink):
            stream.exhaust()

    def close(self) -> None:
        """Reads what is left in the pipes, closes them and ends the thread. Idempotent; bounded in time."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            thread, wake, selector = self._thread, self._wake, self._selector
            streams = list(self._streams.values())
        self._stop.set()
        if wake is not None:
            wake.set()
        if thread is not None and thread is not threading.current_thread():
            thread.join(_JOIN_S)
            if thread.is_alive():
                _logger.warning(
                    "the log thread did not end within %.0f s (a disk that hangs?); %s left to it",
                    _JOIN_S,
                    counted(len(streams), "pipe"),
                )
                return
        for stream in streams:
            stream.exhaust()
            stream.end()
        if selector is not None:
            selector.close()
        if wake is not None:
            wake.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _of(self, sink: LogSink) -> list[Stream]:
        with self._lock:
            return [stream for stream in self._streams.values() if stream.sink is sink]

    def _start(self) -> tuple[selectors.BaseSelector, Wake]:
        """Under ``_lock``."""
        if self._closed:
            raise ClosedError("this log pump was closed, or belongs to the parent of this process; make a new one")
        if self._selector is not None and self._wake is not None:
            return self._selector, self._wake
        with contextlib.ExitStack() as undo:
            try:
                selector = selectors.DefaultSelector()
                undo.callback(selector.close)
                wake = Wake()
                undo.callback(wake.close)
                selector.register(wake.fd, selectors.EVENT_READ, None)
                thread = threading.Thread(target=self._run, args=(selector, wake), name="agentenv-logs", daemon=True)
                thread.start()
            except (OSError, RuntimeError) as error:
                number = getattr(error, "errno", None) or errno.EAGAIN
                raise ResourceLimit(number, f"the log thread needs 2 descriptors and a thread: {error}") from error
            undo.pop_all()
        self._selector, self._wake, self._thread = selector, wake, thread
        return selector, wake

    def _run(self, selector: selectors.BaseSelector, wake: Wake) -> None:
        while not self._stop.is_set():
            busy = False
            for key, _ in selector.select():
                if key.data is None:
                    wake.clear()
                else:
                    busy = key.data.turn() >= TURN_BYTES // 2 or busy
            if not busy:
                self._stop.wait(_COALESCE_S)

    def _ended(self, stream: Stream) -> None:
        """Stops watching, before the descriptor is closed. Under the stream's lock."""
        with self._lock:
            self._streams.pop(stream.fd, None)
            # Explicitly: closing alone leaves a descriptor in epoll while a forked child holds a copy.
            if self._selector is not None:
                with contextlib.suppress(KeyError, OSError):
                    self._selector.unregister(stream.fd)

    def _forget(self) -> None:
        """In a forked child. Takes no lock: its holder may be a thread that does not exist here. Unregisters nothing:
        the epoll set is shared with the parent."""
        self._lock = threading.Lock()
        streams, self._streams = self._streams, {}
        for stream in streams.values():
            stream.forget()
        if not self._closed:
            for resource in (self._selector, self._wake):
                if resource is not None:
                    with contextlib.suppress(OSError):
                        resource.close()
        self._selector = self._wake = self._thread = None
        self._closed = True


_pumps: weakref.WeakSet[LogPump] = weakref.WeakSet()
_shared: LogPump | None = None
_shared_lock = threading.Lock()


def shared_pump() -> LogPump:
    """Returns the process's own pump, made at the first call and again after a fork; nobody needs to close it."""
    global _shared
    with _shared_lock:
        if _shared is None or _shared.closed:
            _shared = LogPump()
        return _shared


def _forget_all() -> None:
    global _shared_lock
    _shared_lock = threading.Lock()
    for pump in list(_pumps):
        pump._forget()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_all)
