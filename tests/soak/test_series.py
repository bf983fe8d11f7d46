from __future__ import annotations

from typing import Any

from agentenv.soak.judge import Outcome
from agentenv.soak.report import Judged, Report, judge_all, worst_first
from agentenv.soak.series import RESOURCES, split


def sample(t: float, sandboxes: dict[str, dict[str, Any]], **host: Any) -> dict[str, Any]:
    return {"t": t, "host": host, "sandboxes": sandboxes}


def by_key(samples: list[dict[str, Any]]) -> dict[str, Judged]:
    return {one.series.key: one for one in judge_all(samples)}


def report_of(samples: list[dict[str, Any]], **changes: Any) -> Report:
    fields: dict[str, Any] = {
        "run_dir": None, "config": "c", "duration_s": 1.0, "wanted_s": 1.0, "chaos_per_minute": 0.0, "steps": 1,
        "kills": 0, "losses": 0, "failures": 0, "last_failure": "", "samples": 1, "lost_samples": 0, "number": None,
        "error": "", "resources": judge_all(samples),
    }  # fmt: skip
    return Report(**{**fields, **changes})


def test_keys_are_unique() -> None:
    keys = [(resource.key, resource.each) for resource in RESOURCES]
    assert len(set(keys)) == len(keys)


def test_values_that_are_missing_are_left_out() -> None:
    samples = [sample(float(i), {}, memory=None if i % 2 else 80.0 + i) for i in range(10)]
    (series,) = split(samples)
    assert series.key == "memory"
    assert series.times_s == [0, 2, 4, 6, 8]
    assert series.values == [80, 82, 84, 86, 88]


def test_an_environment_is_judged_over_its_longest_life() -> None:
    # Lives of 20, 60 and 20 s: each begins at 5 MB and grows; only the middle one is long enough.
    lives = [(100, 0, 20), (101, 20, 80), (102, 80, 100)]
    samples = [
        sample(float(t), {"a": {"pid": pid, "memory": 5.0 + (t - begin)}})
        for pid, begin, end in lives
        for t in range(begin, end)
    ]
    found = by_key(samples)["env.a.memory"]
    assert found.series.lives == 3
    assert (found.series.times_s[0], found.series.times_s[-1]) == (20, 79)
    assert found.verdict.outcome is Outcome.LEAK


def test_one_that_is_killed_all_the_time_is_undecided_and_it_is_said_why() -> None:
    samples = [sample(float(t), {"a": {"pid": t // 5, "memory": 5.0}}) for t in range(100)]
    verdict = by_key(samples)["env.a.memory"].verdict
    assert verdict.outcome is Outcome.UNDECIDED
    assert "killed too often" in verdict.reason


def test_a_sandbox_that_was_away_for_a_look_keeps_its_life() -> None:
    samples = [sample(float(t), {} if t == 50 else {"a": {"pid": 7, "memory": 5.0 + t}}) for t in range(100)]
    found = by_key(samples)["env.a.memory"]
    assert found.series.lives == 1
    assert len(found.series.values) == 99


def test_the_worst_comes_first_and_decides_the_run() -> None:
    samples = [
        sample(float(t), {"a": {"pid": 1, "memory": 5.0}, "b": {"pid": 2, "memory": 5.0 + t}}, descriptors=20 + t % 2)
        for t in range(100)
    ]
    report = report_of(samples)
    assert [one.series.key for one in report.faults] == ["env.b.memory"]
    assert worst_first(report.resources)[0].series.key == "env.b.memory"
    assert (report.verdict, report.exit_code) == ("leak", 1)
    clean = report_of(samples, resources=[one for one in report.resources if one not in report.faults])
    assert (clean.verdict, clean.exit_code) == ("steady", 0)


def test_failures_signals_and_nothing_measured() -> None:
    assert report_of([], failures=1).exit_code == 1
    assert report_of([], number=2).exit_code == 130
    assert (report_of([]).verdict, report_of([]).exit_code) == ("undecided", 0)
