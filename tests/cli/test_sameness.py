"""A run is the same run whatever surrounds it: other environments, how many at once, the runtime, the hash seed."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from agentenv import AgentVectorEnv
from agentenv.telemetry.records import read_records

SEEDED = 'id = "s"\nenv = "wayward:Seeded"\nepisodes = 4\ncount = 3\nenv_kwargs = { length = 12 }'
LEARNING = 'id = "l"\nenv = "wayward:Seeded"\nepisodes = 3\npolicy = "wayward:Learner"'
GRID = 'id = "g"\nenv = "agentenv/GridWorld-v0"\nepisodes = 3\nenv_kwargs = { size = 6, slip = 0.3 }'
OTHERS = ('id = "aa"\nenv = "wayward:Seeded"\ncount = 2', 'id = "z"\nenv = "CartPole-v1"')


def digests(summary: dict[str, Any]) -> dict[str, list[str]]:
    """The digests of all finished episodes, by environment."""
    found = {}
    for place in sorted((Path(summary["run_dir"]) / "environments").iterdir()):
        records, damaged = read_records(place / "episodes.jsonl")
        assert damaged == 0
        found[place.name] = [record["digest"] for record in records]
    return found


_reference: dict[str, list[str]] = {}


@pytest.fixture
def reference(command) -> dict[str, list[str]]:
    """The digests that every other run must have too; made once."""
    if not _reference:
        _reference.update(digests(command.run(command.config(SEEDED, LEARNING, GRID), "--run-dir", "reference")))
    return _reference


def test_digests_tell_runs_apart(command, reference) -> None:
    other = digests(command.run(command.config(SEEDED, LEARNING, GRID), "--seed", "2"))
    ours = [digest for held in reference.values() for digest in held]
    theirs = [digest for held in other.values() for digest in held]
    assert len(ours) == 3 * 4 + 3 + 3
    assert len({*ours, *theirs}) == 2 * len(ours)


def test_more_environments_change_nothing(command, reference) -> None:
    more = digests(command.run(command.config(OTHERS[0], GRID, LEARNING, SEEDED, OTHERS[1])))
    assert len(more) == len(reference) + 3
    assert {env_id: more[env_id] for env_id in reference} == reference


@pytest.mark.parametrize("most", [1, 10])
def test_how_many_run_at_once_changes_nothing(command, reference, most: int) -> None:
    settings = ("--set", f"global.max_parallel_envs={most}")
    assert digests(command.run(command.config(SEEDED, LEARNING, GRID), *settings)) == reference


@pytest.mark.parametrize("runtime", ["bubblewrap", "process"])
def test_the_runtime_changes_nothing(command, reference, runtime: str) -> None:
    assert digests(command.run(command.config(SEEDED, LEARNING, GRID), "--runtime", runtime)) == reference


@pytest.mark.parametrize("hash_seed", ["1", "4711"])
def test_the_hash_seed_changes_nothing(command, reference, hash_seed: str) -> None:
    done = subprocess.run(
        command.argv("run", command.config(SEEDED, LEARNING, GRID), "-q", "--run-dir", "hashed"),
        cwd=command.cwd,
        env={**os.environ, "PYTHONHASHSEED": hash_seed},
        capture_output=True,
        text=True,
        timeout=90,
    )
    assert done.returncode == 0, done.stderr
    (run,) = (command.cwd / "hashed").iterdir()
    assert digests({"run_dir": run}) == reference


@pytest.mark.parametrize(("count", "shared"), [(5, 1), (3, 3), (5, 2)])
def test_a_vector_gives_each_environment_its_own_seed(count: int, shared: int) -> None:
    def first_steps(num_envs: int, envs_per_sandbox: int) -> list[Any]:
        config = {
            "global": {"seed": 9, "envs_per_sandbox": envs_per_sandbox, "runtime": "process"},
            "environments": [{"id": "v", "env": "CartPole-v1", "count": num_envs}],
        }
        vec = AgentVectorEnv(config)
        try:
            found = [vec.reset()[0][:3].tolist()]
            for _ in range(40):
                found.append(vec.step([1, 0, 1, 0, 1][:num_envs])[0][:3].tolist())
        finally:
            vec.close()
        return found

    assert first_steps(count, shared) == first_steps(3, 1)
