"""Ctrl-C once, twice, SIGTERM and kill -9: what is written, and that nothing is left."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from pathlib import Path

import psutil
import pytest

from agentenv.fleet.rundir import RunDir, RunState
from agentenv.fleet.runs import list_runs
from agentenv.telemetry.records import read_records
from cli_watch import descendants, groups, poll, running

ENDLESS = 'id = "a"\nenv = "misbehaving:Fine"\nepisodes = 1000000\ncount = 3'
HUNG = 'id = "hung"\nenv = "misbehaving:Hangs"\nstep_timeout_s = 300.0'
SLEEPER = 'id = "cmd"\ncommand = ["python", "-c", "import time; time.sleep(3600)"]'


def start(command, config: str, *arguments: str) -> tuple[subprocess.Popen[str], RunDir, list[psutil.Process]]:
    """A run whose environments play."""
    process = command.start("run", config, "--json", "-q", *arguments)

    def playing() -> bool:
        assert process.poll() is None, process.communicate()
        return any(p.stat().st_size for p in command.cwd.glob("runs/*/environments/a-0/episodes.jsonl"))

    poll(playing, "the first episode")
    (info,) = list_runs(command.cwd / "runs")
    return process, RunDir.open(info.path), descendants(process.pid)


def assert_nothing_left(run: RunDir, below: list[psutil.Process]) -> None:
    assert len(below) >= 4
    assert running(below) == []
    assert groups(run.run_id) == []
    assert str(run.path) not in Path("/proc/mounts").read_text()


@pytest.mark.parametrize(
    ("number", "code", "runtime"),
    [(signal.SIGINT, 130, "auto"), (signal.SIGTERM, 143, "auto"), (signal.SIGINT, 130, "process")],
)
def test_first_signal_ends_after_the_current_step(command, number: int, code: int, runtime: str) -> None:
    process, run, below = start(command, command.config(ENDLESS, SLEEPER), "--runtime", runtime)
    process.send_signal(number)
    stdout, stderr = process.communicate(timeout=30)
    assert process.returncode == code, stderr
    summary = json.loads(stdout)
    assert summary["state"] == "interrupted"
    assert json.loads(run.summary.read_bytes()) == summary
    assert run.state() is RunState.FINISHED
    assert {e["state"] for e in summary["environments"]} == {"interrupted"}
    for env in summary["environments"][:3]:
        records, damaged = read_records(run.environment(env["id"]).episodes)
        assert damaged == 0
        # Every step is accounted for: those of whole episodes and those of the interrupted one.
        assert sum(r["length"] for r in records) == env["steps"]
        assert sum(r["outcome"] == "terminated" for r in records) == env["episodes"]
    assert "Traceback" not in stderr
    assert_nothing_left(run, below)


def test_second_signal_ends_at_once(command) -> None:
    process, run, below = start(command, command.config(ENDLESS, HUNG))

    def only_the_hung_one() -> bool:
        return b"run_stopping" in run.events.read_bytes()

    process.send_signal(signal.SIGINT)
    poll(only_the_hung_one, "the first signal to be noticed")
    assert process.poll() is None, "it waits for the step of the environment that hangs"
    process.send_signal(signal.SIGINT)
    stdout, stderr = process.communicate(timeout=20)
    assert process.returncode == 130, stderr
    assert json.loads(stdout)["state"] == "interrupted"
    assert "Traceback" not in stderr
    assert_nothing_left(run, below)


def test_kill_9_takes_the_sandboxes_along_and_the_next_run_sweeps(command) -> None:
    process, run, below = start(command, command.config(ENDLESS, HUNG, SLEEPER))
    process.kill()
    process.communicate()
    poll(lambda: running(below) == [], "every sandbox to end by itself")
    assert run.state() is RunState.INTERRUPTED
    for place in run.environments():
        _, damaged = read_records(place.episodes)
        assert damaged <= 1
    listed = json.loads(command("runs", "--json").stdout)["runs"]
    assert [r["state"] for r in listed] == ["interrupted"]
    command.run(command.config('id = "b"\nenv = "misbehaving:Fine"', name="next.toml"))
    assert groups(run.run_id) == []


def test_a_policy_that_never_returns_does_not_stop_the_second_signal(command) -> None:
    (command.cwd / "stuck.py").write_text(
        "import pathlib, time\ndef act(observation, space):\n    pathlib.Path('stuck').touch()\n    time.sleep(3600)\n"
    )
    process = command.start("run", command.config('id = "a"\nenv = "misbehaving:Fine"\npolicy = "stuck:act"'), "-q")
    poll((command.cwd / "stuck").exists, "the policy to be called")
    below = descendants(process.pid)
    process.send_signal(signal.SIGINT)
    assert process.stderr is not None
    # It is heard while the policy still keeps the main thread.
    told = (line for line in iter(process.stderr.readline, "") if line.strip() and "not enforced here" not in line)
    assert next(told) == "agentenv: SIGINT: finishing the current step; press Ctrl-C again to stop now\n"
    ends = time.monotonic() + 20
    # Two signals sent at once may arrive as one.
    while process.poll() is None and time.monotonic() < ends:
        process.send_signal(signal.SIGINT)
        time.sleep(0.05)
    assert process.returncode == 130, process.communicate()
    process.communicate()
    assert running(below) == []
