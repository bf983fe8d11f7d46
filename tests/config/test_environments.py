"""What becomes of an environment's table: its defaults, its variables, its copies."""

from __future__ import annotations

from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest

from agentenv.config import Config, config_from_keywords, load_config


def load_text(text: str, tmp_path: Path) -> Config:
    path = tmp_path / "run.toml"
    path.write_text(text)
    return load_config(path)


def environment(**keys: Any) -> dict[str, Any]:
    return {"id": "a", **keys}


def test_what_an_environment_is_when_nothing_is_said() -> None:
    [only] = load_config({"environments": [environment()]}).environments
    assert only.model_dump() == {
        "id": "a",
        "count": 1,
        "env": None,
        "env_kwargs": {},
        "wrappers": (),
        "command": None,
        "policy": "random",
        "episodes": 1,
        "max_episode_steps": None,
        "seed": None,
        "env_vars": {},
        "memory_mb": 512,
        "vcpu_count": 1.0,
        "pids": 128,
        "disk_mb": 64,
        "network": "none",
        "network_mbps": None,
        "start_timeout_s": 60.0,
        "reset_timeout_s": 120.0,
        "step_timeout_s": 60.0,
        "on_crash": "recover",
        "checkpoint_every": "auto",
        "restart": "on-failure",
        "max_restarts": 10,
        "restart_window_s": 600.0,
        "restart_backoff_s": 0.5,
        "on_quarantine": "truncate",
        "timeout_s": None,
        "invalid_action": "error",
        "render_mode": None,
        "trace_mb": 64,
        "max_message_mb": 64,
        "kernel_image": None,
        "rootfs_image": None,
    }


def test_defaults_stand_under_every_environment(tmp_path: Path) -> None:
    config = load_text(
        """
        [global.defaults]
        memory_mb = 64
        env = "CartPole-v1"
        timeout_s = 9
        env_vars = { A = 1, B = 2 }
        env_kwargs = { size = 3, deep = { x = 1 } }
        wrappers = ["a:B"]
        [[environments]]
        id = "as-default"
        [[environments]]
        id = "own"
        memory_mb = 128
        env_vars = { B = true, C = 0.5 }
        env_kwargs.deep = { y = 2 }
        wrappers = []
        [[environments]]
        id = "program"
        command = ["true"]
        """,
        tmp_path,
    )
    as_default, own, program = config.environments
    assert (as_default.memory_mb, as_default.env, as_default.env_vars) == (64, "CartPole-v1", {"A": "1", "B": "2"})
    assert as_default.timeout_s is None
    assert own.memory_mb == 128
    assert own.env_vars == {"A": "1", "B": "true", "C": "0.5"}
    assert own.env_kwargs == {"size": 3, "deep": {"y": 2}}
    assert own.wrappers == ()
    assert program.command == ("true",)
    assert (program.env, program.env_kwargs, program.wrappers) == (None, {}, ())
    assert program.timeout_s == 9.0


def test_a_default_command_gives_way_to_an_env(tmp_path: Path) -> None:
    text = (
        '[global.defaults]\ncommand = ["true"]\n[[environments]]\nid = "a"\n[[environments]]\nid = "b"\nenv = "X-v0"\n'
    )
    program, played = load_text(text, tmp_path).environments
    assert program.command == ("true",)
    assert (played.command, played.env) == (None, "X-v0")


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ("a", "a"),
        (3, "3"),
        (-0.5, "-0.5"),
        (1e300, "1e+300"),
        (True, "true"),
        (False, "false"),
        ("", ""),
        ("None", "None"),
        (np.float32(0.5), "0.5"),
    ],
)
def test_variables_become_strings(given: Any, kept: str) -> None:
    [only] = load_config({"environments": [environment(env_vars={"A": given})]}).environments
    assert only.env_vars == {"A": kept}


def test_none_omits_a_variable_also_one_of_the_defaults() -> None:
    table = {
        "global": {"defaults": {"env_vars": {"A": "1", "B": "2"}}},
        "environments": [environment(env_vars={"A": None, "C": None})],
    }
    assert load_config(table).environments[0].env_vars == {"B": "2"}


def test_none_in_keyword_arguments_has_a_spelling_in_toml(tmp_path: Path) -> None:
    text = (
        '[[environments]]\nid = "a"\nenv_kwargs = { desc = "@none", maps = ["@none", "x"], deep = { v = "@none" } }\n'
    )
    expected = {"desc": None, "maps": [None, "x"], "deep": {"v": None}}
    assert load_text(text, tmp_path).environments[0].env_kwargs == expected
    kept = {"desc": None, "maps": (None, "x"), "deep": MappingProxyType({"v": None})}
    assert config_from_keywords("X-v0", env_kwargs=kept).environments[0].env_kwargs == expected


def test_none_elsewhere_means_not_given() -> None:
    table = {
        "global": {"seed": None, "runtime": None, "defaults": {"memory_mb": None}},
        "environments": [environment(memory_mb=None, env=None, env_vars=None, wrappers=None)],
        "bubblewrap": None,
    }
    assert load_config(table) == load_config({"environments": [environment()]})


def test_wrappers_are_strings_or_tables(tmp_path: Path) -> None:
    text = '[[environments]]\nid = "a"\nwrappers = ["a.b:C", { wrapper = "d:E.f", kwargs = { x = 1 } }]\n'
    wrappers = load_text(text, tmp_path).environments[0].wrappers
    assert [(w.wrapper, w.kwargs) for w in wrappers] == [("a.b:C", {}), ("d:E.f", {"x": 1})]


@pytest.mark.parametrize(
    "name",
    [
        "CartPole-v1",
        "CartPole",
        "ALE/Breakout-v5",
        "ale_py:ALE/Breakout-v5",
        "MiniGrid-Empty-5x5-v0",
        "a.b:C.d",
        "m:make",
    ],
)
def test_names_of_environments(name: str) -> None:
    assert load_config({"environments": [environment(env=name)]}).environments[0].env == name


def test_copies_have_ids_and_seeds_of_their_own() -> None:
    table = {"environments": [environment(count=3, seed=7), {"id": "b"}, {"id": "c", "count": 2}]}
    copies = load_config(table).expand()
    assert [(copy.id, copy.count, copy.seed) for copy in copies] == [
        ("a-0", 1, 7),
        ("a-1", 1, 8),
        ("a-2", 1, 9),
        ("b", 1, None),
        ("c-0", 1, None),
        ("c-1", 1, None),
    ]
