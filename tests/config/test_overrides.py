from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from agentenv.config import Config, load_config
from agentenv.errors import ConfigError, Problem

TABLE: dict[str, Any] = {
    "global": {"seed": 1},
    "environments": [
        {"id": "agent_1", "env_vars": {"A": "1"}, "env_kwargs": {"sizes": [1, 2]}},
        {"id": "b.c", "count": 2},
        {"id": "b", "seed": 5},
    ],
}

RUNTIMES = 'expected one of "auto", "bubblewrap", "process", "firecracker", "qemu", '


def get(config: Config, path: str) -> Any:
    return eval("config." + path, {"config": config})


@pytest.mark.parametrize(
    ("override", "path", "value"),
    [
        ("global.seed=3", "global_.seed", 3),
        ("global.seed = 3", "global_.seed", 3),
        ("global.seed=null", "global_.seed", None),
        ("global.runtime=process", "global_.runtime", "process"),
        ('global.runtime="process"', "global_.runtime", "process"),
        ("bubblewrap.nested=never", "bubblewrap.nested", "never"),
        ("environments.agent_1.memory_mb=64", "environments[0].memory_mb", 64),
        ("environments.'agent_1'.memory_mb=64", "environments[0].memory_mb", 64),
        ("environments[0].count=5", "environments[0].count", 5),
        ("environments.b.c.count=5", "environments[1].count", 5),
        ('environments."b.c".count=5', "environments[1].count", 5),
        ("environments.b.count=5", "environments[2].count", 5),
        ("environments.b.network=true", "environments[2].network", "internet"),
        ("environments.b.vcpu_count=0.5", "environments[2].vcpu_count", 0.5),
        ("environments.b.env=CartPole-v1", "environments[2].env", "CartPole-v1"),
        ("environments.b.env=module:make", "environments[2].env", "module:make"),
        ('environments.b.command=["a", "b"]', "environments[2].command", ("a", "b")),
        ("environments.agent_1.env_vars.B=2", "environments[0].env_vars", {"A": "1", "B": "2"}),
        ("environments.agent_1.env_vars.A=null", "environments[0].env_vars", {}),
        ("environments.agent_1.env_vars={ C = 3 }", "environments[0].env_vars", {"C": "3"}),
        ("environments.b.env_kwargs.x.y=[1]", "environments[2].env_kwargs", {"x": {"y": [1]}}),
        ("environments.agent_1.env_kwargs.sizes[1]=7", "environments[0].env_kwargs", {"sizes": [1, 7]}),
        ("global.defaults.memory_mb=99", "environments[2].memory_mb", 99),
        ("environments.b.render_mode=ansi", "environments[2].render_mode", "ansi"),
    ],
)
def test_one_key_changes(override: str, path: str, value: Any) -> None:
    changed, before = load_config(TABLE, overrides=[override]), load_config(TABLE)
    assert get(changed, path) == value
    assert get(before, path) != value


def test_the_last_one_wins_and_all_are_applied() -> None:
    config = load_config(TABLE, overrides=["global.seed=3", "global.seed=4", "environments.b.seed=6"])
    assert config.global_.seed == 4
    assert config.environments[2].seed == 6


def test_a_line_break_in_a_value_sets_no_second_key() -> None:
    with pytest.raises(ConfigError, match=r"--set: global\.seed: expected an integer >= 0, got"):
        load_config(TABLE, overrides=["global.seed=3\nlog_level = 'debug'"])


def test_an_override_of_a_config_keeps_where_it_came_from(tmp_path: Path) -> None:
    path = tmp_path / "c.toml"
    path.write_text('[[environments]]\nid = "a"\n')
    config = load_config(load_config(path), overrides=["environments.a.count=2"])
    assert (config.base_dir, config.source, config.environments[0].count) == (tmp_path, str(path), 2)


@pytest.mark.parametrize(
    ("override", "path", "message", "hint"),
    [
        ("nonsense", "nonsense", "expected path=value, got no =", "such as global.seed=3"),
        ("global.sed=1", "global.sed", "unknown key", 'did you mean "seed"?'),
        ("globl.seed=1", "globl", "unknown key", "did you mean [global]?"),
        # The value is everything after the first "=", and nothing is an empty string.
        ("global.runtime=x=y", "global.runtime", RUNTIMES + 'got "x=y"', ""),
        (
            "environments.b.kernel_image=",
            "environments[2].kernel_image",
            "expected a non-empty string, got an empty one",
            "",
        ),
        ("global.seed=-1", "global.seed", "expected an integer >= 0, got -1", ""),
        ("global.seed=x", "global.seed", 'expected an integer >= 0, got "x" (a string)', ""),
        (
            "environments.agent1.count=2",
            "environments.agent1.count",
            'expected the id of an environment, got "agent1"',
            'did you mean "agent_1"?',
        ),
        (
            "environments.zzz.count=2",
            "environments.zzz.count",
            'expected the id of an environment, got "zzz"',
            "ids in the file: agent_1, b.c, b",
        ),
        ("environments[3].count=2", "environments[3]", "expected an index from 0 to 2, got 3", ""),
        ("environments[3]=2", "environments[3]", "expected an index from 0 to 2, got 3", ""),
        ("global[0].seed=2", "global[0]", "expected a list at global, got a table", ""),
        ("global.seed.x=2", "global.seed.x", "expected a table at global.seed, got an integer", ""),
        ("global.seed.x.y=2", "global.seed.x", "expected a table at global.seed, got an integer", ""),
        ("environments.agent_1=3", "environments[0]", "expected a table, got 3 (an integer)", ""),
        (
            "environments.agent_1.id=b",
            "environments[2].id",
            'expected an id of its own, got "b" a second time',
            "environments[0] has it already",
        ),
        *[
            (
                override,
                path,
                "expected a dotted path",
                "such as global.seed, environments.agent_1.memory_mb or environments[0].count",
            )
            for override, path in [
                ("=1", '""'),
                ("a..b=1", "a..b"),
                (".a=1", ".a"),
                ("a.=1", "a."),
                ("a b=1", "a b"),
                ("[0].x=1", "[0].x"),
                ("a[x]=1", "a[x]"),
                ('a"b"=1', 'a"b"'),
            ]
        ],
    ],
)
def test_an_override_that_leads_nowhere(override: str, path: str, message: str, hint: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(TABLE, overrides=[override])
    # Of the two environments with one id, the one in the file is at fault as much as the one that was set.
    where = "dict" if "a second time" in message else "--set"
    assert caught.value.problems == (Problem(where, path, message, hint),)


def test_what_is_set_replaces_the_line_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "c.toml"
    path.write_text('[[environments]]\nid = "a"\nmemory_mb = 1\npids = 1\nenv_vars = { "A-B" = 1 }\n')
    overrides = ["environments.a.memory_mb=2", "environments.a.env_vars={ 1C = 1 }"]
    with pytest.raises(ConfigError) as caught:
        load_config(path, overrides=overrides)
    assert [(p.where, p.path) for p in caught.value.problems] == [
        (f"{path}:4", "environments[0].pids"),
        ("--set", "environments[0].env_vars.1C"),
        ("--set", "environments[0].memory_mb"),
    ]


def test_defaults_of_a_config_are_merged_already() -> None:
    config = load_config({"environments": [{"id": "a"}]})
    with pytest.raises(ConfigError, match="merged already"):
        load_config(config, overrides=["global.defaults.memory_mb=64"])
