"""``AgentVectorEnv`` as the vector environment it claims to be; equality with Gymnasium's own is in conformance/."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.error import ResetNeeded
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from agentenv import AgentVectorEnv, ClosedError, EnvError, InvalidAction

COUNTER = "envs.samples:Counter"


@pytest.fixture(scope="module")
def counters() -> Iterator[AgentVectorEnv]:
    vec = AgentVectorEnv.from_env(COUNTER, num_envs=3, env_kwargs={"length": 1000}, render_mode="rgb_array")
    yield vec
    vec.close()


# -- registration


def test_make_vec_makes_isolated_gridworlds() -> None:
    vec = gymnasium.make_vec(
        "agentenv/GridWorld-v0", num_envs=3, vectorization_mode="vector_entry_point", size=4, autoreset_mode="SameStep"
    )
    try:
        assert isinstance(vec, AgentVectorEnv)
        assert (vec.num_envs, vec.autoreset_mode) == (3, AutoresetMode.SAME_STEP)
        assert vec.single_observation_space == gymnasium.spaces.Discrete(16)
        vec.reset(seed=1)
        for _ in range(199):
            vec.step(np.zeros(3, np.int64))
        _, _, terminated, truncated, _ = vec.step(np.zeros(3, np.int64))
        assert (terminated.tolist(), truncated.tolist()) == ([False] * 3, [True] * 3)
    finally:
        vec.close()


# -- seeds, options, masks


def test_seeds_as_an_int_as_a_list_and_none(counters: AgentVectorEnv) -> None:
    counters.reset(seed=5)
    assert counters.np_random_seed == (5, 6, 7)
    counters.reset(seed=[9, None, 3])
    assert counters.np_random_seed == (9, 6, 3)
    counters.reset(seed=np.int64(2))  # type: ignore[arg-type]  # what a generator draws
    assert counters.np_random_seed == (2, 3, 4)
    with pytest.raises(ValueError, match=r"expected one seed or 3.*got 2"):
        counters.reset(seed=[1, 2])


def test_configured_seeds_differ_and_do_not_depend_on_the_number_of_environments() -> None:
    seeds = []
    for number in (2, 3):
        vec = AgentVectorEnv({"global": {"seed": 1}, "environments": [{"id": "a", "env": COUNTER, "count": number}]})
        vec.reset()
        seeds.append((vec.np_random_seed, vec.action_space.sample()[0]))
        vec.close()
    assert seeds[0][0] == seeds[1][0][:2]
    assert len(set(seeds[1][0])) == 3
    own = AgentVectorEnv.from_env(COUNTER, num_envs=2, seed=10)
    own.reset()
    assert own.np_random_seed == (10, 11)
    own.close()


def test_the_batched_action_space_is_seeded() -> None:
    drawn = []
    for _ in range(2):
        vec = AgentVectorEnv.from_env(COUNTER, num_envs=8, seed=10)
        drawn.append(np.stack([vec.action_space.sample() for _ in range(4)]))
        vec.close()
    np.testing.assert_array_equal(drawn[0], drawn[1])


def test_options_reach_every_environment_and_the_mask_none(counters: AgentVectorEnv) -> None:
    mask = np.array([True, False, True])
    options = {"level": 3, "reset_mask": mask}
    counters.reset(options={"level": 1})
    counters.step(np.zeros(3, np.int64))
    observations, _ = counters.reset(options=options)
    assert counters.get_attr("options") == ({"level": 3}, {"level": 1}, {"level": 3})
    assert observations[:, 0].tolist() == [0, 1, 0]
    assert options == {"level": 3, "reset_mask": mask}


@pytest.mark.parametrize(
    ("mask", "error", "said"),
    [
        ([True, False, True], TypeError, "numpy array of bool, got list"),
        (np.array([1, 0, 1]), TypeError, "numpy array of bool, got an array of int64"),
        (np.array([True, False]), ValueError, r"shape \(3,\), got \(2,\)"),
        (np.zeros(3, np.bool_), ValueError, "at least one True"),
    ],
)
def test_a_wrong_mask_is_refused(counters: AgentVectorEnv, mask: Any, error: type[Exception], said: str) -> None:
    counters.reset()
    with pytest.raises(error, match=said):
        counters.reset(options={"reset_mask": mask})


# -- autoreset


def test_a_manual_reset_cancels_a_pending_autoreset() -> None:
    vec = AgentVectorEnv.from_env(COUNTER, num_envs=2, env_kwargs={"length": 2})
    zeros = np.zeros(2, np.int64)
    vec.reset()
    for _ in range(2):
        vec.step(zeros)
    vec.reset(options={"reset_mask": np.array([True, False])})
    observations, _, terminated, _, _ = vec.step(zeros)
    assert observations[:, 0].tolist() == [1, 0]
    assert terminated.tolist() == [False, False]
    vec.close()


def test_disabled_autoreset_refuses_to_step_what_has_ended() -> None:
    vec = AgentVectorEnv.from_env(COUNTER, num_envs=2, env_kwargs={"length": 1}, autoreset_mode="Disabled")
    zeros = np.zeros(2, np.int64)
    vec.reset()
    vec.step(zeros)
    with pytest.raises(ResetNeeded, match=r"\[0, 1\].*reset_mask"):
        vec.step(zeros)
    vec.reset(options={"reset_mask": np.array([True, False])})
    with pytest.raises(ResetNeeded, match=r"\[1\]"):
        vec.step(zeros)
    vec.reset()
    assert vec.step(zeros)[2].all()
    vec.close()


def test_a_reused_buffer_does_not_spoil_the_final_observation_and_info() -> None:
    vec = AgentVectorEnv.from_env("envs.samples:ReusedBuffers", num_envs=2, autoreset_mode="SameStep")
    zeros = np.zeros(2, np.int64)
    vec.reset()
    for _ in range(2):
        vec.step(zeros)
    observations, _, terminated, _, infos = vec.step(zeros)
    assert terminated.all()
    assert observations.tolist() == [[-7, -7]] * 2
    assert [final.tolist() for final in infos["final_obs"]] == [[3, 3]] * 2
    assert infos["final_info"]["phase"].tolist() == ["step 3"] * 2
    assert infos["phase"].tolist() == ["reset"] * 2
    vec.close()


def test_rewards_of_any_sane_type_are_numbers_in_the_array() -> None:
    vec = AgentVectorEnv.from_env("envs.samples:OddRewards", num_envs=2, env_kwargs={"length": 99})
    vec.reset()
    for _ in range(7):
        _, rewards, terminated, truncated, _ = vec.step(np.zeros(2, np.int64))
        assert (rewards.dtype, rewards.tolist()) == (np.float64, [1.0, 1.0])
        assert (terminated.dtype, truncated.dtype) == (np.bool_, np.bool_)
    vec.close()


# -- actions


@pytest.mark.parametrize("actions", [[0, 1], [0, 1, 2, 0], [], 1, None, [0, 1, 3], [0, -1, 0], [0.5, 0.5, 0.5], "abc"])
def test_actions_that_do_not_fit_are_refused_before_anything_is_sent(counters: AgentVectorEnv, actions: Any) -> None:
    counters.reset()
    for form in (actions, np.asarray(actions)):
        with pytest.raises(InvalidAction):
            counters.step(form)
    assert counters.step(np.array([0, 1, 2]))[0][:, 0].tolist() == [1, 1, 1]


def test_actions_may_be_clipped_instead() -> None:
    vec = AgentVectorEnv.from_env("envs.samples:Strict", num_envs=2, invalid_action="clip")
    vec.reset()
    _, _, _, _, infos = vec.step(np.array([[5, 0], [-5, 0.25]], np.float32))
    assert infos["action"].tolist() == [[1, 0], [-1, 0.25]]
    vec.close()


# -- copies


def test_observations_are_copies_unless_asked_otherwise(counters: AgentVectorEnv) -> None:
    first, _ = counters.reset()
    kept = first.copy()
    second = counters.step(np.zeros(3, np.int64))[0]
    np.testing.assert_array_equal(first, kept)
    second += 5
    assert counters.step(np.zeros(3, np.int64))[0][:, 0].tolist() == [2, 2, 2]


def test_without_copying_they_are_one_strided_view_of_what_the_sandboxes_write() -> None:
    vec = AgentVectorEnv.from_env(COUNTER, num_envs=3, copy=False)
    first, _ = vec.reset()
    second = vec.step(np.zeros(3, np.int64))[0]
    assert np.shares_memory(first, second)
    assert np.shares_memory(first, vec._fleet.channel.arena.bytes)
    assert first[:, 0].tolist() == [1, 1, 1]
    assert first.strides[0] == vec._fleet.slot.size
    vec.close()


# -- attributes and pictures


def test_calls_and_attributes_are_one_for_each(counters: AgentVectorEnv) -> None:
    assert counters.call("add", 1, right=2) == (3, 3, 3)
    counters.set_attr("note", ["a", "b", "c"])
    assert counters.get_attr("note") == ("a", "b", "c")
    counters.set_attr("note", "same")
    assert counters.get_attr("note") == ("same",) * 3
    with pytest.raises(ValueError, match="expected 3 values, got 2"):
        counters.set_attr("note", ["a", "b"])
    with pytest.raises(ValueError, match=r"use reset\(\)"):
        counters.call("reset")
    with pytest.raises(TypeError, match="stays inside"):
        counters.call("handle")
    with pytest.raises(EnvError, match="missing"):
        counters.call("missing")


def test_one_frame_of_each(counters: AgentVectorEnv) -> None:
    counters.reset()
    counters.step(np.zeros(3, np.int64))
    frames = counters.render()
    assert frames is not None
    assert [frame.tolist()[0][0] for frame in frames] == [[1, 1, 1]] * 3
    assert counters.render_mode == "rgb_array"


def test_the_classs_metadata_stays_as_it_was(counters: AgentVectorEnv) -> None:
    from envs.samples import Counter

    assert counters.metadata["autoreset_mode"] is AutoresetMode.NEXT_STEP
    assert "autoreset_mode" not in Counter.metadata
    assert "autoreset_mode" not in AgentVectorEnv.metadata


# -- wrappers


def _statistics(vec: Any) -> list[Any]:
    """What Gymnasium's vector wrappers make of 30 steps."""
    wrapped: Any = gymnasium.wrappers.vector.RecordEpisodeStatistics(vec)
    wrapped = gymnasium.wrappers.vector.ClipReward(wrapped, -0.5, 0.5)
    if vec.metadata["autoreset_mode"] is not AutoresetMode.SAME_STEP:  # which that wrapper refuses
        wrapped = gymnasium.wrappers.vector.NormalizeObservation(wrapped)
    wrapped = gymnasium.wrappers.vector.DictInfoToList(wrapped)
    wrapped.action_space.seed(4)
    seen = [wrapped.reset(seed=3)[0]]
    for _ in range(30):
        observations, rewards, terminated, truncated, infos = wrapped.step(wrapped.action_space.sample())
        episodes = [(info["episode"]["r"], info["episode"]["l"]) for info in infos if "episode" in info]
        seen.append((observations, rewards, terminated, truncated, episodes))
    wrapped.close()
    return seen


@pytest.mark.parametrize("mode", list(AutoresetMode)[:2])
def test_gymnasiums_wrappers_make_the_same_of_it(mode: AutoresetMode) -> None:
    ours = _statistics(AgentVectorEnv.from_env("CartPole-v1", 3, max_episode_steps=9, autoreset_mode=mode))
    maker = [lambda: gymnasium.make("CartPole-v1", max_episode_steps=9)] * 3
    theirs = _statistics(SyncVectorEnv(maker, autoreset_mode=mode))
    assert any(step[4] for step in ours[1:])
    np.testing.assert_equal(ours, theirs)


# -- spaces that differ


def test_environments_that_cannot_be_stepped_together_are_named() -> None:
    table = {"environments": [{"id": "narrow", "env": COUNTER}, {"id": "wide", "env": "envs.samples:Wide"}]}
    with pytest.raises(ValueError, match=r"'narrow' and 'wide'.*observation_space.*shape"):
        AgentVectorEnv(table)


# -- the end


def test_close_is_idempotent_and_final() -> None:
    vec = AgentVectorEnv.from_env(COUNTER, num_envs=2)
    vec.reset()
    vec.close()
    vec.close()
    for use in (vec.reset, lambda: vec.step(np.zeros(2, np.int64)), vec.render, lambda: vec.call("add", 1)):
        with pytest.raises(ClosedError, match="is closed"):
            use()


def test_a_block_ends_it_and_it_is_never_copied() -> None:
    with AgentVectorEnv.from_env("CartPole-v1", num_envs=2) as vec:
        vec.reset(seed=1)
        with pytest.raises(
            TypeError, match="an AgentVectorEnv holds living sandboxes and can be neither pickled nor copied"
        ):
            copy.copy(vec)
    assert vec.closed
