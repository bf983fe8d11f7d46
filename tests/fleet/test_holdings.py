"""What is left of a run's episodes: damage is told from what was never written, and from what a kill leaves."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from agentenv.config import load_config
from agentenv.fleet.comparing import compare_runs
from agentenv.fleet.digests import StepDigest
from agentenv.fleet.expected import read_expected
from agentenv.fleet.holdings import Holding, read_holding
from agentenv.fleet.origin import write_resume_point
from agentenv.fleet.owner import Owner
from agentenv.fleet.rundir import EnvDir, RunDir
from agentenv.fleet.trace import TraceWriter, older
from agentenv.telemetry.records import RecordWriter

LENGTH = 4


def write(
    root: Path, episodes: int = 4, *, trace_mb: int = 64, limit_mb: float = 64, total: float | str = 1.0
) -> RunDir:
    """A run of one environment that has ended, as its process leaves it."""
    run = RunDir.create(root, "test", "1-2-00000000")
    config = load_config({"environments": [{"id": "a", "episodes": episodes, "trace_mb": trace_mb}]})
    manifest = {"seeds": {"root": 7}, "process": None}
    write_resume_point(run, config, manifest, root)
    manifest = json.loads(run.manifest.read_bytes())
    manifest["process"]["start_ticks"] += 1  # as if the process that made it were gone
    run.manifest.write_text(json.dumps(manifest))
    place = run.environment("a")
    trace = TraceWriter(place.trace, names=("observation",), action_bytes=8, limit_mb=limit_mb)
    with RecordWriter(place.episodes) as records:
        for number in range(episodes):
            trace.begin(number, number + 100)
            for row in range(LENGTH + 1):
                answer = (number * 1000 + row).to_bytes(8, "little")
                trace.add(answer, b"", StepDigest(answer, (row,), 0, 0.25 if row else 0.0, 0))
            trace.end("terminated")
            records.append(record(number, digest=trace.chain, **{"return": total}))
    trace.close()
    run.write_summary({"state": "finished", "environments": [{"id": "a", "episodes": episodes}]})
    return run


def record(number: int, **changed: Any) -> dict[str, Any]:
    held = {"env_id": "a", "episode": number, "seed": number + 100, "return": 1.0, "length": LENGTH}
    return held | {"outcome": "terminated"} | changed


def read(run: RunDir) -> Holding:
    return read_holding(read_expected(run), "a")


def faults(run: RunDir) -> tuple[str, ...]:
    held = read(run)
    return held.record_faults + held.trace_faults


def place_of(run: RunDir) -> EnvDir:
    return run.environment("a")


def test_nothing_is_wrong_with_a_whole_one(tmp_path: Path) -> None:
    held = read(write(tmp_path))
    assert (sorted(held.records), held.lost, held.unheld) == ([0, 1, 2, 3], frozenset(), frozenset())
    assert held.record_faults == held.trace_faults == ()


def test_a_trace_that_was_not_wanted_is_not_missing(tmp_path: Path) -> None:
    run = write(tmp_path, trace_mb=0, limit_mb=0)
    assert not place_of(run).trace.exists()
    assert faults(run) == ()


def test_older_episodes_that_gave_way_are_not_missing(tmp_path: Path) -> None:
    run = write(tmp_path, 40, limit_mb=0.004)
    held = read(run)
    assert min(held.trace.episodes) > 0
    assert held.trace_faults == ()
    older(place_of(run).trace).unlink()
    (said,) = faults(run)
    assert "trace.old.bin beside it was removed" in said


@pytest.mark.parametrize("size", [0, 60])
def test_an_older_trace_that_was_cut_is_named(tmp_path: Path, size: int) -> None:
    run = write(tmp_path, 40, limit_mb=0.004)
    old = older(place_of(run).trace)
    old.write_bytes(old.read_bytes()[:size])
    (said,) = faults(run)
    assert said.startswith(f"{old}: ")


def test_what_a_kill_leaves_is_no_damage(tmp_path: Path) -> None:
    """The last episode ended in the trace and not in the records, the next began, and half a chunk was written."""
    run = write(tmp_path)
    run.summary.unlink()
    place = place_of(run)
    place.episodes.write_bytes(b"".join(place.episodes.read_bytes().splitlines(keepends=True)[:-1]))
    with place.trace.open("ab") as file:
        file.write(place.trace.read_bytes()[:30])
    held = read(run)
    assert (sorted(held.records), held.lost) == ([0, 1, 2, 3], frozenset())
    assert held.record_faults == held.trace_faults == ()
    assert held.records[3]["digest"] == held.trace.episodes[3].digest


def test_half_a_line_that_was_written_again_is_passed_over(tmp_path: Path) -> None:
    run = write(tmp_path)
    place = place_of(run)
    lines = place.episodes.read_bytes().splitlines(keepends=True)
    place.episodes.write_bytes(b"".join([*lines[:-1], lines[-1][:20], b"\n", lines[-1]]))
    held = read(run)
    assert (held.passed_over, held.record_faults, held.trace_faults) == (1, (), ())
    verdict = compare_runs(run, write(tmp_path / "other"))
    assert (verdict.same, verdict.damaged) == (True, 1)


def test_a_line_is_not_known_to_be_harmless_where_nothing_tells_how_many_there_were(tmp_path: Path) -> None:
    run = write(tmp_path)
    run.summary.unlink()
    with place_of(run).episodes.open("ab") as file:
        file.write(b'{"half a ')
    (said,) = faults(run)
    assert "1 damaged line, and nothing tells what was there" in said


def test_one_that_runs_may_be_read_between_two_writes(tmp_path: Path) -> None:
    run = write(tmp_path)
    run.summary.unlink()
    manifest = json.loads(run.manifest.read_bytes()) | {"process": Owner.current().as_record()}
    run.manifest.write_text(json.dumps(manifest))
    place = place_of(run)
    content = place.episodes.read_bytes()
    place.episodes.write_bytes(content[: len(content) - 20])
    held = read(run)
    assert (sorted(held.records), held.lost, held.record_faults) == ([0, 1, 2], frozenset(), ())


@pytest.mark.parametrize("total", ["NaN", "Infinity", "-Infinity"])
def test_a_return_that_is_not_finite_is_a_record(tmp_path: Path, total: str) -> None:
    run = write(tmp_path, total=total)
    assert faults(run) == ()
    assert compare_runs(run, write(tmp_path / "other", total=total)).same


@pytest.mark.parametrize(
    ("lines", "trace_part", "lost", "episodes"),
    [(2, 1.0, [], 4), (4, 0.5, [], 4), (0, 0.0, [0, 1, 2, 3], 0), (1, 0.6, [2, 3], 2)],
)
def test_what_both_lack_is_lost_and_what_one_has_is_compared(
    tmp_path: Path, lines: int, trace_part: float, lost: list[int], episodes: int
) -> None:
    whole, run = write(tmp_path / "whole"), write(tmp_path / "cut")
    place = place_of(run)
    place.episodes.write_bytes(b"".join(place.episodes.read_bytes().splitlines(keepends=True)[:lines]))
    data = place.trace.read_bytes()
    place.trace.write_bytes(data[: int(len(data) * trace_part)])
    held = read(run)
    assert sorted(held.lost) == lost
    for pair in ((whole, run), (run, whole)):
        verdict = compare_runs(*pair)
        assert (verdict.same, verdict.differences, verdict.episodes) == (False, (), episodes)
        assert verdict.faults
        assert all(str(run.path) in fault for fault in verdict.faults)


def test_a_difference_is_found_beside_the_damage(tmp_path: Path) -> None:
    one, other = write(tmp_path / "one"), write(tmp_path / "other")
    place = place_of(other)
    lines = place.episodes.read_bytes().splitlines(keepends=True)
    with RecordWriter(place.episodes) as records:
        place.episodes.write_bytes(b"".join(lines[:2]))
        records.append(record(2, digest="00" * 16, length=9))
    verdict = compare_runs(one, other)
    assert [(found.episode, found.what) for found in verdict.differences] == [(2, ("digest",))]
    assert any("missing: episode 3" in fault for fault in verdict.faults)
