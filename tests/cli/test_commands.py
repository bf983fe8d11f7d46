"""The smaller commands: schema, runs, logs, runtimes, sweep, bench, version, help."""

from __future__ import annotations

import json
import signal
import sys
from pathlib import Path

import jsonschema
import pytest

import agentenv
from agentenv.cli.bench_report import name_ceiling
from agentenv.cli.measure import Row, Side
from agentenv.sandbox.registry import REGISTRY
from cgroup_children import SUPPORT, needs
from cli_watch import groups, poll

COMMANDS = ("run", "check", "replay", "diff", "runtimes", "runs", "logs", "crashes", "bench", "soak", "schema", "sweep")
GROUPS = ("image build", "image ls", "image rm", "image gc", "kernel fetch", "kernel ls", "kernel rm")


def test_version_and_help(command) -> None:
    assert command("--version").stdout == f"agentenv {agentenv.__version__}\n"
    shown = command("--help")
    assert shown.returncode == 0
    assert all(name in shown.stdout for name in (*COMMANDS, "image", "kernel"))
    assert "Exit codes" in shown.stdout


@pytest.mark.parametrize("name", COMMANDS + GROUPS)
def test_every_help_has_an_example(command, name: str) -> None:
    shown = command(*name.split(), "--help")
    assert shown.returncode == 0
    assert f"  agentenv {name}" in shown.stdout.partition("Example")[2]


def test_help_imports_nothing_heavy(command) -> None:
    code = (
        "import sys; from agentenv.cli import main; main(['--help']); "
        "print(sorted({'numpy', 'gymnasium', 'pydantic', 'rich'} & set(sys.modules)), file=sys.stderr)"
    )
    import subprocess

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stderr == "[]\n"


def test_schema_accepts_the_configurations_the_loader_accepts(command) -> None:
    import tomllib

    schema = json.loads(command("schema").stdout)
    text = command.config('id = "a"\nenv = "CartPole-v1"')
    with open(text, "rb") as stream:
        jsonschema.validate(tomllib.load(stream), schema)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({"environments": [{"id": "a", "num_env": 3}]}, schema)


def test_runs_and_logs_of_several(command) -> None:
    assert command("runs").stdout == "no runs in runs\n"
    config = command.config(
        'id = "a"\nenv = "misbehaving:Exits"\non_crash = "raise"', 'id = "b"\nenv = "misbehaving:Fine"'
    )
    command.run(config, code=1)
    command.run(config, "--set", "global.name=other", code=1)
    listed = json.loads(command("runs", "--json").stdout)["runs"]
    assert [r["name"].partition("-")[2].partition("-")[2] for r in listed] == ["test", "other"]
    assert [(r["state"], r["environments"]) for r in listed] == [("failed", 2)] * 2
    assert "other" in command("runs").stdout
    shown = command("logs", "latest").stdout
    assert "==> a <==\nabout to exit\n==> b <==\n" in shown


def test_logs_follow_until_the_run_ends(command) -> None:
    code = "import time\nfor n in range(5):\n  print('line', n, flush=True); time.sleep(0.2)"
    config = command.config(f'id = "c"\ncommand = ["python", "-c", """{code}"""]')
    run = command.start("run", config, "-q")
    poll(lambda: any(command.cwd.glob("runs/*/environments/c/stdout.log")), "the first line")
    followed = command("logs", "latest", "c", "-f")
    assert followed.returncode == 0
    assert followed.stdout == "".join(f"line {n}\n" for n in range(5))
    assert run.wait(60) == 0
    run.communicate()


def test_following_ends_with_ctrl_c(command) -> None:
    config = command.config(
        'id = "c"\ncommand = ["python", "-c", "print(1, flush=True); import time; time.sleep(999)"]'
    )
    run = command.start("run", config, "-q")
    poll(lambda: any(command.cwd.glob("runs/*/environments/c/stdout.log")), "the first line")
    follower = command.start("logs", "latest", "c", "-f")
    assert follower.stdout is not None
    assert follower.stdout.readline() == "1\n"
    follower.send_signal(signal.SIGINT)
    _, stderr = follower.communicate(timeout=20)
    assert follower.returncode == 130
    assert "Traceback" not in stderr
    run.send_signal(signal.SIGTERM)
    run.communicate(timeout=20)
    assert run.returncode == 143


def test_runtimes_are_tried(command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("AGENTENV_CACHE", str(tmp_path / "cache"))  # without kernels and images
    process = command.start("runtimes", "--json")
    stdout, _ = process.communicate(timeout=60)
    assert process.returncode == 0
    found = {r["name"]: r for r in json.loads(stdout)["runtimes"]}
    assert set(found) == set(REGISTRY)
    assert found["process"]["works"]
    assert "NO isolation" in found["process"]["detail"]
    assert found["process"]["limits"]["network"] == "not enforced"
    for name in ("firecracker", "qemu"):
        assert not found[name]["works"]
        assert found[name]["detail"]
        assert found[name]["remedy"]
    if sys.platform == "linux":
        bubblewrap = found["bubblewrap"]
        assert bubblewrap["works"] or bubblewrap["remedy"]
        if bubblewrap["works"] and SUPPORT.version != "none":
            assert SUPPORT.version in bubblewrap["limits"]["memory"]
    # The name of every group begins with the pid of the process it belongs to.
    assert groups(f"agentenv.{process.pid}-") == []


def test_a_missing_bwrap_is_said_with_its_remedy(command) -> None:
    config = command.config('id = "a"\nenv = "misbehaving:Fine"')
    done = command("run", config, "--set", "bubblewrap.binary=/nowhere/bwrap", "--runtime", "bubblewrap")
    assert done.returncode == 3
    assert "/nowhere/bwrap" in done.stderr
    assert "remedy" in done.stderr


@needs("memory")
def test_sweep_removes_what_a_killed_run_left(command) -> None:
    config = command.config('id = "a"\nenv = "misbehaving:Fine"\nepisodes = 1000000')
    run = command.start("run", config, "-q")
    poll(lambda: any(command.cwd.glob("runs/*/environments/a/episodes.jsonl")), "the first episode")
    (manifest,) = command.cwd.glob("runs/*/manifest.json")
    run_id = json.loads(manifest.read_bytes())["run_id"]
    assert groups(run_id)
    assert run_id not in json.loads(command("sweep", "--json").stdout)["removed"], "a run that lives is left alone"
    run.kill()
    run.communicate()
    assert run_id in json.loads(command("sweep", "--json").stdout)["removed"]
    assert groups(run_id) == []


def test_bench_measures_and_compares(command) -> None:
    config = command.config('id = "a"\nenv = "misbehaving:Fine"')
    done = command("bench", config, "--envs", "1,3", "--seconds", "0.4", "--compare", "gymnasium", "--json")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert [row["envs"] for row in report["rows"]] == [1, 3]
    for row in report["rows"]:
        for side in (row["ours"], row["peer"]):
            assert side["steps_per_s"] > 0
            assert side["startup_s"] > 0
            assert side["memory_mb"] > 0
            assert side["cpu_percent"] > 0
    assert report["rows"][0]["per_env_relative"] == 1.0
    assert report["ceiling"]
    table = command("bench", config, "--envs", "2", "--seconds", "0.2").stdout
    assert "steps/s" in table
    assert "ceiling: " in table


def test_bench_says_which_environments_differ(command) -> None:
    config = command.config('id = "a"\nenv = "misbehaving:Fine"', 'id = "b"\nenv = "CartPole-v1"')
    done = command("bench", config, "--envs", "2", "--seconds", "0.2")
    assert done.returncode == 2
    assert "'a'" in done.stderr
    assert "'b'" in done.stderr


@pytest.mark.parametrize(
    ("cpu", "host", "available", "machine", "words"),
    [
        (97.0, 60.0, 80.0, 99.0, "processors: 97 %"),
        (60.0, 99.0, 80.0, 70.0, "the stepping process"),
        (60.0, 50.0, 5.0, 70.0, "memory"),
        (40.0, 50.0, 80.0, 99.0, "shared with other programs"),
        (40.0, 50.0, 80.0, 60.0, "none reached"),
    ],
)
def test_the_ceiling_is_named(cpu: float, host: float, available: float, machine: float, words: str) -> None:
    side = Side(startup_s=1.0, steps_per_s=1000.0, cpu_percent=cpu, host_percent=host, memory_mb=5.0)
    assert words in name_ceiling([Row(10, side, None, available, machine, 2)])


def test_debug_shows_the_traceback(command) -> None:
    config = command.config("id = 3")
    assert "Traceback" not in command("run", config).stderr
    assert "Traceback" in command("run", config, "-v", "-v").stderr
