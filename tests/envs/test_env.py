"""``AgentENV`` as the Gymnasium environment it claims to be."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.envs.registration import EnvSpec
from gymnasium.utils.env_checker import check_env

import agentenv
from agentenv import AgentENV, ClosedError, ConfigError, EnvError, InvalidAction

IDS = ("CartPole-v1", "Pendulum-v1", "Taxi-v4", "agentenv/GridWorld-v0")


@pytest.fixture(scope="module")
def counter() -> Iterator[AgentENV]:
    with AgentENV.from_env("envs.samples:Counter", render_mode="rgb_array") as env:
        yield env


# -- the checkers


@pytest.mark.parametrize("name", IDS)
def test_gymnasiums_checker_finds_nothing(name: str) -> None:
    """Nothing but what it says of the bare environment's own spaces."""
    said: list[list[str]] = []
    for make in (lambda: AgentENV.from_env(name, render_mode="rgb_array"), lambda: gymnasium.make(name).unwrapped):
        env: Any = make()
        with env, warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            check_env(env)
        said.append([str(warning.message) for warning in caught if "space" in str(warning.message)])
        others = [str(warning.message) for warning in caught if "space" not in str(warning.message)]
        assert others == [] or not isinstance(env, AgentENV)
    assert said[0] == said[1]


@pytest.mark.parametrize("name", IDS)
def test_stable_baselines_checker_finds_nothing(name: str) -> None:
    checker = pytest.importorskip("stable_baselines3.common.env_checker", reason="pip install stable-baselines3")
    with AgentENV.from_env(name) as env, warnings.catch_warnings():
        if name == "Pendulum-v1":
            # Its actions reach from -2 to 2; the bare environment draws the same advice.
            warnings.filterwarnings("ignore", message="We recommend you to use a symmetric and normalized Box")
        checker.check_env(env)


# -- registration


def test_gym_make_finds_gridworld_after_import() -> None:
    assert agentenv.__version__
    with gymnasium.make("agentenv/GridWorld-v0", size=4) as env:
        assert env.observation_space == gymnasium.spaces.Discrete(16)
        assert env.reset(seed=1)[0] == 0


def test_the_spec_makes_another_one_like_it() -> None:
    with AgentENV.from_env("CartPole-v1", seed=3) as env:
        assert env.spec is not None
        assert env.spec.id == "agentenv/CartPole-v1"
        with env.spec.make() as other:
            np.testing.assert_array_equal(other.reset(seed=5)[0], env.reset(seed=5)[0])


def test_the_spec_can_be_written_down_and_read_again(tmp_path: Path) -> None:
    (tmp_path / "c.toml").write_text(
        '[[environments]]\nid = "a"\nenv = "envs.samples:Counter"\nenv_kwargs = { length = 2, note = "@none" }\n'
        'wrappers = ["gymnasium.wrappers:RecordEpisodeStatistics"]\nseed = 3\n'
    )
    with AgentENV(tmp_path / "c.toml") as env:
        assert env.spec is not None
        read = EnvSpec.from_json(env.spec.to_json())
        assert read.kwargs == env.spec.kwargs
        with gymnasium.make(read, render_mode="rgb_array") as other:
            assert isinstance(other.unwrapped, AgentENV)
            assert (other.unwrapped.env_id, other.render_mode) == ("a", "rgb_array")
            np.testing.assert_array_equal(other.reset()[0], env.reset()[0])
            assert other.unwrapped.spec.kwargs["base_dir"] == str(tmp_path)


# -- seeds, options, generators


def test_the_first_reset_uses_the_configured_seed_and_the_second_goes_on() -> None:
    with AgentENV.from_env("CartPole-v1", seed=3) as env, gymnasium.make("CartPole-v1") as bare:
        np.testing.assert_array_equal(env.reset()[0], bare.reset(seed=3)[0])
        assert env.np_random_seed == 3
        np.testing.assert_array_equal(env.reset()[0], bare.reset()[0])
        np.testing.assert_array_equal(env.reset(seed=8)[0], bare.reset(seed=8)[0])
        assert (env.np_random_seed, env.call("np_random_seed")) == (8, 8)


def test_two_with_the_same_seed_agree_and_without_they_differ() -> None:
    observations: dict[str, list[bytes]] = {"same": [], "own": []}
    for _ in range(2):
        with AgentENV.from_env("CartPole-v1", seed=3) as env:
            observations["same"].append(env.reset()[0].tobytes() + repr(env.action_space.sample()).encode())
        with AgentENV.from_env("CartPole-v1") as env:
            observations["own"].append(env.reset()[0].tobytes())
    assert observations["same"][0] == observations["same"][1]
    assert observations["own"][0] != observations["own"][1]


def test_options_arrive(counter: AgentENV) -> None:
    options = {"text": "x", "array": np.arange(3), "nested": {"n": None}}
    counter.reset(options=options)
    arrived = counter.get_attr("options")
    assert (arrived["text"], arrived["nested"]) == ("x", {"n": None})
    np.testing.assert_array_equal(arrived["array"], options["array"])
    counter.reset()
    assert counter.get_attr("options") is None


# -- values


def test_values_have_the_promised_types() -> None:
    with AgentENV.from_env("Taxi-v4") as env:
        observation, info = env.reset(seed=1)
        assert type(observation) is int
        assert info["action_mask"].dtype == np.int8
        observation, reward, terminated, truncated, _ = env.step(0)
        assert list(map(type, (observation, reward, terminated, truncated))) == [int, float, bool, bool]


def test_rewards_of_any_sane_type_are_floats() -> None:
    with AgentENV.from_env("envs.samples:OddRewards", env_kwargs={"length": 99}) as env:
        env.reset()
        rewards = [env.step(0)[1] for _ in range(7)]
    assert rewards == [1.0] * 7
    assert set(map(type, rewards)) == {float}


def test_a_reward_that_is_no_number_is_the_environments_error() -> None:
    with AgentENV.from_env("envs.samples:WrongReward") as env:
        env.reset()
        with pytest.raises(EnvError, match="must be one number"):
            env.step(0)


def test_an_observation_is_the_callers_own(counter: AgentENV) -> None:
    first, _ = counter.reset()
    second = counter.step(0)[0]
    first += 100
    assert second.tolist() == [1, 1]
    assert counter.step(0)[0].tolist() == [2, 2]


# -- actions


def test_an_action_outside_the_space_is_refused_before_it_is_sent(counter: AgentENV) -> None:
    counter.reset()
    for action in (3, -1, "left", None, [0, 1], 0.5):
        with pytest.raises(InvalidAction):
            counter.step(action)
    assert counter.step(2)[0].tolist() == [1, 1]


def test_an_action_may_be_clipped_instead() -> None:
    with AgentENV.from_env("envs.samples:Strict", invalid_action="clip") as env:
        env.reset()
        assert env.step(np.array([7.0, -0.5]))[4]["action"].tolist() == [1.0, -0.5]
        with pytest.raises(InvalidAction):
            env.step(np.array([np.nan, 0]))
        with pytest.raises(InvalidAction):
            env.step(np.zeros(3))


# -- rendering


def test_frames_and_text_are_rendered_inside(counter: AgentENV) -> None:
    counter.reset()
    counter.step(0)
    frame = counter.render()
    assert (frame.shape, frame.dtype, frame.tolist()[0][0]) == ((2, 3, 3), np.uint8, [1, 1, 1])
    with AgentENV.from_env("envs.samples:Counter", render_mode="ansi") as env:
        env.reset()
        assert (env.render_mode, env.render()) == ("ansi", "step 0")


def test_a_window_is_refused_with_the_reason() -> None:
    for make in (
        lambda: AgentENV.from_env("CartPole-v1", render_mode="human"),
        lambda: AgentENV({"environments": [{"id": "a", "env": "CartPole-v1"}]}, render_mode="human"),
    ):
        with pytest.raises((ConfigError, ValueError), match="no display"):
            make()


def test_metadata_is_a_copy_without_the_window(counter: AgentENV) -> None:
    from envs.samples import Counter

    assert counter.metadata["render_modes"] == ["rgb_array", "ansi"]
    counter.metadata["render_fps"] = 0
    assert Counter.metadata == {"render_modes": ["human", "rgb_array", "ansi"], "render_fps": 4}
    assert AgentENV.metadata == gymnasium.Env.metadata


# -- attributes


def test_methods_and_attributes_of_plain_data(counter: AgentENV) -> None:
    assert counter.call("add", 2, right=5) == 7
    counter.set_attr("note", {"a": [1, (2, 3)], "b": np.float32(1.5)})
    value = counter.get_attr("note")
    assert value == {"a": [1, (2, 3)], "b": 1.5}
    assert type(value["b"]) is np.float32


def test_what_cannot_leave_is_named(counter: AgentENV) -> None:
    with pytest.raises(TypeError, match=r"handle.*lock.*stays inside"):
        counter.call("handle")
    with pytest.raises(EnvError, match="no attribute 'missing'"):
        counter.call("missing")
    with pytest.raises(ValueError, match=r"use step\(\)"):
        counter.call("step", 0)


# -- wrappers


def test_gymnasiums_wrappers_are_right_over_it() -> None:
    env: Any = AgentENV.from_env("envs.samples:Counter", env_kwargs={"length": 50})
    wrapped: Any = gymnasium.wrappers.NormalizeObservation(
        gymnasium.wrappers.ClipReward(
            gymnasium.wrappers.RecordEpisodeStatistics(gymnasium.wrappers.TimeLimit(env, 4)), -1.0, 1.0
        )
    )
    with wrapped:
        wrapped.reset(seed=1)
        steps = [wrapped.step(2) for _ in range(4)]
    assert [step[1] for step in steps] == [1.0] * 4
    assert [step[3] for step in steps] == [False, False, False, True]
    episode = steps[-1][4]["episode"]
    assert (episode["r"], episode["l"]) == (8.0, 4)


# -- names


def test_unknown_names_say_what_would_help() -> None:
    with pytest.raises(EnvError, match=r"module:callable"):
        AgentENV.from_env("NoSuchThing-v0")
    with pytest.raises(EnvError, match=r"no module 'nowhere'.*install the package"):
        AgentENV.from_env("nowhere:Env")
    with pytest.raises(EnvError, match=r"has no 'Missing'"):
        AgentENV.from_env("envs.samples:Missing")
    with pytest.raises(EnvError, match=r"not an environment"):
        AgentENV.from_env("envs.samples:not_an_environment")


def test_a_callable_that_no_sandbox_can_import_is_refused() -> None:
    def local(**_: Any) -> Any: ...

    local.__module__ = "__main__"
    for made in (local, lambda: None):
        with pytest.raises(ConfigError, match=r"module:callable"):
            AgentENV.from_env(made)


def test_a_class_is_as_good_as_its_name() -> None:
    from envs.samples import Counter

    with AgentENV.from_env(Counter) as env:
        assert env.reset()[0].tolist() == [0, 0]


# -- the end


def test_close_is_idempotent_and_final() -> None:
    env = AgentENV.from_env("envs.samples:Counter")
    env.close()
    env.close()
    uses = (env.reset, lambda: env.step(0), env.render, lambda: env.call("add", 1), lambda: env.set_attr("note", 1))
    for use in uses:
        with pytest.raises(ClosedError, match="is closed"):
            use()


def test_attributes_through_wrappers_reach_the_sandbox() -> None:
    """SB3's get_attr and env_method ask with get_wrapper_attr; a Gymnasium wrapper passes it on."""
    with AgentENV.from_env("CartPole-v1") as env:
        wrapped = gymnasium.wrappers.RecordEpisodeStatistics(env)
        assert wrapped.get_wrapper_attr("gravity") == 9.8
        assert wrapped.has_wrapper_attr("gravity")
        assert not wrapped.has_wrapper_attr("no_such_thing")
        assert env.set_wrapper_attr("gravity", 1.5)
        assert env.get_attr("gravity") == 1.5
        assert not env.set_wrapper_attr("no_such_thing", 1, force=False)
        assert env.get_wrapper_attr("get_wrapper_attr") is not None
        assert env.get_wrapper_attr("has_wrapper_attr")("gravity")
        with pytest.raises(AttributeError, match="no_such_thing"):
            env.get_wrapper_attr("no_such_thing")
        with pytest.raises(TypeError, match="stays inside the sandbox"):
            env.call("spec")


def test_the_spec_keeps_the_limit_and_the_object_names_itself() -> None:
    with AgentENV.from_env("CartPole-v1") as env:
        assert env.spec is not None
        assert env.spec.max_episode_steps == 500
        assert "CartPole-v1" in repr(env)
        assert "bubblewrap" in str(env)
