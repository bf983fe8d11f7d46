"""What a run finds where it is started, what policies print, and what a closed terminal leaves."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import subprocess
import sys
import termios
from pathlib import Path

import pytest

from cli_watch import poll

FINE = 'id = "a"\nenv = "misbehaving:Fine"'
TALKATIVE = """import os, sys
print("imported")
def act(observation, space):
    print("acting")
    sys.__stdout__.write("by the original object\\n")
    os.write(1, b"by the descriptor\\n")
    return space.sample()
"""


def test_a_module_whose_name_no_file_can_have_is_not_found(command) -> None:
    done = command("run", command.config(f'id = "a"\nenv = "{"x" * 300}:Env"'))
    assert done.returncode == 1
    assert "EnvironmentNotFound" in done.stderr


def test_what_a_policy_prints_goes_to_stderr(command) -> None:
    (command.cwd / "talkative.py").write_text(TALKATIVE)
    config = command.config(FINE + '\npolicy = "talkative:act"')
    said = ("imported", "acting", "by the original object", "by the descriptor")
    with_json = command("run", config, "--json")
    assert json.loads(with_json.stdout)["steps"] == 5
    plain = command("run", config)
    assert "run directory:" in plain.stdout
    for done in (with_json, plain):
        assert not [words for words in said if words in done.stdout]
        assert [done.stderr.count(words) for words in said] == [1, 5, 5, 5]


def test_the_current_directory_is_importable(command) -> None:
    package = command.cwd / "mine_here"
    package.mkdir()
    (package / "__init__.py").write_text("from misbehaving import Fine\n")
    (command.cwd / "conf").mkdir()
    summary = command.run(command.config('id = "a"\nenv = "mine_here:Fine"', name="conf/config.toml"))
    assert summary["steps"] == 5


def test_a_home_is_not_shown_because_a_command_is_started_in_it(command, tmp_path: Path, monkeypatch) -> None:
    from agentenv.cli.policy_ground import make_importable
    from agentenv.config import load_config

    home, conf = tmp_path / "home", tmp_path / "conf"
    for directory in (home, conf):
        directory.mkdir(mode=0o755)
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setattr(sys, "path", list(sys.path))
    path = conf / "c.toml"
    path.write_text('[[environments]]\nid = "a"\nenv = "mine_at_home:Fine"\n')
    before = list(sys.path)
    make_importable(load_config(path), home)
    assert sys.path == before
    (home / "mine_at_home.py").touch()
    make_importable(load_config(path), home)
    assert sys.path == [*before, str(conf), str(home)]


def test_options_are_told_by_their_names(command) -> None:
    config = command.config(FINE)
    done = command("run", config, "--runtime", "docker", "--seed=-1")
    assert done.returncode == 2
    assert '--runtime: expected one of auto, bubblewrap, process, firecracker, qemu, got "docker"' in done.stderr
    assert "command line: --seed: expected an integer >= 0, got -1" in done.stderr
    assert "--set: global.seed" in command("run", config, "--set", "global.seed=-1").stderr


def test_cores_that_are_not_there(command) -> None:
    warned = command("run", command.config(FINE + "\nvcpu_count = 4096", FINE.replace('"a"', '"b"')))
    assert warned.returncode == 0, warned.stderr
    assert "a: vcpu_count = 4096 cannot be given" in warned.stderr
    assert "cannot be given" not in command("run", command.config(FINE)).stderr


def test_read_only_places_are_explained_for_commands(command) -> None:
    done = command("run", command.config('id = "a"\ncommand = ["touch", "/usr/x"]'))
    assert done.returncode == 1
    assert "only /tmp and /dev/shm are writable" in done.stderr


def test_python_m_agentenv() -> None:
    done = subprocess.run([sys.executable, "-m", "agentenv", "--help"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0
    assert "129 ended by SIGHUP" in done.stdout


@pytest.mark.parametrize("arguments", [(), ("--json",), ("-q",)])
def test_a_closed_terminal_ends_a_run_with_129(command, arguments: tuple[str, ...]) -> None:
    endless = 'id = "a"\nenv = "misbehaving:Fine"\nepisodes = 1000000'
    argv = command.argv("run", command.config(endless), *arguments)
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-c", _ON_TERMINAL, str(theirs), *argv], pass_fds=[theirs], cwd=command.cwd
    )
    os.close(theirs)

    def playing() -> bool:
        os.set_blocking(ours, False)
        with contextlib.suppress(BlockingIOError):
            os.read(ours, 65536)
        return any(p.stat().st_size for p in command.cwd.glob("runs/*/environments/a/episodes.jsonl"))

    poll(playing, "the first episode")
    os.close(ours)
    assert process.wait(timeout=30) == 129
    (summary,) = command.cwd.glob("runs/*/summary.json")
    assert json.loads(summary.read_bytes())["exit_code"] == 129


# Takes the terminal as its own and becomes the command, so that closing the other side hangs it up.
_ON_TERMINAL = (
    f"import fcntl, os, sys; t = int(sys.argv[1]); os.setsid(); fcntl.ioctl(t, {termios.TIOCSCTTY}, 0);"
    " [os.dup2(t, n) for n in range(3)]; os.close(t); os.execv(sys.argv[2], sys.argv[2:])"
)
