"""Planted leaks are found, each as what it is; what does not leak is not accused; kills leave nothing behind."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from agentenv.config import Config, load_config
from agentenv.errors import ConfigError, EnvError
from agentenv.fleet.runs import list_runs
from agentenv.soak import counts
from agentenv.soak.driver import split_by_kind
from agentenv.soak.report import Report
from agentenv.soak.soak import Moment, soak
from agentenv.telemetry.records import read_records

pytestmark = pytest.mark.alone

LOOKED_AT = ("memory", "descriptors", "threads", "processes", "cgroups", "run_dir", "tmp")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    # Root's sandboxes belong to nobody, who must be able to read what lies here.
    tmp_path.chmod(0o755)
    return tmp_path


def config(root: Path, *environments: dict[str, Any]) -> Config:
    return load_config({"global": {"seed": 1, "run_dir": str(root / "runs")}, "environments": list(environments)})


def soaked(root: Path, env: str, seconds: float = 9.0, **kwargs: Any) -> Report:
    return soak(config(root, {"id": "a", "env": f"soak_leaky:{env}", "env_kwargs": kwargs}), seconds=seconds)


def leaks(report: Report) -> set[str]:
    """What leaks. How fast a shared machine steps is left out: that is not ours to promise here."""
    return {one.series.key for one in report.faults if one.verdict.outcome == "leak"}


def test_memory_kept_by_an_environment_is_found(root: Path) -> None:
    # Saved states would make it grow in stairs that are seconds long; and the kernel's own are two seconds long.
    environment = {"id": "a", "env": "soak_leaky:Memory", "on_crash": "raise"}
    report = soak(config(root, environment), seconds=16.0)
    assert leaks(report) == {"env.a.memory"}
    assert report.exit_code == 1
    (found,) = [one for one in report.resources if one.series.key == "env.a.memory"]
    trend = found.verdict.trend
    assert trend is not None
    # 1 MiB a second was planted.
    assert 0.7 < trend.slope < 1.3


def test_a_growing_log_is_found(root: Path) -> None:
    report = soaked(root, "Prints")
    assert leaks(report) == {"run_dir"}
    assert (report.run_dir / "environments" / "a" / "stdout.log").stat().st_size > 2 * counts.MIB


def test_a_log_that_is_full_within_seconds_is_found_as_output(root: Path) -> None:
    # Faster than its cap of three times 8 MiB can show.
    report = soaked(root, "Prints", mb_per_s=30.0)
    assert "output" in leaks(report)
    assert leaks(report) <= {"output", "run_dir"}
    kept = counts.disk_bytes(report.run_dir / "environments")
    assert kept <= 25 * counts.MIB


def test_steps_that_take_ever_longer_are_found(root: Path) -> None:
    report = soaked(root, "Slows", seconds=12.0)
    assert report.verdict == "slower"
    assert "p50" in {one.series.key for one in report.faults}
    assert leaks(report) == set()


def test_descriptors_and_files_kept_inside_are_found(root: Path) -> None:
    # It holds files open, so it can be neither saved nor copied; recovery would keep all it did, which is memory.
    environment = {"id": "a", "env": "soak_leaky:Descriptors", "on_crash": "raise"}
    report = soak(config(root, environment), seconds=9.0)
    # An ordinary user may not look at the descriptors of a process in namespaces of its own.
    listed = {"env.a.descriptors"} if os.geteuid() == 0 else set()
    assert leaks(report) >= {"env.a.tmp"} | listed
    # What lies in a /tmp that is memory is memory too.
    assert leaks(report) <= {"env.a.descriptors", "env.a.tmp", "env.a.memory"}


def test_descriptors_kept_by_the_host_are_found(root: Path) -> None:
    kept: list[int] = []

    def leak(_: Moment) -> None:
        kept.append(os.open("/dev/null", os.O_RDONLY))

    try:
        environment = {"id": "a", "env": "soak_leaky:Clean"}
        report = soak(config(root, environment), seconds=9.0, on_tick=leak)
    finally:
        for fd in kept:
            os.close(fd)
    assert leaks(report) == {"descriptors"}
    assert len(kept) > 20


def test_gridworld_leaks_nothing_and_leaves_a_whole_folder(root: Path) -> None:
    report = soak(config(root, {"id": "grid", "env": "agentenv/GridWorld-v0", "count": 3}), seconds=12.0)
    assert leaks(report) == set()
    outcomes = {one.series.key: one.verdict.outcome for one in report.resources}
    assert {outcomes[key] for key in LOOKED_AT} == {"steady"}
    assert {outcomes[f"env.grid-{i}.{key}"] for i in range(3) for key in ("memory", "processes")} == {"steady"}
    written = json.loads((report.run_dir / "report.json").read_bytes())
    assert written == json.loads(json.dumps(report.to_json()))
    assert (report.run_dir / "soak.png").read_bytes().startswith(b"\x89PNG")
    samples, damaged = read_records(report.run_dir / "samples.jsonl")
    assert (len(samples), damaged) == (report.samples, 0)
    assert samples[-1]["steps"] <= report.steps
    assert not (report.run_dir / "tmp").exists()
    (listed,) = list_runs(root / "runs")
    assert listed.name.endswith("-run-soak")
    assert (listed.state.value, listed.problem) == ("finished", "")


def test_kills_cost_steps_and_nothing_else(root: Path) -> None:
    processes, descriptors = counts.own_processes(), counts.own_descriptors()
    grids = config(root, {"id": "grid", "env": "agentenv/GridWorld-v0", "count": 4})
    report = soak(grids, seconds=12.0, chaos_per_minute=150)
    assert report.kills >= 10
    assert report.failures == 0, report.last_failure
    # Of the host: an environment that lives for seconds is warming up all its life.
    assert {key for key in leaks(report) if not key.startswith("env.")} == set()
    assert report.steps > 1000
    assert counts.own_processes() == processes
    assert counts.own_descriptors() == descriptors
    run_id = json.loads((report.run_dir / "manifest.json").read_bytes())["run_id"]
    assert counts.find_groups([f"agentenv.{run_id.rpartition('-')[0]}"]) == []


def test_an_environment_that_raises_is_a_failure_and_is_stepped_on(root: Path) -> None:
    report = soaked(root, "Raises", seconds=4.0)
    assert report.failures >= 2
    assert "ZeroDivisionError: once a second" in report.last_failure
    assert (report.verdict, report.exit_code) == ("failed", 1)
    assert report.steps > 100


def test_environments_with_other_spaces_are_stepped_beside_each_other(root: Path) -> None:
    both = config(
        root, {"id": "cart", "env": "CartPole-v1", "count": 2}, {"id": "grid"}, {"id": "c", "env": "CartPole-v1"}
    )
    assert [[e.id for e in part.environments] for part in split_by_kind(both)] == [["cart", "c"], ["grid"]]
    report = soak(both, seconds=1.0)
    assert {one.series.sandbox for one in report.resources if one.series.sandbox} == {"cart-0", "cart-1", "c", "grid"}
    assert (report.verdict, report.exit_code) == ("undecided", 0)
    assert report.steps % 4 == 0


def test_what_cannot_be_soaked_is_refused(root: Path) -> None:
    with pytest.raises(ConfigError, match="command"):
        soak(config(root, {"id": "a", "command": ["true"]}), seconds=1.0)
    with pytest.raises(ConfigError, match="expected a time"):
        soak(config(root, {"id": "a"}), seconds=0.0)
    with pytest.raises(EnvError, match="soak_leaky_missing"):
        soak(config(root, {"id": "a", "env": "soak_leaky_missing:Nothing"}), seconds=1.0)
