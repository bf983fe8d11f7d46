"""What an environment that fails looks like from outside."""

from __future__ import annotations

import os
import signal
from typing import Any

import pytest

from agentenv import AgentENV, AgentVectorEnv, EnvError, SandboxDied, StepTimeout
from agentenv.errors import CauseKind
from agentenv.testing.leftovers import becomes_true


def test_an_exception_arrives_whole_and_the_environment_goes_on() -> None:
    with AgentENV.from_env("envs.samples:Fragile", id="fragile-one") as env:
        env.reset()
        with pytest.raises(EnvError) as caught:
            env.step(1)
        error = caught.value
        assert (error.type_name, error.message, error.env_id) == ("KeyError", "'no such thing'", "fragile-one")
        assert "envs/samples.py" in error.traceback_text
        assert "raise KeyError" in error.traceback_text
        assert "about to raise" in error.output
        assert error.cause.kind is CauseKind.EXCEPTION
        for part in ("fragile-one", "KeyError", "raise KeyError", "about to raise"):
            assert part in str(error)
        assert env.step(0)[0].tolist() == [1, 1]


def test_an_info_that_would_take_too_much_memory_is_the_environments_error_and_says_what_helps() -> None:
    with AgentENV.from_env("envs.samples:Heavy", max_message_mb=1) as env:
        env.reset()
        with pytest.raises(EnvError, match=r"may take 7. MB of memory.*at most 67 MB.*numpy arrays.*max_message_mb"):
            env.step(0)
        assert env.reset()[0].tolist() == [0, 0]
    with AgentENV.from_env("envs.samples:Heavy", max_message_mb=2) as env:
        env.reset()
        with pytest.raises(EnvError, match="may take"):
            env.step(0)
    with AgentENV.from_env("envs.samples:Heavy") as env:
        env.reset()
        assert env.step(0)[4] == {"parts": [{}] * 345_000}


def test_a_last_info_that_would_take_too_much_memory_is_an_error_as_well() -> None:
    keys: dict[str, Any] = {"env_kwargs": {"last": True}, "max_message_mb": 2, "autoreset_mode": "SameStep"}
    vec = AgentVectorEnv.from_env("envs.samples:Heavy", num_envs=1, **keys)
    vec.reset()
    vec.step([0])
    with pytest.raises(EnvError, match="may take"):
        vec.step([0])
    vec.close()


def test_an_exception_of_the_constructor_arrives_as_well() -> None:
    with pytest.raises(EnvError, match="no assets") as caught:
        AgentENV.from_env("envs.samples:Broken")
    assert (caught.value.type_name, caught.value.cause.kind) == ("RuntimeError", CauseKind.START_FAILED)
    assert "while building" in caught.value.output


def test_a_death_is_typed_and_the_next_reset_starts_anew() -> None:
    with AgentENV.from_env("envs.samples:Fragile", on_crash="raise") as env:
        env.reset()
        env.step(0)
        with pytest.raises(SandboxDied, match="status 7") as caught:
            env.step(2)
        assert isinstance(caught.value, ConnectionError)
        assert "about to go" in caught.value.output
        with pytest.raises(SandboxDied):
            env.step(0)
        assert env.reset(seed=1)[0].tolist() == [0, 0]
        assert env.step(0)[0].tolist() == [1, 1]


@pytest.mark.parametrize(("action", "how"), [(1, "blocked"), (2, "busy")])
def test_a_step_that_never_returns_is_ended(action: int, how: str) -> None:
    with AgentENV.from_env("envs.samples:Slow", step_timeout_s=0.5, on_crash="raise") as env:
        env.reset()
        with pytest.raises(StepTimeout, match=how) as caught:
            env.step(action)
        assert isinstance(caught.value, TimeoutError)
        env.reset()
        assert env.step(0)[0].tolist() == [1, 1]


def test_a_kill_between_two_steps_is_noticed_by_the_next() -> None:
    with AgentENV.from_env("envs.samples:Counter", on_crash="raise") as env:
        env.reset()
        os.kill(env._fleet.sandboxes[0].pid, signal.SIGKILL)
        assert becomes_true(lambda: bool(env._fleet.dead()), 10)
        with pytest.raises(SandboxDied):
            env.step(0)


def test_an_environment_may_start_processes_and_threads() -> None:
    with AgentENV.from_env("envs.samples:Parent", memory_mb=512) as env:
        env.reset()
        for _ in range(2):
            assert env.step(0)[1] == 42 + 6 + 5
