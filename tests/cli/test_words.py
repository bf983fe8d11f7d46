"""One of something is told as one."""

from __future__ import annotations

import pytest

from agentenv.cli.live import describe
from agentenv.errors import ConfigError, Problem, counted
from agentenv.fleet.progress import EnvState, Progress


@pytest.mark.parametrize(
    ("count", "words", "told"),
    [
        (0, ("step",), "0 steps"),
        (1, ("step",), "1 step"),
        (2, ("step",), "2 steps"),
        (1_234_567, ("damaged line",), "1,234,567 damaged lines"),
        (1, ("loss", "losses"), "1 loss"),
        (3, ("loss", "losses"), "3 losses"),
    ],
)
def test_how_many(count: int, words: tuple[str, ...], told: str) -> None:
    assert counted(count, *words) == told


def test_a_run_of_one() -> None:
    progress = Progress("a", 1, EnvState.DONE, episodes=1, steps=1)
    assert describe([progress]) == "1 environment: 1 done; 1 episode, 1 step"
    assert describe([progress, progress]) == "2 environments: 2 done; 2 episodes, 2 steps"


def test_one_mistake() -> None:
    problem = Problem("file:1", "a", "wrong")
    assert str(ConfigError([problem])).startswith("1 problem in ")
    assert str(ConfigError([problem, problem])).startswith("2 problems in ")
