"""Infos of every type, in different environments and steps, arrive as ``SyncVectorEnv`` collects them."""

from __future__ import annotations

import pytest

from agentenv.testing import check_parity, check_single_parity

MODES = ("NextStep", "SameStep", "Disabled")
PECULIAR = ("Informer", "ReusedBuffers", "Strict")


# SyncVectorEnv keeps a reference to a reused buffer, which the reset in the same step overwrites: no reference there.
CASES = [(name, mode) for name in PECULIAR for mode in MODES if (name, mode) != ("ReusedBuffers", "SameStep")]


@pytest.mark.parametrize("per_sandbox", [1, 3])
@pytest.mark.parametrize(("name", "mode"), CASES)
def test_differences_between_environments_are_kept(name: str, per_sandbox: int, mode: str) -> None:
    parity = check_parity(
        f"envs.samples:{name}",
        autoreset_mode=mode,
        steps=25,
        envs_per_sandbox=per_sandbox,
        max_episode_steps=5,
        runtime="process" if per_sandbox == 3 else "auto",
    )
    assert parity.episodes >= 9


@pytest.mark.parametrize("name", PECULIAR)
def test_a_single_environment_has_the_same_infos(name: str) -> None:
    assert check_single_parity(f"envs.samples:{name}", steps=20, max_episode_steps=5).episodes >= 4
