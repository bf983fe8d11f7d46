"""``agentenv soak`` as a process of its own: exit codes, what is printed, Ctrl-C, and nothing left behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from agentenv.soak import counts
from agentenv.telemetry.records import read_records
from cli_watch import descendants, poll, running

pytestmark = pytest.mark.alone

TESTS = Path(__file__).resolve().parent.parent
PROGRAM = f"""
import sys, typer
sys.path.append({str(TESTS)!r})
if "BLOCKED" in sys.argv[1]:
    sys.modules["matplotlib"] = None
from agentenv.cli.exits import guarded
from agentenv.cli.soak import soak
app = typer.Typer(rich_markup_mode=None, pretty_exceptions_enable=False, add_completion=False)
app.command()(guarded(soak))
app(args=sys.argv[2:])
"""


@pytest.fixture
def place(tmp_path: Path) -> Path:
    tmp_path.chmod(0o755)
    environment = '[[environments]]\nid = "a"\nenv = "soak_leaky:Clean"\ncount = 2\n'
    (tmp_path / "clean.toml").write_text(f"[global]\nseed = 1\n{environment}")
    leaky = environment.replace("Clean", "Memory") + 'on_crash = "raise"\n'
    (tmp_path / "leaky.toml").write_text(f"[global]\nseed = 1\n{leaky}")
    return tmp_path


def start(place: Path, *arguments: str, mark: str = "-") -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM, mark, *arguments],
        cwd=place,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(process: subprocess.Popen[str], code: int) -> tuple[str, str]:
    stdout, stderr = process.communicate(timeout=90)
    assert process.returncode == code, f"exit code {process.returncode}\n{stdout}\n{stderr}"
    assert "Traceback" not in stderr
    return stdout, stderr


def test_a_leak_is_exit_code_1_and_named_in_the_table(place: Path) -> None:
    stdout, _ = finish(start(place, "leaky.toml", "--minutes", "0.2"), 1)
    (row,) = [line for line in stdout.splitlines() if line.startswith("memory of an environment")]
    assert "leak" in row
    assert "worst of 2" in row
    assert "leak: " in stdout
    (run,) = (place / "runs").iterdir()
    assert f"run directory: {run}" in stdout
    assert (run / "soak.png").exists()


def test_json_is_the_report_and_without_matplotlib_there_is_no_plot(place: Path) -> None:
    stdout, _ = finish(start(place, "clean.toml", "--minutes", "0.02", "--json", mark="BLOCKED"), 0)
    report = json.loads(stdout)
    assert report == json.loads((Path(report["run_dir"]) / "report.json").read_bytes())
    assert (report["verdict"], report["plot"]) == ("undecided", None)
    assert not (Path(report["run_dir"]) / "soak.png").exists()
    stdout, _ = finish(start(place, "clean.toml", "--minutes", "0.02", mark="BLOCKED"), 0)
    assert "pip install 'agentenv[plot]'" in stdout


def test_the_first_signal_ends_it_with_a_report(place: Path) -> None:
    process = start(place, "clean.toml", "--hours", "24", "--chaos", "60", "--json")
    # Three minutes would pass before sixteen looks of a day were made: what is asked is that it ends, in good order.
    poll(lambda: any(p.stat().st_size for p in place.glob("runs/*/samples.jsonl")), "the first sample")
    below = descendants(process.pid)
    process.send_signal(signal.SIGINT)
    stdout, stderr = finish(process, 130)
    assert "SIGINT" in stderr
    report = json.loads(stdout)
    assert (report["state"], report["signal"]) == ("interrupted", "SIGINT")
    assert report["samples"] >= 1
    assert report["steps"] > 0
    samples, damaged = read_records(Path(report["run_dir"]) / "samples.jsonl")
    assert (len(samples), damaged) == (report["samples"], 0)
    assert len(below) >= 4
    assert running(below) == []
    assert counts.find_groups([f"agentenv.{process.pid}-"]) == []


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ([], "neither"),
        (["--hours", "1", "--minutes", "2"], "both"),
        (["--minutes", "0"], "expected more than 0"),
        (["--minutes", "nan"], "expected more than 0"),
        (["--minutes", "1", "--chaos", "-1"], "expected 0 to 6000 kills a minute"),
    ],
)
def test_wrong_usage_is_exit_code_2_and_starts_nothing(place: Path, arguments: list[str], expected: str) -> None:
    _, stderr = finish(start(place, "clean.toml", *arguments), 2)
    assert expected in stderr
    assert not (place / "runs").exists()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere: run the suite as a user")
def test_a_folder_that_cannot_be_made_is_exit_code_2(place: Path) -> None:
    _, stderr = finish(start(place, "clean.toml", "--minutes", "1", "--run-dir", "/proc/runs"), 2)
    assert "--run-dir" in stderr
