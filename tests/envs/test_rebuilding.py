"""To put a new process in place of a dead one goes wrong: that is its own failure, and nobody waits for it for ever."""

from __future__ import annotations

import errno
import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from agentenv import AgentENV, AgentVectorEnv, SandboxDied, SnapshotError
from agentenv.channel import shm
from agentenv.errors import CauseKind, Owner, ResourceLimit
from agentenv.fleet.crew import Crew
from agentenv.testing.leftovers import becomes_true, descendants

pytestmark = pytest.mark.timeout(60)
ONCE: dict[str, Any] = {"max_restarts": 1, "restart_backoff_s": 0.0}


@pytest.fixture
def grown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Once this file exists, ``grows:Grows`` is built with a larger observation."""
    (tmp_path / "grows.py").write_text(
        "import os, numpy as np\n"
        "from gymnasium import spaces\n"
        "from envs.samples import Counter\n"
        "class Grows(Counter):\n"
        "    def __init__(self, grows=True, **kwargs):\n"
        "        super().__init__(length=99, **kwargs)\n"
        "        if grows and os.path.exists(os.path.join(os.path.dirname(__file__), 'grown')):\n"
        "            self.observation_space = spaces.Box(0, 1, (7,), np.float64)\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path / "grown"


def two(env: str, **keys: Any) -> AgentVectorEnv:
    vec = AgentVectorEnv.from_env(env, num_envs=2, seed=1, **keys)
    vec.reset()
    vec.step(np.zeros(2, np.int64))
    return vec


def one_grows(place: int, **keys: Any) -> AgentVectorEnv:
    tables = [{"id": f"e{index}", "env": "grows:Grows", "env_kwargs": {"grows": index == place}} for index in (0, 1)]
    vec = AgentVectorEnv({"environments": [table | keys for table in tables]})
    vec.reset()
    vec.step(np.zeros(2, np.int64))
    return vec


def kill(env: Any, *numbers: int) -> None:
    for number in numbers:
        os.kill(env._fleet.sandboxes[number].pid, signal.SIGKILL)
    assert becomes_true(lambda: all(not env._fleet.sandboxes[number].alive() for number in numbers), 10)


def refuse_once(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """The next memory or bell cannot be made for want of descriptors."""
    owner: Any = shm.Bell if name == "create" else shm
    real = getattr(owner, name)

    def refuse(*_: Any) -> Any:
        monkeypatch.setattr(owner, name, real)
        raise ResourceLimit(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(owner, name, refuse)


@pytest.mark.parametrize("place", [0, 1])
def test_who_comes_back_with_other_spaces_is_out_and_the_other_goes_on(grown: Path, place: int) -> None:
    vec = one_grows(place, **ONCE)
    grown.touch()
    kill(vec, 0, 1)
    observations, _, _, truncated, infos = vec.step(np.zeros(2, np.int64))
    assert truncated.tolist() == [place == 0, place == 1]
    assert "another observation_space than before" in infos["agentenv"]["reason"][place]
    assert observations[1 - place].tolist() == [2, 2]
    assert vec.step(np.zeros(2, np.int64))[0][1 - place].tolist() == [3, 3]
    vec.close()
    assert becomes_true(lambda: descendants() == [], 10)


def test_who_comes_back_with_other_spaces_has_died_of_its_own(grown: Path) -> None:
    with AgentENV.from_env("grows:Grows", **ONCE) as env:
        env.reset()
        env.step(0)
        grown.touch()
        kill(env, 0)
        for ask in (env.step, lambda _: env.reset(), env.step):
            with pytest.raises(SandboxDied, match="another observation_space than before") as caught:
                ask(0)
            assert (caught.value.cause.kind, caught.value.cause.owner) == (CauseKind.PROTOCOL, Owner.ENVIRONMENT)
            assert caught.value.env_id == "env"
        grown.unlink()
        env.reset()
        assert env.step(0)[0].tolist() == [1, 1]


def test_spaces_that_differ_from_the_start_are_told_as_before(grown: Path) -> None:
    grown.touch()
    with pytest.raises(ValueError, match="'e0' and 'e1' cannot be stepped together: their observation_spaces differ"):
        one_grows(1)


@pytest.mark.parametrize("first", [True, False])
def test_an_interruption_while_two_are_put_in_place_leaves_none_half_way(
    monkeypatch: pytest.MonkeyPatch, first: bool
) -> None:
    vec = two("envs.samples:Counter", env_kwargs={"length": 99})
    real, taken = Crew._attach, []

    def attach(crew: Crew, number: int) -> None:
        taken.append(number)
        if first or len(taken) == 2:
            monkeypatch.undo()
            raise KeyboardInterrupt
        real(crew, number)

    monkeypatch.setattr(Crew, "_attach", attach)
    kill(vec, 0, 1)
    with pytest.raises(KeyboardInterrupt):
        vec.step(np.zeros(2, np.int64))
    assert vec._fleet.dead() == [0, 1]
    assert [vec._fleet.channel.answered(index) for index in (0, 1)] == [True, True]
    assert np.isfinite(vec.step(np.zeros(2, np.int64))[0]).all()
    vec.close()
    assert becomes_true(lambda: descendants() == [], 10)


@pytest.mark.parametrize("name", ["create_memory", "create"])
def test_want_of_descriptors_at_a_restart_is_made_up_for_like_a_death(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    vec = two("envs.samples:Counter", env_kwargs={"length": 99}, restart_backoff_s=0.0)
    kill(vec, 0)
    refuse_once(monkeypatch, name)
    observations, *_, infos = vec.step(np.zeros(2, np.int64))
    assert observations[:, 0].tolist() == [2, 2]
    assert "agentenv" not in infos
    assert vec.step(np.zeros(2, np.int64))[0][:, 0].tolist() == [3, 3]
    vec.close()


def test_want_of_descriptors_at_a_restart_is_told_for_the_one_it_befalls(monkeypatch: pytest.MonkeyPatch) -> None:
    vec = two("envs.samples:Counter", env_kwargs={"length": 99}, on_crash="raise")
    kill(vec, 0)
    with pytest.raises(SandboxDied, match="killed"):
        vec.step(np.zeros(2, np.int64))
    refuse_once(monkeypatch, "create_memory")
    with pytest.raises(SandboxDied, match="Too many open files") as caught:
        vec.reset()
    assert (caught.value.cause.kind, caught.value.cause.owner) == (CauseKind.START_FAILED, Owner.RESOURCES)
    assert (caught.value.index, vec._fleet.dead()) == (0, [0])
    vec.reset()
    assert vec.step(np.zeros(2, np.int64))[0][:, 0].tolist() == [1, 1]
    vec.close()


@pytest.mark.parametrize("refused", ["memory", "copy"])
def test_who_cannot_go_back_to_a_copy_is_waited_for_no_longer(monkeypatch: pytest.MonkeyPatch, refused: str) -> None:
    with AgentENV.from_env("frail:Native", seed=1) as env:
        env.reset()
        expected = env.step(0)[0].tolist()
    with AgentENV.from_env("frail:Native", seed=1) as env:
        env.reset()
        moment = env.snapshot()
        assert moment.how == "fork"
        if refused == "memory":
            refuse_once(monkeypatch, "create_memory")
        else:
            monkeypatch.setattr(type(env._fleet.sandboxes[0]), "serve_from", lambda *_: os.close(-1))
        with pytest.raises(SnapshotError, match="cannot be copied"):
            env.restore(moment)
        monkeypatch.undo()
        assert env._fleet.channel.answered(0)
        assert env.step(0)[0].tolist() == expected
