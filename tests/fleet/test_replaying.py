"""Executing recorded episodes again, without the command line: any space, any subset, any change."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from agentenv.config import Config, EnvironmentConfig, load_config
from agentenv.fleet.origin import read_config
from agentenv.fleet.play import Play
from agentenv.fleet.replaying import Replayer
from agentenv.fleet.rundir import RunDir
from agentenv.fleet.tracefile import EpisodeTrace, read_trace


def record(tmp_path: Path, **environment: Any) -> tuple[Config, EnvironmentConfig, dict[int, EpisodeTrace]]:
    """Play a configuration in this process; returns what is needed to replay it."""
    config = load_config(
        {
            "global": {"seed": 3, "run_dir": str(tmp_path / "runs"), "runtime": "process"},
            "environments": [{"id": "a", **environment}],
        }
    )
    summary = Play(config).run()
    assert summary.state == "finished"
    run = RunDir.open(summary.run_dir)
    read, _ = read_config(run)
    (one,) = read.expand()
    return read, one, read_trace(run.environment("a").trace).episodes


def test_an_episode_alone_is_the_same_as_among_the_others(tmp_path: Path) -> None:
    config, environment, held = record(tmp_path, env="wayward:Seeded", episodes=4)
    with Replayer(config, environment) as replayer:
        for number in (3, 0, 2, 2):
            found = replayer.play(held[number])
            assert (found.episode, found.steps, found.whole, found.difference) == (number, 5, True, None)


def test_a_beginning_is_compared_as_far_as_it_goes(tmp_path: Path) -> None:
    config, environment, held = record(tmp_path, env="wayward:Seeded")
    part = held[0]
    (chunk, _rows) = part.chunks[0]
    part.chunks, part.rows, part.whole = [(chunk, 3)], 3, False
    with Replayer(config, environment) as replayer:
        found = replayer.play(part)
    assert (found.steps, found.whole, found.difference) == (2, False, None)


@pytest.mark.parametrize(
    ("changed", "step", "what"),
    [
        ({"env_kwargs": {"length": 4}}, 4, ("terminated",)),
        ({"max_episode_steps": 2}, 2, ("truncated",)),
        ({"env": "wayward:Clock"}, 1, ("info",)),
        ({"env": "misbehaving:Fine"}, None, ("spaces",)),
    ],
)
def test_another_environment_is_found_out(tmp_path: Path, changed: dict, step: int | None, what: tuple) -> None:
    config, environment, held = record(tmp_path, env="wayward:Seeded")
    with Replayer(config, environment.model_copy(update=changed)) as replayer:
        difference = replayer.play(held[0]).difference
    assert difference is not None
    assert (difference.env_id, difference.step, difference.what) == ("a", step, what)


def test_an_environment_that_dies_is_a_difference(tmp_path: Path) -> None:
    config, environment, held = record(tmp_path, env="misbehaving:Fine")
    with Replayer(config, environment.model_copy(update={"env": "misbehaving:Raises"})) as replayer:
        difference = replayer.play(held[0]).difference
    assert difference is not None
    assert (difference.step, difference.what) == (3, ("failure",))
    assert "LookupError" in difference.detail


@pytest.mark.parametrize("env", ["FrozenLake-v1", "Pendulum-v1", "spacious:Variable"])
def test_spaces_of_every_kind(tmp_path: Path, env: str) -> None:
    config, environment, held = record(tmp_path, env=env, max_episode_steps=20, episodes=2)
    with Replayer(config, environment) as replayer:
        for one in held.values():
            found = replayer.play(one)
            assert (found.steps > 0, found.whole, found.difference) == (True, True, None)
