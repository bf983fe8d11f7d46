"""Which environments of a file are examined."""

from __future__ import annotations

import pytest

from agentenv.checks.choose import COMMAND, choose
from agentenv.config import load_config
from agentenv.errors import ConfigError

TABLES = [
    {"id": "a", "env": "CartPole-v1", "count": 3},
    {"id": "b", "env": "CartPole-v1", "seed": 7, "episodes": 5, "policy": "mine:Policy", "on_crash": "raise"},
    {"id": "c", "env": "CartPole-v1", "max_episode_steps": 9},
    {"id": "d", "command": ["true"]},
    {"id": "e"},
]
CONFIG = load_config({"environments": TABLES})


def test_each_kind_once_and_no_commands() -> None:
    choice = choose(CONFIG, None)
    assert [(one.environment.id, list(one.others)) for one in choice.chosen] == [
        ("a-0", ["a-1", "a-2", "b"]),
        ("c", []),
        ("e", []),
    ]
    assert choice.refused == [("d", COMMAND)]


@pytest.mark.parametrize(("wanted", "found"), [("a", "a-0"), ("a-2", "a-2"), ("b", "b"), ("e", "e")])
def test_one_by_its_id_or_that_of_its_table(wanted: str, found: str) -> None:
    choice = choose(CONFIG, wanted)
    assert [one.environment.id for one in choice.chosen] == [found]


def test_an_unknown_id_is_refused_with_those_there_are() -> None:
    with pytest.raises(ConfigError, match=r"expected one of a, b, c, d, e, got 'f'"):
        choose(CONFIG, "f")


def test_a_command_is_refused() -> None:
    with pytest.raises(ConfigError, match="a command is a program"):
        choose(CONFIG, "d")
    with pytest.raises(ConfigError, match="a command is a program"):
        choose(load_config({"environments": [TABLES[3]]}), None)
