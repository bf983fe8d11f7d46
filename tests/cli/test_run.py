"""``agentenv run``: what it prints, leaves and returns when things go well, and when the caller is wrong."""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
from pathlib import Path

import pytest

from agentenv.cli.settings import load
from agentenv.errors import ConfigError
from agentenv.fleet.rundir import RunDir, RunState
from agentenv.fleet.seeds import Seeds
from agentenv.telemetry.events import read_events
from agentenv.telemetry.records import read_records

FINE = 'id = "a"\nenv = "misbehaving:Fine"'


def test_leaves_a_complete_run_directory(command) -> None:
    config = command.config('id = "a"\nenv = "misbehaving:Fine"\nepisodes = 3\ncount = 2', FINE.replace('"a"', '"b"'))
    summary = command.run(config)
    assert summary["state"] == "finished"
    assert summary["exit_code"] == 0
    assert [e["id"] for e in summary["environments"]] == ["a-0", "a-1", "b"]
    assert summary["episodes"] == 7
    assert summary["steps"] == 35
    run = RunDir.open(Path(summary["run_dir"]))
    assert run.path.parent == command.cwd / "runs"
    assert run.state() is RunState.FINISHED
    assert json.loads(run.summary.read_bytes()) == summary
    manifest = json.loads(run.manifest.read_bytes())
    assert manifest["runtime"]["name"] == summary["runtime"]
    assert manifest["seeds"]["root"] == 1
    episodes, damaged = read_records(run.environment("a-1").episodes)
    assert damaged == 0
    assert [e["seed"] for e in episodes] == [Seeds(1).environment("a-1", episode=n) for n in range(3)]
    assert manifest["seeds"]["environments"]["a-1"] == episodes[0]["seed"]
    assert [(e["return"], e["length"], e["outcome"], e["episode"]) for e in episodes] == [
        (5.0, 5, "terminated", n) for n in range(3)
    ]
    kinds = [event.kind for event in read_events(run.events)[0]]
    assert kinds[0] == "run_started"
    assert kinds[-1] == "run_done"
    assert kinds.count("env_done") == 3


def test_the_written_configuration_runs_again_the_same_way(command) -> None:
    first = command.run(command.config('id = "a"\nenv = "CartPole-v1"\nepisodes = 2'))
    second = command.run(str(Path(first["run_dir"]) / "config.toml"), "--run-dir", "again")
    a, b = (read_records(Path(s["run_dir"]) / "environments/a/episodes.jsonl")[0] for s in (first, second))
    assert [(e["seed"], e["return"]) for e in a] == [(e["seed"], e["return"]) for e in b]


def test_options_change_the_configuration(command) -> None:
    config = command.config(FINE)
    summary = command.run(
        config, "--envs", "3", "--episodes", "2", "--seed", "9", "--run-dir", "elsewhere", "--runtime", "process",
        "--set", "environments.a.env_kwargs={ length = 4 }",
    )  # fmt: skip
    assert len(summary["environments"]) == 3
    assert summary["steps"] == 3 * 2 * 4
    assert summary["seed"] == 9
    assert summary["isolation"] == "process"
    assert Path(summary["run_dir"]).parent == command.cwd / "elsewhere"


@pytest.mark.parametrize("name", ["\U0001f600", "a\nb\x7f", '"', "12", "{ a = 1 }", "null"])
def test_a_run_is_made_in_the_directory_that_was_named(tmp_path: Path, name: str) -> None:
    path = tmp_path / "c.toml"
    path.write_text('[[environments]]\nid = "a"')
    assert load(path, run_dir=Path(name)).global_.run_dir == name


def test_a_directory_whose_name_is_no_text_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "c.toml"
    path.write_text('[[environments]]\nid = "a"')
    with pytest.raises(ConfigError, match="command line: --run-dir: expected text that UTF-8 can carry"):
        load(path, run_dir=Path("\udcff"))


def test_config_option_is_the_same_as_run(command) -> None:
    done = command("--config", command.config(FINE), "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["steps"] == 5


def test_isolation_is_told_once_and_its_absence_loudly(command) -> None:
    config = command.config(FINE)
    isolated = command("run", config)
    assert isolated.stderr.count("isolation sandbox") == 1
    bare = command("run", config, "--runtime", "process")
    assert "NO isolation" in bare.stderr


def test_results_go_to_stdout_and_logs_to_stderr(command) -> None:
    done = command("run", command.config(FINE))
    assert "run directory:" in done.stdout
    assert "env_done" not in done.stdout
    assert "env_done" in done.stderr
    quiet = command("run", command.config(FINE), "-q")
    assert (quiet.returncode, quiet.stdout) == (0, "")
    # What an ordinary user's machine does not enforce is a warning.
    assert [line for line in quiet.stderr.splitlines() if "not enforced here" not in line] == []


def test_runs_from_a_private_directory(private_command) -> None:
    summary = private_command.run(private_command.config(FINE))
    assert summary["steps"] == 5
    assert summary["isolation"] == "sandbox"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a directory away; run as root")
def test_root_runs_from_a_directory_that_is_private_to_another_user(private_command) -> None:
    (private_command.cwd / "theirs.py").write_text("from misbehaving import Fine\n")
    config = private_command.config('id = "a"\nenv = "theirs:Fine"')
    for path in (private_command.cwd, private_command.cwd / "theirs.py"):
        os.chown(path, 1234, 1234)
    assert private_command.run(config)["steps"] == 5


def test_no_more_run_than_allowed(command) -> None:
    config = command.config('id = "a"\nenv = "misbehaving:Fine"\ncount = 5', global_="max_parallel_envs = 2")
    summary = command.run(config)
    events, _ = read_events(Path(summary["run_dir"]) / "events.jsonl")
    alive = most = 0
    for event in events:
        alive += {"env_started": 1, "env_done": -1}.get(event.kind, 0)
        most = max(most, alive)
    assert summary["done"] == 5
    assert most <= 2


def test_what_never_fits_is_refused_before_anything_starts(command) -> None:
    done = command("run", command.config(FINE + "\nmemory_mb = 16000000"), "--json")
    assert done.returncode == 3
    assert "16000000" in json.loads(done.stdout)["error"]["message"]
    assert not (command.cwd / "runs").exists()


def test_mistakes_are_reported_together_with_their_lines(command) -> None:
    config = command.config('id = "a"\nnum_env = 3\nmemory_mb = "x"')
    done = command("run", config, "--json")
    assert done.returncode == 2
    problems = json.loads(done.stdout)["error"]["problems"]
    assert {p["where"] for p in problems} == {f"{config}:7", f"{config}:8"}
    assert any("count" in p["hint"] for p in problems)
    assert "Traceback" not in done.stderr
    assert not (command.cwd / "runs").exists()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["run"], "expected one file"),
        (["run", "missing.toml"], "missing.toml"),
        (["run", "--nonsense"], "nonsense"),
        (["nonsense"], "nonsense"),
        (["bench", "missing.toml", "--envs", "x"], "--envs"),
        (["logs", "nothing"], "nothing"),
    ],
)
def test_wrong_usage_is_exit_2_in_words(command, arguments: list[str], words: str) -> None:
    done = command(*arguments)
    assert done.returncode == 2
    assert words in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ('isolation = "vm"\nruntime = "bubblewrap"', '"vm" was asked for, and runtime \'bubblewrap\' gives "sandbox"'),
        ('isolation = "vm"', "agentenv image build gymnasium"),
        ('runtime = "qemu"', "agentenv image build gymnasium"),
    ],
)
def test_isolation_that_cannot_be_given_is_exit_3(
    command, settings: str, words: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("AGENTENV_CACHE", str(tmp_path / "cache"))  # without kernels and images
    done = command("run", command.config(FINE, global_=settings))
    assert done.returncode == 3
    assert words in done.stderr
    assert "Traceback" not in done.stderr


def test_policies(command) -> None:
    config = command.config(
        'id = "fn"\nenv = "misbehaving:Fine"\npolicy = "misbehaving:always_one"',
        'id = "cls"\nenv = "misbehaving:Fine"\npolicy = "misbehaving:Remembering"',
        'id = "bad"\nenv = "misbehaving:Fine"\npolicy = "misbehaving:breaks"',
        'id = "out"\nenv = "misbehaving:Fine"\npolicy = "misbehaving:outside"',
        'id = "leaves"\nenv = "misbehaving:Fine"\npolicy = "misbehaving:leaves"',
    )
    summary = command.run(config, code=1)
    assert [e["state"] for e in summary["environments"]] == ["done", "done", "failed", "failed", "failed"]
    assert "my policy" in summary["environments"][2]["cause"]["detail"]
    assert "17" in summary["environments"][3]["cause"]["detail"]


@pytest.mark.parametrize("policy", ["nowhere:act", "misbehaving:nothing", "misbehaving:__doc__"])
def test_a_policy_that_cannot_be_imported_is_a_mistake_in_the_configuration(command, policy: str) -> None:
    done = command("run", command.config(f'{FINE}\npolicy = "{policy}"'))
    assert done.returncode == 2
    assert policy in done.stderr
    assert not (command.cwd / "runs").exists()


def test_a_reader_that_leaves_is_no_error(command) -> None:
    command.run(command.config(FINE))
    for arguments in (["schema"], ["runs"], ["logs", "latest"], ["run", "test.toml"]):
        process = command.start(*arguments)
        assert process.stdout is not None
        process.stdout.close()
        assert process.stderr is not None
        stderr = process.stderr.read()
        assert process.wait(60) == 0, stderr
        assert "Traceback" not in stderr
        assert "BrokenPipe" not in stderr
        process.stderr.close()


def test_a_terminal_gets_a_live_table_that_fits(command) -> None:
    config = command.config('id = "a"\nenv = "misbehaving:Fine"\ncount = 40\nenv_kwargs = { delay_s = 0.02 }')
    master, slave = pty.openpty()
    os.set_inheritable(slave, True)
    process = subprocess.Popen(
        command.argv("run", config),
        cwd=command.cwd,
        stdin=slave,
        stdout=slave,
        stderr=slave,
        env={**os.environ, "TERM": "xterm", "LINES": "20", "COLUMNS": "100"},
    )
    os.close(slave)
    shown = b""
    while True:
        try:
            part = os.read(master, 65536)
        except OSError:
            break
        if not part:
            break
        shown += part
    os.close(master)
    assert process.wait(60) == 0
    text = shown.decode()
    assert re.search(r"\.\.\. and \d+ more: ", text)
    assert "40 environments" in text
    assert "run directory:" in text
