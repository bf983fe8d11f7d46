"""The state of an environment as bytes: the same future in another one, bit for bit, or the word that it is not so."""

from __future__ import annotations

import contextlib
import importlib
import os
import pickle
import random
import sys
import threading
import time
import warnings
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces, wrappers

import frail
from agentenv.envs.gridworld import GridWorld
from agentenv.guest.capture import Capture, Unfit, threads
from agentenv.guest.seeding import seed_globals
from agentenv.testing import exact

MODULES = {"ALE": "ale_py", "MiniGrid": "minigrid", "highway": "highway_env", "HalfCheetah": "mujoco", "Ant": "mujoco"}
NAMES = [
    "CartPole-v1",
    "Pendulum-v1",
    "Taxi",
    "Blackjack-v1",
    "GridWorld",
    "HalfCheetah-v5",
    "Ant-v5",
    "ALE/Breakout-v5",
    "MiniGrid-DoorKey-5x5-v0",
    "highway-fast-v0",
]


def build(name: str, **keys: Any) -> Any:
    """An environment as it is made inside a sandbox."""
    if name == "GridWorld":
        return wrappers.TimeLimit(GridWorld(), 50)
    module = next((module for start, module in MODULES.items() if name.startswith(start)), None)
    if module is not None:
        pytest.importorskip(module)
        importlib.import_module(module)
        for registering in ("ale_py", "minigrid", "highway_env"):
            if module == registering:
                gymnasium.register_envs(sys.modules[module])
    if name == "Taxi":
        name = next(known for known in ("Taxi-v4", "Taxi-v3") if known in gymnasium.registry)
    return gymnasium.make(name, disable_env_checker=True, **keys)


def actions_of(env: Any, count: int, seed: int = 3) -> list[Any]:
    space = pickle.loads(pickle.dumps(env.action_space))
    space.seed(seed)
    return [space.sample() for _ in range(count)]


def future(env: Any, actions: list[Any]) -> list[Any]:
    """All that comes out, over the ends of episodes; copies, because some environments use their buffers again."""
    seen: list[Any] = []
    for action in actions:
        observation, reward, terminated, truncated, info = env.step(action)
        info = dict(info)
        if isinstance(info.get("episode"), dict):
            info["episode"] = {key: value for key, value in info["episode"].items() if key != "t"}  # how long it took
        seen.append((frozen(observation), float(reward), bool(terminated), bool(truncated), frozen(info)))
        if terminated or truncated:
            seen.append(frozen(env.reset()[0]))
    return seen


def frozen(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: frozen(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(frozen(item) for item in value) if type(value) in (list, tuple) else [*map(frozen, value)]
    return value.copy() if isinstance(value, np.ndarray) else value


def begun(make: Callable[[], Any], steps: int = 17) -> Any:
    """An environment in the middle of things."""
    seed_globals(5)
    env = make()
    env.reset(seed=11)
    future(env, actions_of(env, steps, seed=1))
    return env


def assert_goes_on_elsewhere(
    make: Callable[[], Any], *, begin: int = 17, steps: int = 40, how: str | None = None
) -> None:
    env = begun(make, begin)
    capture = Capture(env)
    if how is not None:
        assert capture.how == how
    data = capture.dump(False)
    actions = actions_of(env, steps)
    expected = future(env, actions)
    seed_globals(99)
    other = make()
    other.reset(seed=123)
    loader = Capture(other)
    for _ in range(2):  # a state can be taken on more than once
        assert loader.load(data) is False
        exact.assert_same(future(other, actions), expected)
    assert capture.load(data) is False  # and by the one it is from
    exact.assert_same(future(env, actions), expected)
    env.close()
    other.close()


@pytest.mark.parametrize("name", NAMES)
def test_the_future_is_the_same_bit_for_bit(name: str) -> None:
    slow = name.startswith("highway")
    assert_goes_on_elsewhere(lambda: build(name), begin=3 if slow else 17, steps=6 if slow else 40)


STACKS: dict[str, Callable[[Any], Any]] = {
    "TimeLimit": lambda env: wrappers.TimeLimit(env, 9),
    "NormalizeObservation": wrappers.NormalizeObservation,
    "NormalizeReward": wrappers.NormalizeReward,
    "RecordEpisodeStatistics": lambda env: wrappers.RecordEpisodeStatistics(wrappers.TimeLimit(env, 9)),
    "FrameStackObservation": lambda env: wrappers.FrameStackObservation(env, 4),
    "TimeAwareObservation": lambda env: wrappers.TimeAwareObservation(wrappers.TimeLimit(env, 30)),
    "StickyAction": lambda env: wrappers.StickyAction(env, 0.5),
    "all": lambda env: wrappers.FrameStackObservation(
        wrappers.RecordEpisodeStatistics(wrappers.NormalizeObservation(wrappers.TimeLimit(env, 9))), 3
    ),
}


@pytest.mark.parametrize("stack", STACKS)
@pytest.mark.parametrize("name", ["CartPole-v1", "HalfCheetah-v5", "frail:Walk"])
def test_wrappers_go_on_as_well(name: str, stack: str) -> None:
    def make() -> Any:
        return STACKS[stack](frail.Walk() if name == "frail:Walk" else build(name))

    assert_goes_on_elsewhere(make)


def test_atari_goes_on_through_its_preprocessing() -> None:
    pytest.importorskip("cv2")
    keys = {"frameskip": 1, "repeat_action_probability": 0.25}
    assert_goes_on_elsewhere(
        lambda: wrappers.AtariPreprocessing(build("ALE/Breakout-v5", **keys), noop_max=5), how="state"
    )


def test_a_changed_model_is_carried_along() -> None:
    pytest.importorskip("mujoco")
    env = build("HalfCheetah-v5")
    env.reset(seed=1)
    capture = Capture(env)
    small = capture.dump(False)
    actions = actions_of(env, 30)
    plain = future(env, actions)
    capture.load(small)
    env.unwrapped.model.body_mass[1:] *= 1.7
    data = capture.dump(False)
    assert len(data) > 4 * len(small), "the model is not among it"
    expected = future(env, actions)
    assert [one[0].tolist() for one in expected] != [one[0].tolist() for one in plain], "the masses do not matter"
    other = build("HalfCheetah-v5")
    other.reset(seed=2)
    loader = Capture(other)
    loader.load(data)
    exact.assert_same(future(other, actions), expected)
    assert other.unwrapped.model.body_mass.tolist() == env.unwrapped.model.body_mass.tolist()
    # From here on its own captures must hold together as well, though its objects are others now.
    kept = loader.dump(False)
    expected = future(other, actions)
    loader.load(kept)
    exact.assert_same(future(other, actions), expected)


def test_an_unchanged_model_stays_where_it_is() -> None:
    pytest.importorskip("mujoco")
    env = begun(lambda: build("Ant-v5"))
    model, physics = env.unwrapped.model, env.unwrapped.data
    capture, time_s = Capture(env), float(physics.time)
    data = capture.dump(False)
    future(env, actions_of(env, 5))
    assert physics.time != time_s
    capture.load(data)
    assert physics.time == time_s
    assert env.unwrapped.model is model
    assert env.unwrapped.data is physics


def test_physics_of_another_model_are_refused() -> None:
    pytest.importorskip("mujoco")
    data = Capture(begun(lambda: build("HalfCheetah-v5"))).dump(False)
    with pytest.raises(ValueError, match="another model"):
        Capture(begun(lambda: build("Ant-v5"))).load(data)


@pytest.mark.parametrize("ended", [False, True])
def test_whether_the_episode_is_over_is_kept(ended: bool) -> None:
    capture = Capture(begun(frail.Walk))
    assert capture.load(capture.dump(ended)) is ended


def test_the_global_generators_are_part_of_it() -> None:
    capture = Capture(begun(frail.Walk))
    data = capture.dump(False)
    expected = random.random(), np.random.normal(size=3).tolist()
    seed_globals(0)
    capture.load(data)
    assert (random.random(), np.random.normal(size=3).tolist()) == expected


# -- environments that lie, or cannot do it


class Hidden(frail.Walk):
    """Pickles, but loses what it keeps outside of its attributes."""

    places: dict[int, int] = {}  # noqa: RUF012  # what this is about

    def step(self, action: Any) -> frail.Step:
        Hidden.places[0] = Hidden.places.get(0, 0) + 1
        observation, reward, *rest = super().step(action)
        return observation, reward + Hidden.places[0], *rest


class OwnPickle(frail.Walk):
    """Says how it is pickled, and leaves out what matters."""

    def __getstate__(self) -> dict[str, Any]:
        return {key: value for key, value in self.__dict__.items() if key != "place"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self.place = np.zeros(3)


class Honest(frail.Walk):
    """Has methods for its state that work, random stream and all."""

    def get_state(self) -> dict[str, Any]:
        return {"steps": self.steps, "place": self.place.copy()}

    def set_state(self, state: Any) -> None:
        self.steps, self.place = state["steps"], state["place"].copy()


class Chatty(frail.Walk):
    """Does in a step what would be seen: writes, counts, and draws from its action space."""

    def step(self, action: Any) -> frail.Step:
        os.write(2, b"a step\n")
        self.action_space.sample()
        return super().step(action)


class Fragile(frail.Walk):
    """Cannot be stepped after its state was put back."""

    def get_state(self) -> int:
        return self.steps

    def set_state(self, state: int) -> None:
        raise RuntimeError("no way back")


class Slow(frail.Walk):
    """Needs long for a step."""

    def step(self, action: Any) -> frail.Step:
        time.sleep(0.3)
        return super().step(action)


class Stuck(frail.Walk):
    """Never comes back once its state was put back."""

    def get_state(self) -> int:
        return self.steps

    def set_state(self, state: int) -> None:
        time.sleep(1e6)


class Deadly(Fragile):
    """Dies when its state is put back."""

    def set_state(self, state: int) -> None:
        os._exit(7)


def alone(check: Callable[[], str]) -> str:
    """What it says in a process as a sandbox has it: one thread, and no files but the standard ones.

    This one may have threads and files by now, which would keep anything from being tried out.
    """
    reader, writer = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # forking beside threads: the copy has only this one
        pid = os.fork()
    if pid == 0:
        said = b"failed"
        with contextlib.suppress(BaseException):
            os.dup2(writer, 3)
            os.closerange(4, 1 << 16)
            try:
                said = check().encode()
            except BaseException as error:
                said = f"raised {type(error).__name__}: {error}".encode()
        os.write(3, said)
        os._exit(0)
    os.close(writer)
    with open(reader, "rb") as stream:
        said = stream.read()
    os.waitpid(pid, 0)
    return said.decode()


def verdict(env: Any, ended: bool = False) -> str:
    capture = Capture(env)
    return alone(lambda: capture.proven(env, capture.dump(ended), ended))


@pytest.mark.parametrize("ended", [False, True])
@pytest.mark.parametrize("kind", [frail.Walk, Honest, Chatty, GridWorld])
def test_who_tells_the_truth_is_believed(kind: Any, ended: bool) -> None:
    assert verdict(begun(kind), ended) == ""


@pytest.mark.parametrize("name", NAMES)
def test_well_known_ones_are_believed(name: str) -> None:
    env = begun(lambda: build(name), 3)
    assert verdict(env) == ""
    env.close()


def test_a_slow_one_is_tried_as_far_as_time_allows() -> None:
    assert verdict(begun(Slow, 1)) == ""


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        (frail.Forgetful, "step 1 after restoring differs"),
        (frail.Erratic, "step 1 after restoring differs"),
        (Hidden, "step 1 after restoring differs"),
        (OwnPickle, "step 1 after restoring differs"),
        (Fragile, "restoring fails: RuntimeError: no way back"),
        (Deadly, "trying it out killed the process"),
        (Stuck, "trying it out takes more than 1 s"),
    ],
)
def test_who_lies_is_found_out(kind: Any, words: str) -> None:
    assert verdict(begun(kind)) == words


def test_falling_back_to_the_attributes_helps_where_only_the_methods_lie() -> None:
    env = begun(frail.Forgetful)
    capture = Capture(env)
    assert capture.how == "state"
    assert capture.fall_back()
    assert capture.how == "pickle"
    assert alone(lambda: capture.proven(env, capture.dump(False), False)) == ""
    assert not capture.fall_back()


def test_what_cannot_be_pickled_says_so() -> None:
    with pytest.raises(Unfit, match=r"Native cannot be captured: TypeError: cannot pickle '_thread.lock'"):
        Capture(begun(frail.Native)).dump(False)


def test_threads_keep_it_from_being_tried() -> None:
    env = begun(frail.Walk)
    capture = Capture(env)
    data, wait = capture.dump(False), threading.Event()
    thread = threading.Thread(target=wait.wait)
    thread.start()
    try:
        assert threads() >= 2
        assert "runs threads" in capture.proven(env, data, False)
    finally:
        wait.set()
        thread.join()


@pytest.mark.parametrize("kind", [frail.Walk, Honest, frail.Forgetful, Hidden, Chatty, Fragile, Deadly])
def test_trying_changes_nothing(kind: Any, capfd: pytest.CaptureFixture[str]) -> None:
    def check() -> str:
        env = begun(kind)
        env.action_space.seed(8)
        capture = Capture(env)
        data = capture.dump(False)
        before = pickle.dumps(plain_state(env))
        found = capture.proven(env, data, False)
        assert "cannot be tried" not in found
        assert pickle.dumps(plain_state(env)) == before
        assert capture.dump(False) == data or kind in (Chatty,)
        return "the same"

    assert alone(check) == "the same"
    assert capfd.readouterr().err.count("a step") == (17 if kind is Chatty else 0), "the trial was heard"


def plain_state(env: Any) -> Any:
    attributes = {key: value for key, value in env.__dict__.items() if key != "_np_random"}
    streams = [env.np_random.bit_generator.state, env.action_space.np_random.bit_generator.state]
    return attributes, streams, random.getstate(), np.random.get_state(legacy=False), Hidden.places


def test_an_end_within_the_trial_is_gone_through() -> None:
    """A limit of three steps: the trial passes several ends of episodes."""
    assert verdict(begun(lambda: wrappers.TimeLimit(frail.Walk(), 3))) == ""


def test_a_layer_may_refer_to_another() -> None:
    """Who holds a reference to an outer layer gets the living one, not a second copy of everything."""

    class Knowing(gymnasium.Wrapper[Any, Any, Any, Any]):
        def __init__(self, env: Any) -> None:
            super().__init__(env)
            env.unwrapped.outermost = self

    made = [Knowing(begun(frail.Walk)) for _ in range(2)]
    data = Capture(made[0]).dump(False)
    Capture(made[1]).load(data)
    assert made[1].unwrapped.outermost is made[1]
    assert made[1].env is not made[0].env


def test_a_space_that_was_seeded_goes_on_drawing_the_same() -> None:
    class Drawing(frail.Walk):
        def __init__(self) -> None:
            super().__init__()
            self.goals = spaces.Discrete(1000, seed=3)

        def step(self, action: Any) -> frail.Step:
            observation, reward, *rest = super().step(action)
            return observation, reward + int(self.goals.sample()), *rest

    assert_goes_on_elsewhere(Drawing)
