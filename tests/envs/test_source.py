"""A name in the place of a file, a file in the place of a name, and names that lead to no environment."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import gymnasium
import pytest

from agentenv import AgentENV, AgentVectorEnv, ConfigError, EnvError
from agentenv.envs.source import split_source


@pytest.mark.parametrize("face", [AgentENV, AgentVectorEnv])
def test_a_name_in_the_place_of_a_file(face, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r'AgentENV\.from_env\("CartPole-v1"\)'):
        face("CartPole-v1")
    with pytest.raises(ConfigError) as caught:
        face(str(tmp_path / "missing.toml"))
    assert "from_env" not in str(caught.value)
    (tmp_path / "config").write_text("[[environments]]\nid = 3\n")
    with pytest.raises(ConfigError, match="expected 1 to 63 letters"):
        face(str(tmp_path / "config"))


@pytest.mark.parametrize("face", [AgentENV, AgentVectorEnv])
def test_a_file_in_the_place_of_a_name(face) -> None:
    with pytest.raises(ConfigError, match=r'AgentENV\("config\.toml"\)'):
        face.from_env("config.toml")


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("envs.samples.Counter", 'env = "envs.samples:Counter"'),
        ("Nope-v4", 'env = "package:Nope-v4"'),
        ("no_such_module:Env", "no module 'no_such_module'"),
        ("CartPole-v77", "`v77`"),
    ],
)
def test_a_name_that_leads_to_no_environment(name: str, words: str) -> None:
    with pytest.raises(EnvError) as caught:
        AgentENV.from_env(name)
    text = str(caught.value)
    assert words in text
    assert text.count("EnvironmentNotFound") == 1
    assert "Traceback" not in text
    assert "Traceback" in caught.value.traceback_text


@pytest.mark.parametrize("word", ["num_envs", "n_envs"])
def test_the_number_of_environments_belongs_to_the_vector(word: str) -> None:
    with pytest.raises(ConfigError, match=r"AgentVectorEnv\.from_env\(env, num_envs=N\)"):
        AgentENV.from_env("CartPole-v1", **{word: 3})
    with pytest.raises(ConfigError, match=r"AgentVectorEnv\.from_env\(env, num_envs=3\)"):
        AgentENV.from_env("CartPole-v1", count=3)


@pytest.mark.parametrize(
    "wrapper",
    [
        gymnasium.wrappers.TransformReward,
        {"wrapper": gymnasium.wrappers.TransformReward},
        {"wrapper": "gymnasium.wrappers:TransformReward"},
    ],
)
def test_a_wrapper_may_be_an_importable_class(wrapper: Any) -> None:
    config, _ = split_source({"env": "CartPole-v1", "wrappers": [wrapper]}, None)
    (found,) = config.environments[0].wrappers
    assert found.wrapper.endswith(":TransformReward")


@pytest.mark.parametrize("wrapper", [lambda env: env, functools.partial(int), {"wrapper": lambda env: env}])
def test_a_wrapper_that_cannot_be_imported_inside_is_refused_with_what_to_write(wrapper: Any) -> None:
    with pytest.raises(ConfigError, match=r"wrappers\[0\].*move it to a module and pass"):
        AgentENV.from_env("CartPole-v1", wrappers=[wrapper])
