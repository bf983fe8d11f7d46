"""What happened in a run, in order: one record each, and one line through ``logging``.

Loggers stand under ``agentenv``. As a library we set no level and add no handler but the null one: where the lines
go is the application's choice (our command line makes it for its own users).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Any, Self

from agentenv.telemetry.records import RecordWriter, read_records
from agentenv.telemetry.text import one_line

logging.getLogger("agentenv").addHandler(logging.NullHandler())
_logger = logging.getLogger("agentenv.events")


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened.

    Attributes:
        time: Seconds since the epoch.
        env_id: The environment it concerns; None for the run as a whole.
        kind: A short name, such as ``env_started``; the vocabulary is the emitter's.
        fields: Details, fit for JSON; read-only.
    """

    time: float
    env_id: str | None
    kind: str
    fields: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "fields", MappingProxyType(dict(self.fields)))

    def __str__(self) -> str:
        details = " ".join(f"{key}={one_line(str(value), 200)}" for key, value in self.fields.items())
        subject = "" if self.env_id is None else f"{self.env_id}: "
        return f"{subject}{self.kind}" + (f" {details}" if details else "")


class EventLog:
    """Keeps events in ``events.jsonl`` and passes them to the logger ``agentenv.events``.

    Each log record carries the event as its attribute ``event``. A full disk loses events from the file, never the
    run: see ``RecordWriter``. Any thread.

    Args:
        path: The file; None for ``logging`` only.
        clock: Gives the time, in seconds since the epoch.
    """

    def __init__(self, path: Path | None, *, clock: Callable[[], float] = time.time) -> None:
        self._writer = None if path is None else RecordWriter(path)
        self._clock = clock

    @property
    def lost(self) -> int:
        """Events missing from the file."""
        return 0 if self._writer is None else self._writer.lost

    def emit(self, kind: str, env_id: str | None = None, *, level: int = logging.INFO, **fields: Any) -> Event:
        """Records an event now and returns it.

        Args:
            kind: A short name.
            env_id: The environment it concerns.
            level: The level of its line in ``logging``; the file gets every event.
            **fields: Details.

        Raises:
            ValueError: a field contains itself.
        """
        event = Event(self._clock(), env_id, kind, fields)
        if self._writer is not None:
            self._writer.append(
                {"time": event.time, "env_id": event.env_id, "kind": event.kind, "fields": event.fields}
            )
        _logger.log(level, "%s", event, extra={"event": event})
        return event

    def close(self) -> None:
        """Closes the file. Idempotent."""
        if self._writer is not None:
            self._writer.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def read_events(path: Path) -> tuple[list[Event], int]:
    """Reads the events back, and the number of damaged lines; a file that does not exist holds none.

    Raises:
        OSError: the file exists but cannot be read.
    """
    records, damaged = read_records(path)
    events = []
    for record in records:
        try:
            events.append(Event(float(record["time"]), record["env_id"], str(record["kind"]), record["fields"]))
        except (KeyError, TypeError, ValueError):
            damaged += 1
    return events, damaged
