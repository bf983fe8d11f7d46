"""The folder of a run: unique, safe to name things in, and honest about what became of the run."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from agentenv.errors import ConfigError
from agentenv.fleet.owner import Owner
from agentenv.fleet.rundir import RunDir, RunState


def test_what_a_run_leaves(tmp_path: Path) -> None:
    run = RunDir.create(tmp_path / "runs", "gridworld", "r-1")
    run.write_config("[global]\n")
    run.write_manifest({"format": 1, "seeds": {"root": 3}})
    folder = run.environment("agent_1")
    assert folder.stdout == run.path / "environments" / "agent_1" / "stdout.log"
    assert (folder.stderr.name, folder.episodes.name, folder.out.name) == ("stderr.log", "episodes.jsonl", "out")
    assert folder.path.is_dir()
    run.write_summary({"steps": 10, "return": float("nan")})
    assert sorted(found.name for found in run.path.iterdir()) == [
        "config.toml", "environments", "manifest.json", "summary.json",
    ]  # fmt: skip
    assert json.loads(run.summary.read_text()) == {"steps": 10, "return": "NaN"}
    assert run.config.read_text() == "[global]\n"
    assert RunDir.open(run.path) == run
    assert run.environments() == [folder]


def test_names_carry_the_time_and_are_unique_under_a_race(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        runs = list(pool.map(lambda n: RunDir.create(tmp_path, "grid", f"r-{n}"), range(40)))
    assert len({run.path for run in runs}) == 40
    assert all(run.path.name[:8].isdigit() and run.path.name[15:20] == "-grid" for run in runs)
    assert {RunDir.open(run.path).run_id for run in runs} == {f"r-{n}" for n in range(40)}


@pytest.mark.parametrize(
    ("name", "ending"),
    [("my config", "-my-config"), ("../../etc/passwd", "-etc-passwd"), ("", "-run"), ("...", "-run"), ("é\n\0", "-run"),
     ("x" * 300, "-" + "x" * 64)],
)  # fmt: skip
def test_any_name_makes_one_folder_inside_the_root(tmp_path: Path, name: str, ending: str) -> None:
    run = RunDir.create(tmp_path, name, "r-1")
    assert run.path.parent == tmp_path
    assert run.path.name[15:] == ending


@pytest.mark.parametrize(
    "env_id", ["", ".", "..", "../x", "a/b", "/etc", ".hidden", "a\0", "a\n", "x" * 64, "-rf", "é"]
)
def test_no_id_escapes(tmp_path: Path, env_id: str) -> None:
    run = RunDir.create(tmp_path, "grid", "r-1")
    with pytest.raises(ValueError, match="expected an id of letters"):
        run.environment(env_id)
    assert not (run.path / "environments").exists()


def test_a_link_out_of_the_run_is_refused(tmp_path: Path) -> None:
    run = RunDir.create(tmp_path / "runs", "grid", "r-1")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (run.path / "environments").mkdir()
    (run.path / "environments" / "agent_1").symlink_to(elsewhere)
    with pytest.raises(ValueError, match="inside the run"):
        run.environment("agent_1")
    assert run.environments() == []


def test_a_root_that_is_itself_a_link_is_fine(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "runs").symlink_to(tmp_path / "disk")
    run = RunDir.create(tmp_path / "runs", "grid", "r-1")
    assert run.environment("agent_1").path.is_dir()


def test_a_root_that_cannot_be_is_a_mistake_in_the_config(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError) as caught:
        RunDir.create(tmp_path / "file", "grid", "r-1")
    (problem,) = caught.value.problems
    assert problem.path == "global.run_dir"
    assert "File exists" in problem.message
    assert "--run-dir" in problem.hint


def test_the_manifest_always_names_run_and_owner(tmp_path: Path) -> None:
    run = RunDir.create(tmp_path, "grid", "r-1")
    first = json.loads(run.manifest.read_text())
    run.write_manifest({"run_id": "forged", "process": None, "started_unix": 0, "more": 1})
    assert json.loads(run.manifest.read_text()) == {**first, "more": 1}
    assert first["process"] == Owner.current().as_record()


def test_states(tmp_path: Path) -> None:
    run = RunDir.create(tmp_path, "grid", "r-1")
    assert run.state() is RunState.RUNNING
    run.write_summary({})
    assert run.state() is RunState.FINISHED
    run.summary.unlink()
    run.manifest.write_bytes(b"\0\0\0")
    assert run.state() is RunState.INTERRUPTED


_RUN = textwrap.dedent(
    """
    import sys
    from pathlib import Path
    from agentenv.fleet.rundir import RunDir

    print(RunDir.create(Path(sys.argv[1]), "grid", "r-9").path, flush=True)
    sys.stdin.read()
    """
)


def test_a_killed_run_is_interrupted(tmp_path: Path) -> None:
    command = [sys.executable, "-c", _RUN, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        run = RunDir.open(Path(os.fsdecode(process.stdout.readline().strip())))
        assert (run.run_id, run.state()) == ("r-9", RunState.RUNNING)
        process.kill()
        process.wait()
        assert run.state() is RunState.INTERRUPTED
