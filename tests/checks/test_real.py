"""No false alarm: nothing fails in the environments of the parity suite, and what is warned of is known and true."""

from __future__ import annotations

from typing import Any

import pytest

from agentenv.checks.choose import choose
from agentenv.checks.examine import examine
from agentenv.checks.rows import Verdict
from agentenv.config import load_config

# name -> steps, other keys of the configuration, and the rows that may warn, with the reason
ENVIRONMENTS: dict[str, tuple[int, dict[str, Any], dict[str, str]]] = {
    "CartPole-v1": (2500, {}, {}),
    "Pendulum-v1": (2500, {}, {}),
    "Taxi-v4": (2500, {}, {}),
    "Blackjack-v1": (2500, {}, {}),
    "HalfCheetah-v5": (2500, {}, {"action_range": "its control cost is that of the action as it came"}),
    "ALE/Breakout-v5": (1000, {}, {"action_range": "-1 is the last action, as in any Python list"}),
    "MiniGrid-Empty-5x5-v0": (2500, {}, {}),
    "highway-fast-v0": (500, {"wrappers": ["envs.samples:WithoutDrawnAction"]}, {}),
    "agentenv/GridWorld-v0": (2500, {"env_kwargs": {"slip": 0.3, "walls": 4}}, {}),
}


@pytest.mark.timeout(240)
@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_a_real_environment_does_not_fail(name: str) -> None:
    steps, keys, known = ENVIRONMENTS[name]
    config = load_config({"global": {"seed": 3}, "environments": [{"id": "real", "env": name, **keys}]})
    examination = examine(config, choose(config, None).chosen[0], steps=steps, on_phase=lambda _text: None)
    rows = {row.name: row for row in examination.rows}
    assert {name: row.found for name, row in rows.items() if row.verdict is Verdict.FAIL} == {}
    assert {name for name, row in rows.items() if row.verdict is Verdict.WARN} == set(known)
    for needed in ("seed", "instances", "random", "numpy_random", "hash_seed", "clock", "reward", "memory", "state"):
        assert rows[needed].verdict is not Verdict.SKIP, rows[needed].found
