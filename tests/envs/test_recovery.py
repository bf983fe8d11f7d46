"""Environments that are killed while somebody steps them: what comes out must be what would have come out anyway."""

from __future__ import annotations

import contextlib
import os
import random
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from agentenv import AgentENV, AgentVectorEnv, SandboxDied, StepTimeout
from agentenv.errors import CauseKind
from agentenv.fleet import repetition
from agentenv.fleet.pacing import LEAST_GROUPS, Pace, Pacing
from agentenv.testing import exact, traces
from agentenv.testing.leftovers import becomes_true

ENDLESS: dict[str, Any] = {"max_restarts": 100_000, "restart_backoff_s": 0.0}
SEED = 4
MODES = ["NextStep", "SameStep"]


def children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def kill_worker(vec: Any, index: int) -> None:
    """The process of the environment, and of the copy parked beside it every other time."""
    sandbox = vec._fleet.sandboxes[vec._fleet.channel.group_of(index)]
    kill(sandbox._worker.pid)


def kill_cell(vec: Any, index: int) -> None:
    kill(vec._fleet.sandboxes[vec._fleet.channel.group_of(index)].pid)


def kill_everything(vec: Any, index: int) -> None:
    for sandbox in vec._fleet.sandboxes:
        for child in children(sandbox.pid):
            kill(child)


def kill_zygote(vec: Any, index: int) -> None:
    pidfd = vec._context.runtime._zygote._pidfd
    kill(int(Path(f"/proc/self/fdinfo/{pidfd}").read_text().split("Pid:")[1].split()[0]))
    if vec._fleet.journal.position > 100:  # at last, who dies with it is waited for: 200 steps are soon over
        assert becomes_true(lambda: vec._fleet.dead() != [], 10)


def kill_outer(vec: Any, index: int) -> None:
    kill(vec._context.runtime._zygote.pid)


def play(vec: Any, steps: int, strike: Callable[[int], None] = lambda step: None, seed: int | None = 3) -> list[Any]:
    """Everything that reset and step return."""
    vec.action_space.seed(7)
    seen: list[Any] = [vec.reset(seed=seed)]
    for step in range(steps):
        strike(step)
        seen.append(vec.step(vec.action_space.sample()))
    return seen


def assert_same(found: list[Any], expected: list[Any]) -> None:
    for step, (one, other) in enumerate(zip(found, expected, strict=True)):
        exact.assert_same(one, other, f"step {step}")


class Fixed(Pacing):
    """One pace for ever."""

    def __init__(self, pace: Pace) -> None:
        super().__init__()
        self.pace = pace

    def record(self, duration_s: float) -> bool:
        return False


def disturbed(
    env: str, how: Callable[[Any, int], None], *, every: int, pace: Pace | None = None, **keys: Any
) -> tuple[list[Any], AgentVectorEnv]:
    """200 steps of three environments, one of which is struck every so often; the vector is closed."""
    rng = random.Random(5)
    vec = AgentVectorEnv.from_env(env, num_envs=3, seed=SEED, **ENDLESS, **keys)
    if pace is not None:
        vec._pacing, vec._pace_due = Fixed(pace), True
    try:
        seen = play(vec, 200, lambda step: how(vec, rng.randrange(3)) if step % every == every - 1 else None)
        # What bubblewrap itself does is only to wait: without it, nobody has died.
        assert vec._fleet.recovery.recovered > 0 or how is kill_outer
        return seen, vec
    finally:
        vec.close()


def quiet(env: str, **keys: Any) -> list[Any]:
    vec = AgentVectorEnv.from_env(env, num_envs=3, seed=SEED, **keys)
    try:
        return play(vec, 200)
    finally:
        vec.close()


@pytest.mark.parametrize("checkpoint_every", [20, "never", "auto"])
@pytest.mark.parametrize("mode", MODES)
def test_killed_processes_leave_no_trace_in_what_comes_out(mode: str, checkpoint_every: Any) -> None:
    keys = {"autoreset_mode": mode, "checkpoint_every": checkpoint_every}
    assert_same(disturbed("frail:Walk", kill_worker, every=23, **keys)[0], quiet("frail:Walk", **keys))


@pytest.mark.parametrize("how", [kill_cell, kill_everything, kill_zygote, kill_outer])
def test_whatever_process_of_ours_is_killed(how: Callable[[Any, int], None]) -> None:
    keys = {"checkpoint_every": 20, "runtime": "bubblewrap"}
    assert_same(disturbed("frail:Walk", how, every=67, **keys)[0], quiet("frail:Walk", **keys))


@pytest.mark.parametrize("how", [kill_worker, kill_cell, kill_zygote])
def test_who_is_looked_at_instead_of_woken_comes_back_as_well(how: Callable[[Any, int], None]) -> None:
    keys = {"checkpoint_every": 20, "runtime": "bubblewrap"}
    assert_same(disturbed("frail:Walk", how, every=23, pace=Pace.STAND_BY, **keys)[0], quiet("frail:Walk", **keys))


@pytest.mark.parametrize("env", ["frail:Native", "frail:Forgetful", "frail:Threaded", "frail:Reading", "frail:Heavy"])
@pytest.mark.parametrize("how", [kill_worker, kill_cell])
def test_every_rung_of_the_ladder_leads_back(env: str, how: Callable[[Any, int], None]) -> None:
    keys = {"checkpoint_every": 20}
    assert_same(disturbed(env, how, every=41, **keys)[0], quiet(env, **keys))


@pytest.mark.parametrize("how", [kill_worker, kill_cell])
def test_a_past_is_repeated_in_as_many_goes_as_it_takes(
    how: Callable[[Any, int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(repetition, "MOST_AT_ONCE", 7)
    keys = {"checkpoint_every": "never"}
    assert_same(disturbed("frail:Walk", how, every=67, **keys)[0], quiet("frail:Walk", **keys))


def test_a_past_longer_than_an_answer_may_be_is_repeated_whole() -> None:
    # 44,000 outcomes of 24 bytes are more than the 1 MiB that is accepted at once.
    keys: dict[str, Any] = {"max_message_mb": 1, "checkpoint_every": "never", "autoreset_mode": "Disabled", **ENDLESS}
    vec = AgentVectorEnv.from_env("frail:Walk", num_envs=1, seed=SEED, env_kwargs={"length": 1 << 20}, **keys)
    vec.reset(seed=SEED)
    for _ in range(44_000):
        vec.step(np.zeros(1, np.int64))
    kill_worker(vec, 0)
    *_, truncated, infos = vec.step(np.zeros(1, np.int64))
    assert not truncated.any(), infos
    assert vec.get_attr("steps") == (44_001,)
    vec.close()


@pytest.mark.parametrize("per_sandbox", [2, 3])
def test_all_of_a_shared_sandbox_come_back(per_sandbox: int) -> None:
    keys = {"envs_per_sandbox": per_sandbox, "checkpoint_every": 20}
    assert_same(disturbed("frail:Walk", kill_worker, every=41, **keys)[0], quiet("frail:Walk", **keys))


def test_a_death_that_is_noticed_before_the_step_is_asked_loses_no_action() -> None:
    """The environments are told the pace of a vector first; with the one that dies over that goes its memory."""
    seen = []
    for deadly in (False, True):
        vec = AgentVectorEnv.from_env("frail:Walk", num_envs=LEAST_GROUPS, seed=SEED, **ENDLESS)
        rows = [vec.reset(seed=1)]
        for step in range(12):
            if deadly and step % 3 == 2:
                kill_worker(vec, step % LEAST_GROUPS)
                vec._pace_due = True
            rows.append(vec.step(np.full(LEAST_GROUPS, step % 3)))  # never the same twice
        assert (vec._fleet.recovery.recovered > 0) is deadly
        vec.close()
        seen.append(rows)
    assert_same(seen[1], seen[0])


def test_wrappers_go_on_with_what_they_have_counted() -> None:
    keys: dict[str, Any] = {
        "wrappers": [
            {"wrapper": "gymnasium.wrappers:TimeLimit", "kwargs": {"max_episode_steps": 11}},
            "gymnasium.wrappers:NormalizeObservation",
            "gymnasium.wrappers:RecordEpisodeStatistics",
        ],
        "checkpoint_every": 20,
    }
    found, expected = disturbed("frail:Walk", kill_worker, every=23, **keys)[0], quiet("frail:Walk", **keys)
    ends = 0
    for *_, infos in [*found[1:], *expected[1:]]:
        for name in ("episode", "_episode"):
            if name in infos:
                infos[name] = dict(infos[name]) if isinstance(infos[name], dict) else infos[name]
        if "episode" in infos:
            ends += 1
            del infos["episode"]["t"], infos["episode"]["_t"]  # how long it took
    assert ends >= 30
    assert_same(found, expected)


def test_the_single_face_recovers_as_well_and_so_does_an_unseeded_one() -> None:
    with AgentENV.from_env("frail:Walk", seed=11, checkpoint_every=20, **ENDLESS) as env:
        env.action_space.seed(1)
        plain = [env.reset()] + [env.step(env.action_space.sample()) for _ in range(60)]
    with AgentENV.from_env("frail:Walk", seed=11, checkpoint_every=20, **ENDLESS) as env:
        env.action_space.seed(1)
        killed = [env.reset()]
        for step in range(60):
            if step in (3, 30, 31, 59):
                kill_worker(env, 0)
            killed.append(env.step(env.action_space.sample()))
        assert env._fleet.recovery.recovered == 4
    assert_same(killed, plain)
    with AgentENV.from_env("frail:Walk", checkpoint_every="never", **ENDLESS) as env:
        env.reset()
        for step in range(10):
            if step == 5:
                kill_worker(env, 0)
            *_, truncated, info = env.step(0)
            assert not truncated
            assert "agentenv" not in info


def test_a_death_while_nobody_asks_is_made_up_for_at_the_next_reset() -> None:
    with AgentENV.from_env("frail:Walk", **ENDLESS) as env:
        first = env.reset(seed=5)
        env.step(0)
        kill_worker(env, 0)
        assert_same([env.reset(seed=5)], [first])


def test_what_cannot_be_repeated_is_truncated_with_the_reason() -> None:
    vec = AgentVectorEnv.from_env("frail:Erratic", num_envs=2, checkpoint_every="never", **ENDLESS)
    vec.reset(seed=1)
    for _ in range(5):
        vec.step(np.zeros(2, np.int64))
    kill_worker(vec, 1)
    _, rewards, terminated, truncated, infos = vec.step(np.zeros(2, np.int64))
    assert (truncated.tolist(), terminated.tolist(), rewards[1]) == ([False, True], [False, False], 0.0)
    assert infos["_agentenv"].tolist() == [False, True]
    assert "not deterministic" in infos["agentenv"]["truncated"][1]
    *_, truncated, infos = vec.step(np.zeros(2, np.int64))
    assert not truncated.any()
    assert infos["_began"].tolist() == [False, True]
    vec.close()


@pytest.mark.parametrize("how", ["exit", "segv", "hang"])
def test_a_step_that_is_always_deadly_ends_the_episode(how: str) -> None:
    keys: dict[str, Any] = {"env_kwargs": {"how": how}, "step_timeout_s": 0.5, "checkpoint_every": 4}
    vec = AgentVectorEnv.from_env("frail:Mortal", num_envs=2, **keys)
    vec.reset(seed=1)
    for _ in range(6):
        *_, truncated, _ = vec.step(np.zeros(2, np.int64))
        assert not truncated.any()
    *_, truncated, infos = vec.step(np.array([0, 2]))
    assert truncated.tolist() == [False, True]
    assert "at this very request" in infos["agentenv"]["truncated"][1]
    observations, *_ = vec.step(np.zeros(2, np.int64))
    assert np.isfinite(observations).all()
    vec.close()


def test_truncate_ends_the_episode_at_once() -> None:
    vec = AgentVectorEnv.from_env("frail:Walk", num_envs=2, on_crash="truncate", **ENDLESS)
    vec.reset(seed=1)
    vec.step(np.zeros(2, np.int64))
    kill_worker(vec, 0)
    *_, truncated, infos = vec.step(np.zeros(2, np.int64))
    assert truncated.tolist() == [True, False]
    assert infos["agentenv"]["cause"][0] == "signal"
    before = vec.step(np.zeros(2, np.int64))[0]
    kill_worker(vec, 0)
    vec.step(np.zeros(2, np.int64))
    after = vec.step(np.zeros(2, np.int64))[0]
    assert before[0].tolist() != after[0].tolist(), "the same episode again"
    vec.close()


@pytest.mark.parametrize("mode", [*MODES, "Disabled"])
def test_used_up_restarts_quarantine_one_and_spare_the_others(mode: str) -> None:
    vec = AgentVectorEnv.from_env("frail:Walk", num_envs=3, max_restarts=2, restart_backoff_s=0.0, autoreset_mode=mode)
    vec.reset(seed=1)
    for number in range(3):
        kill_worker(vec, 1)
        _, rewards, _, truncated, infos = vec.step(np.zeros(3, np.int64))
        assert truncated.tolist() == [False, number == 2, False]
        if mode == "Disabled" and truncated.any():
            vec.reset(options={"reset_mask": truncated})
    assert rewards[1] == 0.0
    assert "restart" in infos["agentenv"]["reason"][1]
    assert infos["agentenv"]["quarantined"][1]
    for _ in range(3):
        observations, _, _, truncated, infos = vec.step(np.zeros(3, np.int64))
        assert (truncated[1], truncated[0]) == (True, False)
        assert vec.single_observation_space.contains(observations[1])
        if mode == "Disabled":
            vec.reset(options={"reset_mask": truncated})
    with pytest.raises(SandboxDied, match="quarantined"):
        vec.get_attr("steps")
    vec.close()


@pytest.mark.parametrize("mode", [*MODES, "Disabled"])
@pytest.mark.parametrize("env", ["frail:Lengthy", "frail:Lengthier"])
def test_who_observes_texts_is_quarantined_however_long_these_may_be(env: str, mode: str) -> None:
    vec = AgentVectorEnv.from_env(env, num_envs=2, max_restarts=0, autoreset_mode=mode)
    vec.reset(seed=1)
    kill_worker(vec, 1)
    for _ in range(3):
        observations, rewards, _, truncated, infos = vec.step(np.zeros(2, np.int64))
        assert (truncated.tolist(), rewards[1]) == ([False, True], 0.0)
        assert infos["agentenv"]["quarantined"][1]
        assert vec.single_observation_space.contains(observations[1])
        if mode == "SameStep":
            assert infos["_final_obs"].tolist() == [False, True]
            assert infos["final_obs"][1] == observations[1]
        if mode == "Disabled":
            vec.reset(options={"reset_mask": truncated})
    vec.close()


def test_who_is_quarantined_ends_its_episodes_as_all_do_in_the_same_step() -> None:
    vec = AgentVectorEnv.from_env("frail:Walk", num_envs=2, max_restarts=0, autoreset_mode="SameStep")
    vec.reset(seed=1)
    kill_worker(vec, 1)
    for _ in range(3):
        observations, *_, truncated, infos = vec.step(np.zeros(2, np.int64))
        assert truncated.tolist() == [False, True]
        assert infos["_final_obs"].tolist() == infos["_final_info"].tolist() == [False, True]
        assert infos["final_obs"][1].tolist() == observations[1].tolist()
        assert infos["final_info"]["agentenv"]["quarantined"][1]
        assert "restart" in infos["final_info"]["agentenv"]["reason"][1]
    vec.reset()
    vec.close()


def test_a_quarantine_raises_where_that_is_wanted_and_where_there_is_only_one() -> None:
    vec = AgentVectorEnv.from_env("frail:Walk", num_envs=2, max_restarts=0, on_quarantine="raise")
    vec.reset(seed=1)
    kill_worker(vec, 1)
    with pytest.raises(SandboxDied) as caught:
        vec.step(np.zeros(2, np.int64))
    assert (caught.value.index, caught.value.cause.kind) == (1, CauseKind.SIGNAL)
    assert "not restarted" in caught.value.__notes__[0]
    vec.reset(seed=1)
    vec.step(np.zeros(2, np.int64))
    vec.close()
    with AgentENV.from_env("frail:Walk", restart="never") as env:
        env.reset()
        kill_worker(env, 0)
        with pytest.raises(SandboxDied):
            env.step(0)


def test_saving_a_state_does_not_take_memory_that_is_not_there() -> None:
    with AgentENV.from_env(
        "frail:Filled", memory_mb=256, env_kwargs={"length": 99}, checkpoint_every=5, **ENDLESS
    ) as env:
        env.reset()
        for _ in range(40):
            *_, info = env.step(0)
            assert "agentenv" not in info
        assert env._fleet.recovery.recovered == 0
        assert "memory_mb" in env._fleet.recovery.bases.unfit[0]
        kill_worker(env, 0)
        *_, truncated, info = env.step(0)
        assert not truncated


def test_random_kills_of_anything_leave_nothing_behind() -> None:
    """Whoever is hit: a worker, a parked copy, a cell's first process, the zygote, bubblewrap; often twice in a row."""
    before = traces.take()
    keys = {"checkpoint_every": 15, "runtime": "bubblewrap"}
    expected = quiet("frail:Walk", **keys)
    rng = random.Random(17)
    vec = AgentVectorEnv.from_env("frail:Walk", num_envs=3, seed=SEED, **ENDLESS, **keys)

    def strike(step: int) -> None:
        if step % 4 == 0:
            cells = [sandbox.pid for sandbox in vec._fleet.sandboxes]
            inside = [child for cell in cells for child in children(cell)] if rng.random() < 0.9 else []
            for victim in rng.sample([*cells, *inside], 1 + (rng.random() < 0.3)):
                kill(victim)
            if rng.random() < 0.1:
                (kill_zygote if rng.random() < 0.5 else kill_outer)(vec, 0)

    def strike_softly(step: int) -> None:
        with contextlib.suppress(OSError, IndexError, ValueError):  # somebody of theirs was just killed
            strike(step)

    try:
        assert_same(play(vec, 200, strike_softly), expected)
        assert vec._fleet.recovery.recovered >= 20
    finally:
        vec.close()
    assert traces.take().left_since(before) == []


def test_finding_out_what_can_be_saved_leaves_no_trace_in_the_environment() -> None:
    """Neither in its files, nor by actions that its user would not take, nor by code of its own that never ends."""
    rewards = []
    for every in ("never", 3):
        with AgentENV.from_env("frail:Logging", checkpoint_every=every, seed=1) as env:
            env.reset()
            rewards.append([env.step(1)[1] for _ in range(20)])
    assert rewards[0] == rewards[1]
    with AgentENV.from_env("frail:Particular", checkpoint_every=3, seed=1, reset_timeout_s=30.0, **ENDLESS) as env:
        env.reset()
        for _ in range(20):
            *_, info = env.step(0)
            assert "agentenv" not in info
        assert env._fleet.recovery.recovered == 0
        assert "takes more than" in env._fleet.recovery.bases.unfit[0]
        kill_worker(env, 0)
        assert not env.step(0)[3]


@pytest.mark.parametrize(("env", "unfit"), [("frail:Walk", 0), ("frail:Forgetful", 0), ("frail:Native", 3)])
def test_one_of_each_kind_is_tried_and_the_others_go_by_it(env: str, unfit: int) -> None:
    """What is found is right for all of them: each is killed, with its parked copy, and comes back."""
    keys = {"checkpoint_every": 4}
    found, vec = disturbed(env, kill_cell, every=13, **keys)
    assert_same(found, quiet(env, **keys))
    assert len(vec._fleet.recovery.bases.unfit) == unfit
    if not unfit:
        assert {state.how for state in vec._fleet.recovery.bases.states if state is not None} == {"pickle"}


def test_what_is_kept_for_recovery_is_bounded_where_nothing_is_saved() -> None:
    env = AgentENV.from_env("frail:Walk", checkpoint_every="never", **ENDLESS)
    journal, bases = env._fleet.journal, env._fleet.recovery.bases
    bases._most_bytes = 50_000
    env.reset(seed=1)
    for _ in range(5_000):
        *_, terminated, truncated, _ = env.step(0)
        if terminated or truncated:
            env.reset()
        assert journal.nbytes <= 100_000
    assert journal.start > 0
    kill_worker(env, 0)
    *_, truncated, info = env.step(0)
    assert truncated, "nobody knows any more how it came there"
    assert info["agentenv"]["truncated"]
    env.close()


@pytest.mark.parametrize("on_crash", ["raise", "truncate"])
def test_little_is_kept_of_steps_where_nobody_is_brought_back(on_crash: str) -> None:
    with AgentENV.from_env("frail:Walk", on_crash=on_crash, **ENDLESS) as env:
        env.reset(seed=1)
        for _ in range(30_000):
            *_, terminated, truncated, _ = env.step(0)
            if terminated or truncated:
                env.reset()
        assert env._fleet.journal.position > 30_000
        assert env._fleet.journal.nbytes <= 2 << 20


def test_what_is_kept_for_recovery_takes_too_much_before_a_state_was_due() -> None:
    keys: dict[str, Any] = {"checkpoint_every": 1_000_000, "runtime": "bubblewrap"}
    seen: list[list[Any]] = []
    for killed in (False, True):
        with AgentENV.from_env("frail:Walk", seed=SEED, **ENDLESS, **keys) as env:
            env._fleet.recovery.bases._most_bytes = 20_000
            env.action_space.seed(1)
            seen.append([env.reset(seed=2)])
            for number in range(2_000):
                if killed and number % 700 == 600:
                    kill_cell(env, 0)
                seen[-1].append(env.step(env.action_space.sample()))
                if seen[-1][-1][2] or seen[-1][-1][3]:
                    seen[-1].append(env.reset())
            assert env._fleet.recovery.bases.states[0] is not None
            assert env._fleet.journal.nbytes <= 60_000
    assert_same(seen[1], seen[0])


@pytest.mark.parametrize("looked", ["rendered", "asked for an attribute"])
def test_what_looking_at_it_draws_is_drawn_again(looked: str) -> None:
    def play(killed: bool) -> Any:
        with AgentENV.from_env("frail:Filmed", seed=SEED, render_mode="rgb_array", checkpoint_every="never") as env:
            env.reset()
            env.step(0)
            if looked == "rendered":
                env.render()
            else:
                assert env.has_wrapper_attr("mood")
            if killed:
                kill_worker(env, 0)
            return env.step(0)

    exact.assert_same(play(True), play(False))


@pytest.mark.parametrize(("how", "deaths"), [("exit", 4), ("hang", 2)])
def test_who_dies_at_every_reset_is_soon_given_up(how: str, deaths: int, caplog: pytest.LogCaptureFixture) -> None:
    keys: dict[str, Any] = {"env_kwargs": {"how": how}, "restart_backoff_s": 0.0}
    if how == "hang":
        keys["reset_timeout_s"] = 0.5
    with AgentENV.from_env("frail:Stillborn", **keys) as env:
        with pytest.raises(SandboxDied if how == "exit" else StepTimeout) as caught:
            env.reset(seed=1)
        assert f"not restarted: it died {deaths} times at this very request" in "".join(caught.value.__notes__)
    assert caplog.text.count("env_crashed") == deaths
