"""The list of runs among junk, and finding the one that is meant."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from agentenv.errors import ConfigError
from agentenv.fleet.rundir import RunDir, RunState
from agentenv.fleet.runs import find_run, list_runs


def _make(root: Path, name: str, run_id: str, started: float) -> RunDir:
    """A run as another process may have left it, at a time of our choice."""
    path = root / name
    path.mkdir(parents=True)
    (path / "manifest.json").write_text(f'{{"run_id": "{run_id}", "started_unix": {started}}}')
    return RunDir.open(path)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "runs"
    _make(root, "20260101-120000-gridworld", "aa11", 100.0)
    _make(root, "20260102-120000-cartpole", "ab22", 200.0)
    _make(root, "20260102-120000-cartpole-2", "ac33", 201.0)
    return root


def test_the_oldest_comes_first(root: Path) -> None:
    RunDir.open(root / "20260101-120000-gridworld").write_summary({"steps": 3})
    RunDir.open(root / "20260101-120000-gridworld").environment("agent_1")
    runs = list_runs(root)
    assert [(run.run_id, run.state, run.environments) for run in runs] == [
        ("aa11", RunState.FINISHED, 1),
        ("ab22", RunState.INTERRUPTED, 0),
        ("ac33", RunState.INTERRUPTED, 0),
    ]
    assert (runs[0].summary(), runs[1].summary()) == ({"steps": 3}, None)
    assert {run.problem for run in runs} == {""}


def test_junk_and_damage_are_survived(root: Path) -> None:
    (root / "notes.txt").write_text("mine")
    (root / "my folder").mkdir()
    (root / "20260103-120000-file").write_text("not a folder")
    (root / "dangling").symlink_to(root / "nowhere")
    (root / "20260103-120000-empty").mkdir()
    (root / "99999999-999999-odd").mkdir()
    broken = root / "20260104-120000-broken"
    broken.mkdir()
    (broken / "manifest.json").write_bytes(b"\xff\0{")
    (broken / "summary.json").write_bytes(b'{"steps": 1')
    odd = root / "20260105-120000-list"
    odd.mkdir()
    (odd / "manifest.json").write_text("[" * 100_000)
    (odd / "environments").write_text("a file")
    runs = {run.name[16:]: run for run in list_runs(root)}
    assert sorted(runs) == ["broken", "cartpole", "cartpole-2", "empty", "gridworld", "list", "odd"]
    assert runs["broken"].problem == "manifest.json is damaged; summary.json is damaged"
    assert (runs["broken"].state, runs["broken"].run_id) == (RunState.FINISHED, "")
    assert runs["empty"].problem == "manifest.json is missing"
    assert runs["list"].state is RunState.INTERRUPTED
    assert runs["odd"].started_unix is None


def test_no_folder_no_runs(tmp_path: Path) -> None:
    assert list_runs(tmp_path / "nowhere") == []


@pytest.mark.parametrize(
    ("ref", "run_id"),
    [
        ("latest", "ac33"),
        ("20260102-120000-cartpole", "ab22"),
        ("20260101", "aa11"),
        ("aa", "aa11"),
        ("ac33", "ac33"),
    ],
)
def test_the_run_that_is_meant(root: Path, ref: str, run_id: str) -> None:
    assert find_run(root, ref).run_id == run_id


def test_a_path_is_a_run_wherever_it_lies(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    moved = _make(tmp_path / "archive", "kept", "zz99", 1.0)
    assert find_run(root, str(moved.path)).run_id == "zz99"
    monkeypatch.chdir(moved.path.parent)
    assert find_run(root, "./kept").run_id == "zz99"
    assert find_run(root, "kept").run_id == "zz99"
    with pytest.raises(ConfigError, match="not one of a run"):
        find_run(root, str(tmp_path) + os.sep)


@pytest.mark.parametrize(
    ("ref", "said"),
    [
        ("20260102", "expected one run, 2 begin with '20260102' (one of 20260102-120000-cartpole, "),
        ("gridwrld", "(did you mean 20260101-120000-gridworld?)"),
        ("20260101-120000-gridwrld", "(did you mean 20260101-120000-gridworld?)"),
        ("world", "(did you mean 20260101-120000-gridworld?)"),
        ("qqq", "none is called 'qqq' (the latest are 20260102-120000-cartpole-2, "),
        ("", "none is called ''"),
        ("../runs/nothing", "none is called"),
    ],
)
def test_what_is_not_found_names_what_there_is(root: Path, ref: str, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        find_run(root, ref)
    assert said in str(caught.value)


def test_latest_of_nothing(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="has none"):
        find_run(tmp_path, "latest")


def test_the_latest_run_is_the_latest_wherever_the_clock_was_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A clock that was hours ahead until it was corrected, and one that is set back twice."""
    real = time.time
    for number, ahead in enumerate((9.0, 0.0, -30.0, 4.0)):
        monkeypatch.setattr(time, "time", lambda ahead=ahead: real() + ahead * 3600)
        RunDir.create(tmp_path, f"n{number}", f"id{number}")
        assert find_run(tmp_path, "latest").run_id == f"id{number}"
    assert [run.run_id for run in list_runs(tmp_path)] == ["id0", "id1", "id2", "id3"]
    # What is shown is what its clock said then.
    assert list_runs(tmp_path)[0].started_unix == pytest.approx(real() + 9 * 3600, abs=3600)


@pytest.mark.parametrize("moment", ['{"id": "another boot", "s": 1e6}', '{"id": 3}', "[]", '"x"', '{"s": true}'])
def test_a_run_of_another_boot_counts_by_its_clock(root: Path, moment: str) -> None:
    run = root / "20260101-120000-gridworld"
    (run / "manifest.json").write_text(f'{{"run_id": "aa11", "started_unix": 150.0, "started_boot": {moment}}}')
    assert [found.run_id for found in list_runs(root)] == ["aa11", "ab22", "ac33"]
