"""Where sandboxes write: a pair of capped log files each when there is a run directory, memory when there is none."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

from agentenv.telemetry.logs import LogPump, LogSink


class SandboxOutput:
    """The ``Output`` of the sandbox contract, over one log pump."""

    def __init__(self, place: Callable[[str], Path | None]) -> None:
        """``place`` gives the directory for a sandbox's logs, or None to keep only the last lines in memory."""
        self._place = place
        self._pump = LogPump()
        self._lock = threading.Lock()
        self._sinks: dict[str, dict[str, LogSink]] = {}

    def take(self, sandbox_id: str, stream: str, fd: int) -> None:
        """Own the read end of a pipe."""
        directory = self._place(sandbox_id)
        with self._lock:
            sinks = self._sinks.setdefault(sandbox_id, {})
            sink = sinks.get(stream)
            if sink is None or sink.closed:
                sink = sinks[stream] = LogSink(None if directory is None else directory / f"{stream}.log")
        self._pump.attach(fd, sink)

    def drain(self, sandbox_id: str) -> None:
        """Read what is still in the pipes, without waiting."""
        for sink in self._of(sandbox_id):
            self._pump.drain(sink)

    def tail(self, sandbox_id: str, lines: int = 20) -> str:
        """Its last lines: standard error after standard output."""
        parts = [sink.tail(lines) for sink in self._of(sandbox_id)]
        return "\n".join(part for part in parts if part)

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
