"""One of something is told as one."""

from __future__ import annotations

import subprocess
import sys

import pytest

from agentenv.cli.live import describe
from agentenv.errors import ConfigError, Problem, counted
from agentenv.fleet.progress import EnvState, Progress
from agentenv.sandbox.registry import REGISTRY


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


@pytest.mark.parametrize("command", ["run", "check", "soak", "bench"])
def test_help_names_every_runtime(command: str) -> None:
    done = subprocess.run([sys.executable, "-m", "agentenv.cli", command, "--help"], capture_output=True, timeout=60)
    (said,) = (line for line in done.stdout.decode().splitlines() if "--runtime NAME" in line)
    assert all(name in said for name in ("auto", *REGISTRY)), said
