"""Where sandboxes write: a pair of capped log files each when there is a run directory, memory when there is none."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

from agentenv.telemetry.logs import LogPump, LogSink, one_line
from agentenv.telemetry.regular import open_regular

_STREAMS = ("stdout", "stderr")
# Room for the stacks of many threads, which go to standard error.
_TAIL_BYTES = {"stderr": 64 << 10}


class SandboxOutput:
    """The ``Output`` of the sandbox contract, over one log pump."""

    def __init__(self, place: Callable[[str], Path | None]) -> None:
        """``place`` gives the directory for a sandbox's logs, or None to keep only the last lines in memory."""
        self._place = place
        self._pump = LogPump()
        self._lock = threading.Lock()
        self._sinks: dict[str, dict[str, LogSink]] = {}
        self._marks: dict[str, str] = {}

    def take(self, sandbox_id: str, stream: str, fd: int) -> None:
        """Own the read end of a pipe."""
        directory = self._place(sandbox_id)
        with self._lock:
            sinks = self._sinks.setdefault(sandbox_id, {})
            sink = sinks.get(stream)
            if sink is None or sink.closed:
                path = None if directory is None else directory / f"{stream}.log"
                sink = sinks[stream] = LogSink(path, tail_bytes=_TAIL_BYTES.get(stream, 16 << 10))
        self._pump.attach(fd, sink)

    def drain(self, sandbox_id: str) -> None:
        """Read what is still in the pipes, without waiting."""
        for sink in self._of(sandbox_id):
            self._pump.drain(sink)

    def tail(self, sandbox_id: str, lines: int = 20) -> str:
        """Its last lines: standard error after standard output."""
        parts = [sink.tail(lines) for sink in self._of(sandbox_id)]
        return "\n".join(part for part in parts if part)

    def text(self, sandbox_id: str, stream: str) -> str:
        """What is remembered of one stream since the last mark, at most 64 KiB, safe for a terminal."""
        sink = self._find(sandbox_id, stream)
        text = "" if sink is None else sink.tail(_TAIL_BYTES.get(stream, 16 << 10))
        mark = self._marks.get(sandbox_id)
        return text if mark is None else text.rpartition(mark)[2].removeprefix("\n")

    def received(self, sandbox_id: str, stream: str) -> int:
        """Bytes that came on one stream since the sandbox was last started."""
        sink = self._find(sandbox_id, stream)
        return 0 if sink is None else sink.received_bytes

    def mark(self, sandbox_id: str, text: str) -> None:
        """Put ``--- agentenv: text ---`` on a line of its own into the log files of a sandbox, where there are any.

        For the moment between the end of a process and the start of the one in its place: what both print stands in
        the same files, in order. Call it after the old one was killed, so that its last words come before the mark.
        """
        directory = self._place(sandbox_id)
        if directory is None:
            return
        self._marks[sandbox_id] = f"--- agentenv: {one_line(text)} ---"
        for stream in _STREAMS:
            sink = self._find(sandbox_id, stream)
            if sink is not None and not sink.closed:
                self._pump.drain(sink)
                sink.mark(text)
                continue
            path = directory / f"{stream}.log"
            # A sink for this line alone: what the next sandbox prints is not to begin with ours in memory.
            with LogSink(path) as passing:
                if _ends_within_a_line(path):
                    passing.write(b"\n")
                passing.mark(text)

    def release(self, sandbox_id: str) -> None:
        """Close what was taken for this sandbox; its last lines stay readable."""
        for sink in self._of(sandbox_id):
            self._pump.drain(sink)
            self._pump.release(sink)
            sink.close()

    def close(self) -> None:
        """End the pump. Idempotent."""
        self._pump.close()

    def _of(self, sandbox_id: str) -> list[LogSink]:
        with self._lock:
            return list(self._sinks.get(sandbox_id, {}).values())

    def _find(self, sandbox_id: str, stream: str) -> LogSink | None:
        with self._lock:
            return self._sinks.get(sandbox_id, {}).get(stream)


def _ends_within_a_line(path: Path) -> bool:
    try:
        with open_regular(path) as file:
            if file.seek(0, 2) == 0:
                return False
            file.seek(-1, 2)
            return file.read(1) != b"\n"
    except OSError:
        return False
