"""Events: on file, in logging, and harmless to print."""

from __future__ import annotations

import logging
import subprocess
import sys
from dataclasses import FrozenInstanceError
from pathlib import Path

import pytest

from agentenv.telemetry.events import Event, EventLog, read_events


def test_events_reach_file_and_logging(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "events.jsonl"
    times = iter([10.0, 11.5])
    with EventLog(path, clock=lambda: next(times)) as log, caplog.at_level(logging.INFO, "agentenv"):
        started = log.emit("run_started", runtime="bubblewrap")
        died = log.emit("env_died", "agent_1", level=logging.WARNING, signal=9, detail="bad\x1b[2J\nline")
    assert read_events(path) == ([started, died], 0)
    assert died == Event(11.5, "agent_1", "env_died", {"signal": 9, "detail": "bad\x1b[2J\nline"})
    assert [(record.levelname, record.getMessage()) for record in caplog.records] == [
        ("INFO", "run_started runtime=bubblewrap"),
        ("WARNING", "agent_1: env_died signal=9 detail=bad line"),
    ]
    assert caplog.records[1].event is died  # type: ignore[attr-defined]  # added by the logger


def test_without_a_file() -> None:
    log = EventLog(None)
    assert log.emit("run_started").kind == "run_started"
    log.close()


def test_events_are_frozen() -> None:
    event = Event(0.0, None, "x", {"a": 1})
    with pytest.raises(FrozenInstanceError):
        event.kind = "y"  # type: ignore[misc]  # wrong on purpose
    with pytest.raises(TypeError):
        event.fields["a"] = 2  # type: ignore[index]  # wrong on purpose


def test_damage_is_counted(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    with EventLog(path) as log:
        log.emit("kept")
    with path.open("ab") as file:
        file.write(b'{"time": 1')
    events, damaged = read_events(path)
    assert [event.kind for event in events] == ["kept"]
    assert damaged == 1


def test_a_full_disk_loses_the_file_only(caplog: pytest.LogCaptureFixture) -> None:
    with EventLog(Path("/dev/full")) as log, caplog.at_level(logging.INFO, "agentenv.events"):
        log.emit("env_started", "agent_1")
        assert log.lost == 1
    assert "agent_1: env_started" in caplog.text


def test_importing_configures_no_logging() -> None:
    script = (
        "import logging, agentenv.telemetry.events as events;"
        "events.EventLog(None).emit('x', level=logging.ERROR);"
        "assert logging.getLogger().handlers == [];"
        "assert [type(h) for h in logging.getLogger('agentenv').handlers] == [logging.NullHandler]"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, timeout=60, check=False)
    assert (done.returncode, done.stderr, done.stdout) == (0, b"", b"")
