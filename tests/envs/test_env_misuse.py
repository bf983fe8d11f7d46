"""Uses nobody meant, each with an error that says so: two threads, copying, closing while another waits."""

from __future__ import annotations

import copy
import os
import pickle
import threading
from pathlib import Path

import pytest

from agentenv import AgentENV, AgentVectorEnv, ClosedError, ConcurrentUse, EnvError


def test_a_second_thread_is_refused_and_closing_ends_the_wait_of_the_first() -> None:
    env = AgentENV.from_env("agentenv.testing.samples:Patient")
    env.reset(seed=1)
    caught: list[BaseException] = []

    def waits() -> None:
        try:
            env.call("hang")
        except BaseException as error:
            caught.append(error)

    thread = threading.Thread(target=waits)
    thread.start()
    while env._fleet.channel.deadline is None and thread.is_alive():
        pass
    with pytest.raises(ConcurrentUse, match="another thread"):
        env.step(env.action_space.sample())
    assert thread.is_alive()
    env.close()
    thread.join(20)
    assert not thread.is_alive()
    assert isinstance(caught[0], ClosedError)


@pytest.mark.parametrize("face", [AgentENV, AgentVectorEnv])
def test_neither_pickled_nor_copied(face: type[AgentENV] | type[AgentVectorEnv]) -> None:
    env = face.from_env("CartPole-v1")
    try:
        for attempt in (copy.copy, copy.deepcopy, pickle.dumps):
            with pytest.raises(TypeError, match="sandbox"):
                attempt(env)
        env.reset(seed=1)
    finally:
        env.close()


def test_links_in_a_circle_on_the_path_are_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a").symlink_to(tmp_path / "b")
    (tmp_path / "b").symlink_to(tmp_path / "a")
    (tmp_path / "c.py").symlink_to(tmp_path / "a")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.chdir(tmp_path)
    with AgentENV.from_env("CartPole-v1") as env:
        env.reset(seed=1)


def test_infos_that_are_none_are_the_environments_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "odd_infos.py").write_text(
        "import gymnasium, numpy as np\n"
        "class Odd(gymnasium.Env):\n"
        "    observation_space = gymnasium.spaces.Discrete(2)\n"
        "    action_space = gymnasium.spaces.Discrete(2)\n"
        "    def reset(self, *, seed=None, options=None):\n"
        "        return 0, {1: 2} if options else {}\n"
        "    def step(self, action):\n"
        "        return 0, 0.0, False, False, ['not', 'a', 'dict']\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    with AgentENV.from_env("odd_infos:Odd") as env:
        for wrong in (lambda: env.reset(options={"odd": True}), lambda: env.step(0)):
            env.reset()
            with pytest.raises(EnvError, match="the info must be a dict with text keys"):
                wrong()
        assert env.reset() == (0, {})


def test_descriptors_are_given_back() -> None:
    AgentENV.from_env("CartPole-v1").close()
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        env = AgentENV.from_env("CartPole-v1")
        env.reset(seed=1)
        env.close()
    assert len(os.listdir("/proc/self/fd")) == before
