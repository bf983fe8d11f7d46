"""Uses nobody meant, each with an error that says so: two threads, copying, closing while another waits."""

from __future__ import annotations

import copy
import dataclasses
import enum
import os
import pickle
import threading
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
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
        for wrong, what in (
            (lambda: env.reset(options={"odd": True}), r"the key 1 \(int\)"),
            (lambda: env.step(0), "list"),
        ):
            env.reset()
            with pytest.raises(EnvError, match=f"the info must be a dict with text keys; got {what}"):
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


class Colour(enum.Enum):
    RED = 1


@dataclasses.dataclass(frozen=True)
class Point:
    x: int = 1


@pytest.mark.parametrize(
    ("options", "where"),
    [
        ({"a": 1, "x": Colour.RED}, "options['x'] is a .*Colour"),
        ({"deep": [0, {"at": (Point(),)}]}, r"options['deep'][1]['at'][0] is a .*Point"),
        ({"r": np.random.default_rng(1)}, "options['r'] is a numpy.random._generator.Generator"),
        ({"p": gymnasium.spaces.Discrete(2)}, "options['p'] is a gymnasium.spaces.discrete.Discrete"),
        ({"f": len}, "options['f'] is a builtins.builtin_function_or_method"),
        ({Point(): 1}, r"the key Point(x=1) of options is a .*Point"),
        ({"s": {1, Colour.RED}}, "an element of options['s'] is a .*Colour"),
        ({"o": np.array([1, Colour.RED], dtype=object)}, "options['o'][1] is a .*Colour"),
    ],
)
def test_what_cannot_be_sent_is_refused_here_by_its_name(options: Any, where: str) -> None:
    pattern = "".join("\\" + letter if letter in "[]()" else letter for letter in where) + ", which cannot be sent"
    with AgentENV.from_env("envs.samples:Counter", seed=3) as env:
        with pytest.raises(TypeError, match=pattern):
            env.reset(options=options)
        with pytest.raises(TypeError, match=pattern.replace("options", r"value")):
            env.set_attr("options", options)
        with pytest.raises(TypeError, match=pattern.replace("options", r"args\[0\]")):
            env.call("add", options)
        env.reset(options={"text": '["?",', "raw": b'["?",', "plain": [1, None]})
        assert env.get_attr("options") == {"text": '["?",', "raw": b'["?",', "plain": [1, None]}


def test_a_refused_reset_does_not_use_up_the_first_seed() -> None:
    with (
        AgentVectorEnv.from_env("frail:Walk", num_envs=2, seed=3) as vec,
        AgentENV.from_env("frail:Walk", seed=3) as env,
    ):
        expected = vec.reset(seed=None)[0], env.reset()[0]
    with (
        AgentVectorEnv.from_env("frail:Walk", num_envs=2, seed=3) as vec,
        AgentENV.from_env("frail:Walk", seed=3) as env,
    ):
        for attempt in (lambda: vec.reset(options={"x": Colour.RED}), lambda: env.reset(options={"x": Colour.RED})):
            with pytest.raises(TypeError, match="Colour"):
                attempt()
        with pytest.raises(TypeError, match=r"value is a .*Colour"):
            vec.set_attr("length", Colour.RED)
        found = vec.reset()[0], env.reset()[0]
    np.testing.assert_array_equal(expected[0], found[0])
    np.testing.assert_array_equal(expected[1], found[1])
