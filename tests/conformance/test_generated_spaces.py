"""Every kind of space that hypothesis can think of, as observation and as action, in every autoreset mode."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gymnasium import Space, spaces
from hypothesis import HealthCheck, example, given, settings

from agentenv.testing import check_parity, check_single_parity
from agentenv.testing.samples import SAMPLED
from agentenv.testing.spaces import any_space
from agentenv.wire.spaces import describe

# One example starts a runtime, so they are few; the codecs' own property tests make thousands.
FEW = settings(max_examples=8, suppress_health_check=list(HealthCheck))

ZERO_D = spaces.Box(-1, 1, (), np.float16)
EMPTY = spaces.Box(0, 255, (0, 3), np.uint8)
BOOLS = spaces.Box(0, 1, (2,), np.bool_)
EVERYTHING = spaces.Dict(
    {
        "zero": ZERO_D,
        "empty": EMPTY,
        "bools": BOOLS,
        "discrete": spaces.Discrete(5, start=-2),
        "binary": spaces.MultiBinary((2, 2)),
        "multi": spaces.MultiDiscrete([3, 4], start=[1, 2]),
        "text": spaces.Text(5),
        "parts": spaces.Tuple([spaces.Sequence(spaces.Discrete(3)), spaces.OneOf([ZERO_D, spaces.Text(3)])]),
        "stacked": spaces.Sequence(spaces.Box(-1, 1, (2,)), stack=True),
        "graph": spaces.Graph(spaces.Box(-1, 1, (2,)), spaces.Discrete(4)),
    }
)


def _arguments(observation: Space[Any], action: Space[Any]) -> dict[str, Any]:
    return {"observation": describe(observation), "action": describe(action), "length": 3}


@pytest.mark.parametrize("mode", ["NextStep", "SameStep", "Disabled"])
@given(observation=any_space(), action=any_space())
@example(observation=EVERYTHING, action=EVERYTHING)
@example(observation=ZERO_D, action=ZERO_D)
@example(observation=EMPTY, action=BOOLS)
@example(observation=spaces.Text(4), action=spaces.Discrete(3, start=7))
@FEW
def test_a_vector_equals_sync_vector_env(mode: str, observation: Space[Any], action: Space[Any]) -> None:
    parity = check_parity(
        SAMPLED,
        env_kwargs=_arguments(observation, action),
        autoreset_mode=mode,
        num_envs=2,
        envs_per_sandbox=2 if mode == "Disabled" else 1,
        steps=14,
        runtime="process",
    )
    assert parity.episodes >= 4


@given(observation=any_space(), action=any_space())
@example(observation=EVERYTHING, action=EVERYTHING)
@example(observation=ZERO_D, action=EMPTY)
@FEW
def test_a_single_environment_equals_the_bare_one(observation: Space[Any], action: Space[Any]) -> None:
    assert check_single_parity(SAMPLED, env_kwargs=_arguments(observation, action), steps=9).episodes == 3
