"""Which module registers an id, by its first or last characters."""

from __future__ import annotations

import pytest

from agentenv.fleet.known import registrar


@pytest.mark.parametrize(
    ("env_id", "module"),
    [
        ("ALE/NoSuchGame-v5", "ale_py"),
        ("NoSuchGameNoFrameskip-v4", "ale_py"),
        ("NoSuchGameDeterministic-v0", "ale_py"),
        ("NoSuchGame-ram-v4", "ale_py"),
        ("NoSuchGame-ramDeterministic-v4", "ale_py"),
        ("MiniGrid-NoSuch-v0", "minigrid"),
        ("CartPole-v1", None),
        ("Mine-v4", None),
        ("NoFrameskip-v4", None),
        ("my/NoSuchGameNoFrameskip-v4", None),
    ],
)
def test_registrar(env_id: str, module: str | None) -> None:
    assert registrar(env_id) == module
