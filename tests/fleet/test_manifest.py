"""How a run was made: facts about this machine and a real git repository."""

from __future__ import annotations

import json
import os
import platform
import stat
import subprocess
from importlib import metadata
from pathlib import Path

import pytest

from agentenv.fleet.manifest import build_manifest, git_state, host, versions
from agentenv.telemetry.records import to_json


def _git(folder: Path, *arguments: str) -> str:
    identity = ["-c", "user.name=tester", "-c", "user.email=tester@example.invalid"]
    command = ["git", "-C", str(folder), *identity, *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout.strip()


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    folder = tmp_path / "repository"
    folder.mkdir()
    try:
        _git(folder, "init", "-q")
    except FileNotFoundError:
        pytest.skip("needs git on PATH")
    (folder / "config.toml").write_text("[global]\n")
    _git(folder, "add", "config.toml")
    _git(folder, "commit", "-q", "-m", "first")
    return folder


def test_the_whole(tmp_path: Path) -> None:
    manifest = build_manifest(
        run_id="r-1",
        runtime="bubblewrap",
        limits={"memory": "cgroup v2"},
        root_seed=3,
        seeds={"agent_1": 17},
        config_dir=tmp_path,
        config_digest="abc",
        argv=["agentenv", "run", "x.toml"],
        packages=["ale-py", "no-such-distribution"],
    )
    assert json.loads(to_json(manifest)) == manifest
    assert manifest["run_id"] == "r-1"
    assert manifest["runtime"] == {"name": "bubblewrap", "limits": {"memory": "cgroup v2"}}
    assert manifest["seeds"] == {"root": 3, "environments": {"agent_1": 17}}
    assert manifest["config"] == {"digest": "abc", "directory": str(tmp_path), "git": None}
    assert manifest["argv"] == ["agentenv", "run", "x.toml"]
    assert manifest["process"]["pid"] == os.getpid()
    assert manifest["versions"]["no-such-distribution"] is None
    assert manifest["started"][:4].isdigit()


def test_versions_and_host_are_those_of_this_machine() -> None:
    found = versions()
    assert found["numpy"] == metadata.version("numpy")
    assert found["gymnasium"] == metadata.version("gymnasium")
    assert found["python"] == platform.python_version()
    machine = host()
    assert machine["kernel"] == os.uname().release
    assert machine["cpus"] == os.cpu_count()
    assert machine["memory_mb"] == os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2**20
    assert machine["cpu_model"]


def test_commit_and_dirt(repository: Path) -> None:
    commit = _git(repository, "rev-parse", "HEAD")
    assert git_state(repository) == {"commit": commit, "dirty": False}
    (repository / "runs").mkdir()
    (repository / "runs" / "new").write_text("untracked files do not count")
    assert git_state(repository / "runs") == {"commit": commit, "dirty": False}
    (repository / "config.toml").write_text("changed")
    assert git_state(repository) == {"commit": commit, "dirty": True}


def test_no_repository_no_commit_no_folder_no_git(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    monkeypatch.setenv("GIT_DIR", str(repository / ".git"))  # as in a commit hook: not what was asked
    assert git_state(empty) is None
    assert git_state(tmp_path / "nowhere") is None
    _git(empty, "init", "-q", str(empty / "fresh"))
    assert git_state(empty / "fresh") is None
    monkeypatch.setenv("PATH", str(empty))
    assert git_state(repository) is None


def test_a_git_that_hangs_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "git"
    os.mkfifo(tmp_path / "never")
    program.write_text(f'#!/bin/sh\nexec cat "{tmp_path}/never"\n')
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    assert git_state(tmp_path, deadline_s=0.2) is None


def test_a_repository_cannot_make_us_run_its_programs(repository: Path, tmp_path: Path) -> None:
    trap = tmp_path / "trap"
    trap.write_text(f'#!/bin/sh\ntouch "{tmp_path}/sprung"\n')
    trap.chmod(0o755)
    _git(repository, "config", "core.fsmonitor", str(trap))
    state = git_state(repository)
    assert state is not None
    assert state["dirty"] is False
    assert not (tmp_path / "sprung").exists()
