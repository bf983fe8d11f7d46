"""Reports of crashes: written whole, read back, thinned out, never in the way."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from agentenv.errors import Cause, CauseKind, Owner
from agentenv.fleet.crashes import (
    KEPT_FIRST,
    KEPT_LATEST,
    CrashReport,
    count_crashes,
    finish_crash,
    read_crashes,
    write_crash,
)
from agentenv.fleet.rundir import EnvDir, RunDir

CAUSE = Cause(CauseKind.OUT_OF_MEMORY, Owner.RESOURCES, "went over its memory limit", signal=9, oom_kills=1)
REPORT = CrashReport(
    env_id="a",
    number=0,
    time_unix=1000.5,
    cause=CAUSE,
    output="last words\nand more",
    stack="Current thread 0x1 (most recent call first):\n  File x",
    last_actions=[0, 1, 2],
    last_rewards=[0.0, 1.0, -0.5],
    usage={"cpu_s": 1.5, "memory_bytes": 1 << 20},
)
RECOVERY = {"how": "replay", "replayed_steps": 17, "duration_ms": 12.5}


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    return RunDir.create(tmp_path, "test", "id")


@pytest.fixture
def place(run: RunDir) -> EnvDir:
    return run.environment("a")


def test_what_is_written_is_read_back(run: RunDir, place: EnvDir) -> None:
    path = write_crash(place, REPORT)
    assert path == place.path / "crashes" / "1"
    assert sorted(os.listdir(path)) == ["output.txt", "report.json", "stack.txt"]
    assert read_crashes(run) == [replace(REPORT, number=1)]
    finish_crash(path, RECOVERY)
    assert read_crashes(run) == [replace(REPORT, number=1, recovery=RECOVERY)]
    assert os.listdir(place.path / "crashes") == ["1"]


def test_numbers_go_up_and_none_is_used_twice(run: RunDir, place: EnvDir) -> None:
    assert write_crash(place, REPORT).name == "1"
    assert write_crash(place, replace(REPORT, number=5)).name == "5"
    assert write_crash(place, replace(REPORT, number=5)).name == "6"
    assert write_crash(place, REPORT).name == "7"
    assert [report.number for report in read_crashes(run)] == [1, 5, 6, 7]
    assert count_crashes(place) == 7


def test_reports_of_all_environments_come_in_the_order_of_time(run: RunDir) -> None:
    for env_id, time_unix in (("a", 2.0), ("b", 1.0), ("b", 3.0)):
        write_crash(run.environment(env_id), replace(REPORT, env_id=env_id, time_unix=time_unix))
    assert [(report.env_id, report.number) for report in read_crashes(run)] == [("b", 1), ("a", 1), ("b", 2)]


def test_the_first_and_the_latest_are_kept(run: RunDir, place: EnvDir) -> None:
    for _ in range(KEPT_FIRST + KEPT_LATEST + 7):
        write_crash(place, REPORT)
    expected = [*range(1, 11), *range(18, 108)]
    assert [report.number for report in read_crashes(run)] == expected
    assert count_crashes(place) == 107


def test_hostile_output_is_stored_harmless_and_bounded(run: RunDir, place: EnvDir) -> None:
    write_crash(place, replace(REPORT, output="\x1b]0;owned\x07" + "x" * (1 << 20) + "\x1b[2Jend", stack=""))
    (found,) = read_crashes(run)
    assert found.output.endswith("end")
    assert "\x1b" not in found.output
    assert len(found.output) <= 64 << 10
    assert found.stack == ""


def test_actions_of_any_kind_and_number(run: RunDir, place: EnvDir) -> None:
    loop: list[object] = []
    loop.append(loop)
    actions = [np.zeros(3, np.float32), {"a": np.int64(4)}, np.zeros(10_000), loop]
    write_crash(place, replace(REPORT, last_actions=[0] * 200 + actions, last_rewards=[float("nan")] * 204))
    (found,) = read_crashes(run)
    assert len(found.last_actions) == len(found.last_rewards) == 100
    assert found.last_actions[-4:-2] == [[0.0, 0.0, 0.0], {"a": 4}]
    assert found.last_actions[-2]["omitted_bytes"] > 10_000
    assert "contains itself" in found.last_actions[-1]["omitted"]
    assert found.last_rewards[0] == "NaN"


def test_a_damaged_report_is_left_out_and_said(run: RunDir, place: EnvDir, caplog: pytest.LogCaptureFixture) -> None:
    paths = [write_crash(place, REPORT) for _ in range(3)]
    (paths[0] / "report.json").write_text('{"cause": ')
    record = json.loads((paths[1] / "report.json").read_text())
    (paths[1] / "report.json").write_text(json.dumps(record | {"cause": {"kind": "magic"}}))
    with caplog.at_level(logging.WARNING, "agentenv.fleet"):
        assert [report.number for report in read_crashes(run)] == [3]
    assert [str(path) in caplog.text for path in paths] == [True, True, False]


def test_a_disk_that_refuses_is_said_and_nothing_else(
    run: RunDir, place: EnvDir, caplog: pytest.LogCaptureFixture
) -> None:
    (place.path / "crashes").write_text("in the way")
    with caplog.at_level(logging.WARNING, "agentenv.fleet"):
        path = write_crash(place, REPORT)
        finish_crash(path, RECOVERY)
    assert "a: the report of a crash cannot be written" in caplog.text
    assert read_crashes(run) == []


def test_a_full_disk_leaves_the_earlier_reports(tmp_path: Path) -> None:
    """In a process whose files may not grow: the next report does not appear, not even in part."""
    script = """
import resource, signal, sys
from pathlib import Path
from agentenv.errors import Cause, CauseKind, Owner
from agentenv.fleet.crashes import CrashReport, finish_crash, write_crash
from agentenv.fleet.rundir import EnvDir
place = EnvDir("a", Path(sys.argv[1]))
cause = Cause(CauseKind.EXIT, Owner.ENVIRONMENT, "exited", exit_code=1)
first = write_crash(place, CrashReport("a", 0, 1.0, cause, output="x" * 5000))
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))
write_crash(place, CrashReport("a", 0, 2.0, cause, output="x" * 5000))
finish_crash(first, {"how": "replay"})
"""
    done = subprocess.run([sys.executable, "-c", script, str(tmp_path)], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert os.listdir(tmp_path / "crashes") == ["1"]
    assert sorted(os.listdir(tmp_path / "crashes" / "1")) == ["output.txt", "report.json"]
    assert json.loads((tmp_path / "crashes" / "1" / "report.json").read_text())["recovery"] is None


def test_a_recovery_of_an_unknown_kind_is_refused(place: EnvDir) -> None:
    with pytest.raises(ValueError, match="how: expected one of snapshot, state, replay"):
        finish_crash(write_crash(place, REPORT), {"how": "magic"})


def test_the_crashes_of_one_environment_keep_their_order_where_the_clock_was_set_back(run: RunDir) -> None:
    times = {"a": (1000.0, 8000.0, 900.0, 901.0), "b": (950.0, 2000.0)}
    for env_id, moments in times.items():
        for moment in moments:
            write_crash(run.environment(env_id), replace(REPORT, env_id=env_id, time_unix=moment))
    found = [(report.env_id, report.number) for report in read_crashes(run)]
    assert found == [("b", 1), ("a", 1), ("b", 2), ("a", 2), ("a", 3), ("a", 4)]
