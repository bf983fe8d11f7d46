"""Whom the sandboxes belong to."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from agentenv.errors import RuntimeUnavailable
from agentenv.sandbox.runtimes import _stage_plan
from agentenv.sandbox.runtimes._stage_plan import StagePlan, plan_stage, unreadable
from agentenv.sandbox.runtimes._view import View

_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="only root's sandboxes become somebody else's; run as root")


def _view(*paths: Path) -> View:
    return View(tuple(map(str, paths)), (), ())


def test_a_private_module_is_named(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    secret = tmp_path / "secret.py"
    secret.touch(0o600)
    assert unreadable([str(tmp_path)]) == str(secret)
    secret.chmod(0o644)
    assert unreadable([str(tmp_path)]) == ""
    tmp_path.chmod(0o700)
    assert unreadable([str(tmp_path)]) == str(tmp_path)


@_ROOT
def test_roots_sandboxes_are_nobodys(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    plan = plan_stage(_view(tmp_path), [str(tmp_path)], tmp_path / "out")
    assert (plan.uid, plan.gid, plan.owners) == (65534, 65534, {})
    assert plan.source(str(tmp_path)) == "/mnt/0"
    assert plan.source("/dev/null") == "/dev/null"
    argv = plan.wrap(["/usr/bin/bwrap", "--version"])
    told = json.loads(argv[-1])
    assert told["argv"] == ["/usr/bin/bwrap", "--version"]
    assert [source for source, *_ in told["binds"]] == [str(tmp_path), str(tmp_path / "out")]


@_ROOT
def test_what_only_root_can_read_is_shown_as_theirs(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    private, open_ = tmp_path / "private", tmp_path / "open"
    private.mkdir(mode=0o700)
    open_.mkdir(mode=0o755)
    plan = plan_stage(_view(private, open_), [str(private)], tmp_path / "out")
    assert (plan.uid, plan.gid, plan.owners) == (65534, 65534, {str(private): 0})
    told = json.loads(plan.wrap(["/usr/bin/bwrap"])[-1])
    assert told["binds"] == [
        [str(private), "0", 0],
        [str(open_), "1", None],
        [str(tmp_path / "out"), "2", None],
    ]


@_ROOT
def test_what_is_private_to_different_users_is_shown_as_theirs(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    others, roots = tmp_path / "others", tmp_path / "roots"
    others.mkdir(mode=0o700)
    os.chown(others, 1234, 1234)
    roots.mkdir(mode=0o755)
    (roots / "own.py").touch(0o600)
    plan = plan_stage(_view(others, roots), [str(roots)], None)
    assert (plan.uid, plan.owners) == (65534, {str(others): 1234, str(roots): 0})


@_ROOT
def test_a_project_that_is_private_to_root_is_played_by_nobody(tmp_path: Path) -> None:
    project = tmp_path / "private"
    project.mkdir(mode=0o700)
    (project / "own.py").write_text("from agentenv.envs.gridworld import GridWorld as Own\n")
    (project / "own.py").chmod(0o600)
    script = (
        "import os, sys; sys.path.insert(0, sys.argv[1])\n"
        "from agentenv import AgentENV\n"
        "with AgentENV.from_env('own:Own', runtime='bubblewrap') as env:\n"
        "    env.reset(seed=1)\n"
        "    print(os.stat(f'/proc/{env._fleet.sandboxes[0].pid}').st_uid)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(project)], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout) == (0, "65534\n"), done.stderr
    assert "nested" not in done.stderr


@_ROOT
def test_what_one_other_user_can_read_makes_them_that_users(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    (tmp_path / "own.py").touch(0o600)
    (tmp_path / "roots.py").touch(0o644)
    for path in (tmp_path, tmp_path / "own.py"):
        os.chown(path, 1234, 1234)
    plan = plan_stage(_view(tmp_path), [str(tmp_path)], None)
    assert (plan.uid, plan.gid, plan.owners) == (1234, 65534, {})
    assert plan.source(str(tmp_path)) == "/mnt/0"


@_ROOT
def test_what_nobody_can_read_all_of_is_told_before_anything_starts(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    (tmp_path / "roots.py").touch(0o600)
    os.chown(tmp_path, 1234, 1234)
    with pytest.raises(RuntimeUnavailable, match=f"user 1234, who may not read {tmp_path}/roots.py") as refused:
        plan_stage(_view(tmp_path), [], None)
    assert refused.value.remedy == f"chmod -R a+rX {tmp_path}"


def test_without_a_stage_nothing_is_wrapped(tmp_path: Path) -> None:
    plan = StagePlan(1000, 1000)
    assert plan.wrap(["a", "b"]) == ["a", "b"]
    assert plan.source("/x") == "/x"
    before = tmp_path.stat()
    plan.give(tmp_path)
    assert tmp_path.stat().st_uid == before.st_uid


@_ROOT
def test_what_is_staged_is_not_covered_by_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tmp_path.chmod(0o755)
    directories = [tmp_path / name for name in ("mnt", "media", "srv")]
    for directory in directories:
        directory.mkdir()
    (tmp_path / "link").symlink_to(directories[0])
    monkeypatch.setattr(_stage_plan, "_STAGINGS", ["/no/such", *map(str, directories)])
    plan = plan_stage(_view(tmp_path / "link"), [], directories[1] / "out")
    assert plan.staging == str(directories[2])
    assert plan.source(str(tmp_path / "link")) == f"{directories[2]}/0"
    assert json.loads(plan.wrap(["/usr/bin/bwrap"])[-1])["staging"] == plan.staging
    with pytest.raises(RuntimeUnavailable, match="one is needed to stage it in"):
        plan_stage(_view(*directories), [], None)


@_ROOT
def test_an_environment_lives_in_a_project_below_mnt() -> None:
    with tempfile.TemporaryDirectory(dir="/mnt", prefix="agentenv-test-") as name:
        project = Path(name)
        project.chmod(0o755)
        (project / "below_mnt.py").write_text("from agentenv.envs.gridworld import GridWorld as Own\n")
        (project / "c.toml").write_text('[[environments]]\nid = "a"\nenv = "below_mnt:Own"\nmax_episode_steps = 3\n')
        done = subprocess.run(
            [sys.executable, "-m", "agentenv", "run", "c.toml", "--runtime", "bubblewrap"],
            cwd=project,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, done.stderr
