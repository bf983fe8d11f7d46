"""That an episode was cut is told exactly once, by the first answer that can, whatever was asked when it died."""

from __future__ import annotations

import os
import signal
from typing import Any

import numpy as np
import pytest

from agentenv import AgentENV, AgentVectorEnv
from agentenv.fleet.pacing import Pacing
from agentenv.testing.leftovers import becomes_true
from agentenv.wire.slot import Op

_NOTHING = np.zeros(2, np.int64)


def _open(**keys: Any) -> AgentVectorEnv:
    return AgentVectorEnv.from_env(
        "frail:Walk", num_envs=2, seed=1, on_crash="truncate", autoreset_mode="Disabled", **keys
    )


def _kill(vec: AgentVectorEnv, number: int) -> None:
    sandbox: Any = vec.sandboxes[number]
    os.kill(sandbox._worker.pid, signal.SIGKILL)
    assert becomes_true(lambda: not sandbox.alive(), 10)


def _open_and_owing() -> AgentVectorEnv:
    """The first has died over the pace, and nobody was told."""
    vec = _open()
    vec.reset(seed=3)
    _kill(vec, 0)
    vec._fleet.set_pace(Pacing().pace, 10)
    return vec


def _restart(vec: AgentVectorEnv, number: int) -> None:
    """Have the one whose episode was cut begin again; the others go on."""
    vec.reset(options={"reset_mask": np.arange(2) == number})


def test_a_death_over_the_pace_is_told_by_the_step_that_follows() -> None:
    vec = _open()
    vec.reset(seed=3)
    vec.step(_NOTHING)
    vec._pacing, vec._pace_due = Pacing(), True
    _kill(vec, 0)
    truncated, infos = vec.step(_NOTHING)[3:]
    assert truncated.tolist() == [True, False]
    assert "on_crash is truncate" in infos["agentenv"]["truncated"][0]
    _restart(vec, 0)
    assert vec.step(_NOTHING)[3].tolist() == [False, False]
    vec.close()


def test_two_deaths_in_two_steps_are_two_truncations() -> None:
    vec = _open()
    vec.reset(seed=3)
    for number in (1, 0):
        _kill(vec, number)
        assert vec.step(_NOTHING)[3].tolist() == [number == 0, number == 1]
        _restart(vec, number)
    vec.close()


@pytest.mark.parametrize("how", ["spares", "by_checkpoint"])
def test_a_reset_of_the_other_one_does_not_take_the_telling_away(how: str) -> None:
    """In one sandbox with it, and in another where the death was noticed before the reset."""
    vec = _open(envs_per_sandbox=2 if how == "spares" else 1, checkpoint_every="auto")
    vec.reset(seed=3)
    vec.step(_NOTHING)
    if how == "by_checkpoint":
        vec = _renewed(vec)
    _kill(vec, 0)
    _restart(vec, 1 if how == "by_checkpoint" else 0)
    expected = [True, False] if how == "by_checkpoint" else [False, True]
    truncated, infos = vec.step(_NOTHING)[3:]
    assert truncated.tolist() == expected
    assert infos["_agentenv"].tolist() == expected
    _restart(vec, expected.index(True))
    assert vec.step(_NOTHING)[3].tolist() == [False, False]
    vec.close()


def _renewed(vec: AgentVectorEnv) -> AgentVectorEnv:
    """One that saves states, is due to, and can go back to none of them: what it does cannot be repeated."""
    vec.close()
    keys: dict[str, Any] = {"num_envs": 2, "seed": 1, "autoreset_mode": "Disabled", "checkpoint_every": 1000}
    vec = AgentVectorEnv.from_env("frail:Erratic", **keys)
    vec.reset(seed=3)
    for _ in range(3):
        vec.step(_NOTHING)
    vec._fleet.recovery.bases.due = True
    return vec


def test_it_is_told_of_the_second_death_of_one_that_was_told_of_by_nobody() -> None:
    vec = _open_and_owing()
    fleet = vec._fleet
    assert list(fleet.recovery.owed) == [0]
    _kill(vec, 0)
    assert vec.step(_NOTHING)[3].tolist() == [True, False]
    assert fleet.recovery.owed == {}
    vec.close()


def test_what_was_asked_for_by_name_concerns_only_whom_it_was_asked_of() -> None:
    vec = _open_and_owing()
    fleet = vec._fleet
    assert fleet.call(Op.CALL, ["length", [], {}], [1], 10) == [37]
    assert vec.step(_NOTHING)[3].tolist() == [True, False]
    vec.close()


@pytest.mark.parametrize("mode", ["NextStep", "SameStep", "Disabled"])
def test_a_cut_episode_ends_with_the_last_observation_known_of_it(mode: str) -> None:
    """What a trainer takes the value of."""
    vec = AgentVectorEnv.from_env("frail:Walk", num_envs=2, seed=1, on_crash="truncate", autoreset_mode=mode)
    vec.reset(seed=3)
    before = vec.step(_NOTHING)[0]
    _kill(vec, 0)
    observations, rewards, _, truncated, infos = vec.step(_NOTHING)
    assert (truncated.tolist(), rewards[0]) == ([True, False], 0.0)
    shown = infos["final_obs"][0] if mode == "SameStep" else observations[0]
    assert shown.tolist() == before[0].tolist()
    assert observations[1].tolist() != before[1].tolist()
    if mode == "SameStep":
        assert observations[0].tolist() != before[0].tolist()
    vec.close()
    with AgentENV.from_env("frail:Walk", seed=1, on_crash="truncate") as env:
        before = env.reset(seed=3)[0]
        single: Any = env._fleet.sandboxes[0]
        os.kill(single._worker.pid, signal.SIGKILL)
        observation, *_, truncated, _ = env.step(0)
        assert (observation.tolist(), truncated) == (before.tolist(), True)
