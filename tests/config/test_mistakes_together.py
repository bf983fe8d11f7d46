"""Mistakes of several kinds at once, and in sources other than a file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from agentenv.config import config_from_keywords, load_config
from agentenv.errors import ConfigError, Problem

ProblemsOf = Callable[..., list[Problem]]
QUOTES = "write it without quotes"
ENV = 'expected a Gymnasium id or "module:callable", '
ENV_HINT = 'such as "CartPole-v1" or "my_package.my_module:MyEnv"'
LEVELS = 'expected one of "debug", "info", "warning", "error", '


def in_environment(line: str) -> str:
    return f'[[environments]]\nid = "a"\n{line}\n'


def test_all_are_reported_together_in_the_order_of_the_file(problems_of: ProblemsOf) -> None:
    text = """\
[bubblewrap]
nested = 1

[[environments]]
id = "a"
env = "CartPole-v1"
command = ["x"]
env_kwargs = { size = 3 }
pids = 1

[global]
seed = "x"

[[environments]]
id = "a"
"""
    found = problems_of(text, "environments[1].count=0", "global.seeds=1", "nonsense")
    assert [(p.where, p.path) for p in found] == [
        ("f.toml:2", "bubblewrap.nested"),
        ("f.toml:6", "environments[0].env"),
        ("f.toml:8", "environments[0].env_kwargs"),
        ("f.toml:9", "environments[0].pids"),
        ("f.toml:12", "global.seed"),
        ("f.toml:15", "environments[1].id"),
        ("--set", "global.seeds"),
        ("--set", "environments[1].count"),
        ("--set", "nonsense"),
    ]
    assert found[1].message == "expected env or command, got both"


def test_what_the_environment_itself_says_wrong_is_not_hidden_by_the_defaults(problems_of: ProblemsOf) -> None:
    text = "[global.defaults]\nenv_vars = { A = 1, B = [] }\n" + in_environment("env_vars = { A = [], C = [] }")
    assert [(p.where, p.path) for p in problems_of(text)] == [
        ("f.toml:2", "global.defaults.env_vars.B"),
        ("f.toml:5", "environments[0].env_vars.A"),
        ("f.toml:5", "environments[0].env_vars.C"),
    ]


def test_the_first_of_three_has_the_id(problems_of: ProblemsOf) -> None:
    found = problems_of(3 * in_environment(""))
    assert [(p.where, p.hint) for p in found] == [
        ("f.toml:5", "environments[0] (line 1) has it already"),
        ("f.toml:8", "environments[0] (line 1) has it already"),
    ]


def test_the_error_reads_as_a_whole(tmp_path: Path) -> None:
    path = tmp_path / "f.toml"
    path.write_text(in_environment("num_env = 8"))
    with pytest.raises(ValueError, match="1 problem in the configuration") as caught:
        load_config(path)
    assert str(caught.value) == (
        f'1 problem in the configuration:\n  {path}:3: environments[0].num_env: unknown key (did you mean "count"?)'
    )


def test_no_text_of_pydantic_comes_through(problems_of: ProblemsOf) -> None:
    text = (
        "global = []\nbubblewrap = 3\nenvironments = [[], {}, { id = 1 }, 2, { id = 'a', command = [[]], env = {} }]\n"
    )
    found = problems_of(text)
    assert len(found) == 8
    for problem in found:
        assert problem.message.startswith("expected ")
        assert "Input should" not in str(problem)


DICTS: list[tuple[Any, str, str]] = [
    (
        {"environments": [{"id": "a", "memory_mb": "8"}]},
        "environments[0].memory_mb",
        'expected an integer >= 16, got "8" (a string)',
    ),
    (
        {"environments": [{"id": "a", "env_kwargs": {"f": {1, 2}}}]},
        "environments[0].env_kwargs.f",
        "expected a string, number, boolean, list or table, got an object of type builtins.set",
    ),
    (
        {"environments": [{"id": "a", "env_kwargs": {1: 2}}]},
        "environments[0].env_kwargs.1",
        "expected a key that is plain text, got 1 (an integer)",
    ),
    (
        {"environments": [{"id": "a", "env_vars": {"A": "\ud800"}}]},
        "environments[0].env_vars.A",
        "expected text that UTF-8 can carry, got a lone surrogate",
    ),
    ({"environments": [{"id": "a", 3: 2}]}, "environments[0].3", "expected a key that is a string, got 3 (an integer)"),
    ({3: 2, "environments": [{"id": "a"}]}, "3", "expected a key that is a string, got 3 (an integer)"),
    ({"environments": {"id": "a"}}, "environments", "expected an array of tables, got one table"),
    ({"environments": [None]}, "environments[0]", "expected a table, got nothing"),
]


@pytest.mark.parametrize(("source", "path", "message"), DICTS)
def test_in_a_dict(source: Any, path: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(source)
    assert [(p.where, p.path, p.message) for p in caught.value.problems] == [("dict", path, message)]


def test_a_source_of_another_kind() -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(3)  # type: ignore[arg-type]  # wrong on purpose
    [problem] = caught.value.problems
    assert problem.message == "expected a path, a mapping or a Config, got 3 (an integer)"


def test_in_keywords() -> None:
    with pytest.raises(ConfigError) as caught:
        config_from_keywords("x y", memory_mb="8", num_envs=3, runtme="auto", log_level="loud", zzz=1, timeout_s=3)
    found = {p.path: (p.message, p.hint) for p in caught.value.problems}
    assert {p.where for p in caught.value.problems} == {"keyword argument"}
    assert found.pop("zzz")[1].startswith("valid keywords: id, count, env, ")
    assert found == {
        "env": (ENV + 'got "x y"', ENV_HINT),
        "memory_mb": ('expected an integer >= 16, got "8" (a string)', QUOTES),
        "log_level": (LEVELS + 'got "loud"', ""),
        "timeout_s": (
            "expected timeout_s only together with command",
            "an environment has start_timeout_s, reset_timeout_s and step_timeout_s",
        ),
        "num_envs": ("unknown keyword", "for several environments: AgentVectorEnv.from_env(env, num_envs=N)"),
        "runtme": ("unknown keyword", 'did you mean "runtime"?'),
    }
