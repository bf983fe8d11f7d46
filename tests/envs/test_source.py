"""A name in the place of a file, a file in the place of a name, and names that lead to no environment."""

from __future__ import annotations

from pathlib import Path

import pytest

from agentenv import AgentENV, AgentVectorEnv, ConfigError, EnvError


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
