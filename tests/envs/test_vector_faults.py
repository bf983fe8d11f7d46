"""One environment of many fails; the others must not notice."""

from __future__ import annotations

import os
import signal
from typing import Any

import numpy as np
import pytest

from agentenv import AgentVectorEnv, EnvError, SandboxDied, StepTimeout
from agentenv.channel.shm import ShmChannel
from agentenv.errors import CauseKind
from agentenv.fleet.pacing import Pacing
from agentenv.testing.leftovers import becomes_true


@pytest.mark.parametrize("per_sandbox", [1, 2])
def test_an_exception_in_one_is_raised_after_all_have_answered(per_sandbox: int) -> None:
    vec = AgentVectorEnv.from_env("envs.samples:Fragile", num_envs=4, envs_per_sandbox=per_sandbox)
    vec.reset()
    with pytest.raises(EnvError, match="no such thing") as caught:
        vec.step(np.array([0, 1, 0, 0]))
    assert (caught.value.index, caught.value.env_id) == (1, "env-1")
    assert vec.step(np.zeros(4, np.int64))[0][:, 0].tolist() == [2, 1, 2, 2]
    vec.close()


def test_a_death_spares_the_siblings_and_a_reset_brings_it_back() -> None:
    vec = AgentVectorEnv.from_env("envs.samples:Fragile", num_envs=3, env_kwargs={"length": 99}, on_crash="raise")
    vec.reset(seed=1)
    pids = [sandbox.pid for sandbox in vec._fleet.sandboxes]
    with pytest.raises(SandboxDied, match="status 7") as caught:
        vec.step(np.array([0, 0, 2]))
    assert (caught.value.index, caught.value.cause.kind) == (2, CauseKind.EXIT)
    with pytest.raises(SandboxDied):
        vec.step(np.zeros(3, np.int64))
    observations, _ = vec.reset(options={"reset_mask": np.array([False, False, True])})
    assert observations[:, 0].tolist() == [1, 1, 0]
    assert [sandbox.pid for sandbox in vec._fleet.sandboxes][:2] == pids[:2]
    assert vec.step(np.zeros(3, np.int64))[0][:, 0].tolist() == [2, 2, 1]
    vec.close()


@pytest.mark.parametrize(
    ("seen_by", "keys"),
    [
        ("pace", {"on_crash": "raise"}),
        ("pace", {"max_restarts": 0, "on_quarantine": "raise"}),
        ("checkpoint", {"max_restarts": 0, "on_quarantine": "raise", "checkpoint_every": 100}),
    ],
)
def test_a_death_noticed_before_the_step_does_not_keep_the_siblings_from_it(
    seen_by: str, keys: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    vec = AgentVectorEnv.from_env("envs.samples:Counter", num_envs=3, env_kwargs={"length": 99}, **keys)
    vec.reset()
    vec.step(np.zeros(3, np.int64))
    os.kill(vec._fleet.sandboxes[1].pid, signal.SIGKILL)
    assert becomes_true(lambda: vec._fleet.dead() == [1], 10)
    if seen_by == "pace":
        vec._pacing, vec._pace_due = Pacing(), True
    else:
        vec._fleet.recovery.bases.due = True
    with pytest.raises(SandboxDied, match="killed") as caught:
        vec.step(np.zeros(3, np.int64))
    assert caught.value.index == 1
    assert caplog.text.count("env_crashed") == caplog.text.count("env_given_up") == 1
    observations, _ = vec.reset(options={"reset_mask": np.array([False, True, False])})
    assert observations[:, 0].tolist() == [2, 0, 2]
    assert vec.step(np.zeros(3, np.int64))[0][:, 0].tolist() == [3, 1, 3]
    vec.close()


def test_two_killed_at_once_are_both_brought_back() -> None:
    vec = AgentVectorEnv.from_env("envs.samples:Counter", num_envs=4, env_kwargs={"length": 99}, on_crash="raise")
    vec.reset()
    for index in (0, 3):
        os.kill(vec._fleet.sandboxes[index].pid, signal.SIGKILL)
    assert becomes_true(lambda: vec._fleet.dead() == [0, 3], 10)
    with pytest.raises(SandboxDied):
        vec.step(np.zeros(4, np.int64))
    vec.reset()
    assert vec.step(np.zeros(4, np.int64))[0][:, 0].tolist() == [1] * 4
    vec.close()


def test_a_late_reply_never_becomes_the_next_steps_answer() -> None:
    vec = AgentVectorEnv.from_env(
        "envs.samples:Slow", num_envs=3, env_kwargs={"length": 99}, step_timeout_s=0.4, on_crash="raise"
    )
    vec.reset()
    with pytest.raises(StepTimeout) as caught:
        vec.step(np.array([0, 1, 0]))
    assert caught.value.index == 1
    vec.reset(options={"reset_mask": np.array([False, True, False])})
    for number in range(1, 4):
        observations = vec.step(np.zeros(3, np.int64))[0]
        assert observations[:, 0].tolist() == [number + 1, number, number + 1]
    vec.close()


def test_close_is_bounded_while_one_hangs() -> None:
    vec = AgentVectorEnv.from_env("envs.samples:Slow", num_envs=2, step_timeout_s=0.3, on_crash="raise")
    vec.reset()
    with pytest.raises(StepTimeout):
        vec.step(np.array([1, 2]))
    sandboxes = vec._fleet.sandboxes
    vec.close()
    assert not any(sandbox.alive() for sandbox in sandboxes)


def test_a_constructor_that_fails_leaves_nothing() -> None:
    with pytest.raises(EnvError, match="no assets"):
        AgentVectorEnv.from_env("envs.samples:Broken", num_envs=3)


def test_whatever_is_refused_at_length_is_read_to_its_end() -> None:
    """What was left unread would be taken for the next answer, and its sender ended for it."""
    vec = AgentVectorEnv.from_env("frail:Stubborn", num_envs=2)
    vec.reset()
    with pytest.raises(EnvError, match="nonono") as caught:
        vec.set_attr("mood", "good")
    assert caught.value.index == 0
    infos = vec.step(np.zeros(2, np.int64))[4]
    assert [text[:4] for text in infos["large"]] == ["1 1 ", "1 1 "]
    assert vec._fleet.recovery.recovered == 0
    vec.close()


def test_who_is_found_dead_beside_an_error_is_brought_back_and_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    vec = AgentVectorEnv.from_env("envs.samples:Fragile", num_envs=2, env_kwargs={"length": 99})
    vec.reset(seed=1)
    payload = ShmChannel.payload

    def killing(channel: ShmChannel, index: int) -> bytes:
        os.kill(vec._fleet.sandboxes[1].pid, signal.SIGKILL)
        assert becomes_true(lambda: vec._fleet.dead() == [1], 10)
        return payload(channel, index)

    with monkeypatch.context() as patch:
        patch.setattr(ShmChannel, "payload", killing)
        with pytest.raises(EnvError, match="no such thing"):
            vec.step(np.array([1, 0]))
    assert vec.step(np.zeros(2, np.int64))[0][:, 0].tolist() == [1, 2]
    assert vec._fleet.recovery.recovered == 1
    vec.close()
