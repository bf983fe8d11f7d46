"""Where an environment goes on, from every mixture of whole, lost and half-written files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from agentenv.config import load_config
from agentenv.errors import ConfigError
from agentenv.fleet.digests import StepDigest
from agentenv.fleet.origin import write_resume_point
from agentenv.fleet.progress import EnvState, Progress
from agentenv.fleet.resuming import Standing, find_beginning, read_resumption
from agentenv.fleet.rundir import RunDir
from agentenv.fleet.trace import TraceWriter
from agentenv.fleet.tracefile import Trace, read_trace

NONE = Trace({}, 0, 0)
LENGTH = 6


def record(episode: int, outcome: str = "terminated", **changed: Any) -> dict[str, Any]:
    held = {"episode": episode, "seed": episode + 100, "return": LENGTH * 0.1, "length": LENGTH, "outcome": outcome}
    return held | changed


def make_trace(path: Path, whole: int, started: int) -> Trace:
    """A trace of ``whole`` finished episodes and ``started`` rows of one more."""
    trace = TraceWriter(path, names=("observation",), action_bytes=1)
    for episode in range(whole + 1):
        trace.begin(episode, episode + 100)
        for row in range(LENGTH + 1 if episode < whole else started):
            trace.add(b"a", b"", StepDigest(b"d" * 8, (row,), 0, 0.1 if row else 0.0, 0))
        if episode < whole:
            trace.end("terminated", b"after %d" % episode)
    trace.close()
    return read_trace(path)


def test_nothing_there_begins_at_the_beginning() -> None:
    finished, lost, beginning = find_beginning([], NONE, wanted=3)
    assert (finished, lost) == ([], [])
    assert (beginning.rows, beginning.policy_state, beginning.all_draws) == (None, None, 0)


def test_goes_on_in_the_unfinished_episode(tmp_path: Path) -> None:
    trace = make_trace(tmp_path / "trace.bin", 2, 4)
    finished, lost, beginning = find_beginning([record(0), record(1)], trace, wanted=5)
    assert [one["episode"] for one in finished] == [0, 1]
    assert lost == []
    assert beginning.rows is not None
    assert len(beginning.rows) == 4
    assert (beginning.policy_state, beginning.draws, beginning.all_draws) == (b"after 1", 0, 2 * LENGTH)


def test_a_lost_record_is_known_from_the_trace(tmp_path: Path) -> None:
    trace = make_trace(tmp_path / "trace.bin", 3, 0)
    finished, lost, _ = find_beginning([record(0), record(2)], trace, wanted=5)
    assert [one["episode"] for one in finished] == [0, 1, 2]
    (rebuilt,) = lost
    total = 0.0
    for _ in range(LENGTH):
        total += 0.1
    assert (rebuilt["return"], rebuilt["length"], rebuilt["seed"], rebuilt["outcome"]) == (
        total, LENGTH, 101, "terminated",
    )  # fmt: skip
    assert rebuilt["digest"] == trace.episodes[1].digest


def test_without_either_it_goes_on_before_the_gap(tmp_path: Path) -> None:
    finished, _, beginning = find_beginning([record(0), record(2), record(3)], NONE, wanted=5)
    assert [one["episode"] for one in finished] == [0]
    assert (beginning.policy_state, beginning.draws) == (None, LENGTH)


def test_an_older_state_is_brought_up_by_draws(tmp_path: Path) -> None:
    trace = make_trace(tmp_path / "trace.bin", 1, 0)
    _, _, beginning = find_beginning([record(0), record(1), record(2)], trace, wanted=5)
    assert (beginning.policy_state, beginning.draws, beginning.all_draws) == (b"after 0", 2 * LENGTH, 3 * LENGTH)


def test_interrupted_and_failed_episodes_are_not_finished(tmp_path: Path) -> None:
    finished, _, _ = find_beginning([record(0), record(1, "interrupted"), record(1, "failed")], NONE, wanted=5)
    assert [one["episode"] for one in finished] == [0]
    finished, _, _ = find_beginning([record(0, "interrupted"), record(0, length=9)], NONE, wanted=5)
    assert [one["length"] for one in finished] == [9]


def test_an_episode_of_another_seed_is_not_followed(tmp_path: Path) -> None:
    trace = make_trace(tmp_path / "trace.bin", 0, 4)
    assert find_beginning([], trace, wanted=1, seed_of={0: 100})[2].rows is not None
    assert find_beginning([], trace, wanted=1, seed_of={0: 101})[2].rows is None


def test_a_standing_fills_the_progress() -> None:
    progress = Progress("a", 2)
    Standing([record(0), record(1)], state=EnvState.DONE).fill(progress)
    assert (progress.state, progress.episodes, progress.steps, progress.lengths) == (EnvState.DONE, 2, 12, 12)
    assert progress.mean_return == pytest.approx(0.6)


def run_dir(tmp_path: Path) -> RunDir:
    run = RunDir.create(tmp_path, "test", "1-2-00000000")
    config = load_config({"global": {}, "environments": [{"id": "a", "episodes": 2}]})
    run.write_manifest({"seeds": {"root": 77}, "process": None})
    write_resume_point(run, config, {"seeds": {"root": 77}}, tmp_path)
    # As if the process that made it were gone.
    text = run.manifest.read_text()
    run.manifest.write_text(text.replace('"start_ticks": ', '"start_ticks": 1'))
    return run


def test_the_root_seed_that_was_drawn_is_in_the_configuration(tmp_path: Path) -> None:
    run = run_dir(tmp_path)
    found = read_resumption(run)
    assert found.config.global_.seed == 77
    assert [*found.standings] == ["a"]
    assert found.standings["a"].state is None


def test_a_damaged_copy_and_a_damaged_manifest_do_not_matter(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    run = run_dir(tmp_path)
    place = run.path / "resume.1"
    place.write_bytes(place.read_bytes().replace(b"77", b"78"))
    run.manifest.write_bytes(b'{"seeds": ')
    found = read_resumption(run)
    assert found.config.global_.seed == 77
    assert found.manifest["seeds"] == {"root": 77}
    assert "resume.1 is damaged" in caplog.text
    assert any("manifest.json is damaged" in warning for warning in found.warnings)


def test_with_both_copies_damaged_it_says_so(tmp_path: Path) -> None:
    run = run_dir(tmp_path)
    for number in (0, 1):
        (run.path / f"resume.{number}").write_bytes(b"")
    with pytest.raises(ConfigError, match="both copies"):
        read_resumption(run)


def test_one_that_runs_is_refused(tmp_path: Path) -> None:
    run = RunDir.create(tmp_path, "test", "1-2-00000000")
    with pytest.raises(ConfigError, match="this one is running"):
        read_resumption(run)


def test_a_folder_is_one_processs_at_a_time(tmp_path: Path) -> None:
    import os

    run = run_dir(tmp_path)
    held = run.lock()
    assert held is not None
    assert run.lock() is None
    os.close(held)
    again = run.lock()
    assert again is not None
    os.close(again)
