"""Restoring that fails, or is followed by a death: nobody waits for ever, and nothing is lost but what must be."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from agentenv import AgentENV, AgentVectorEnv, SandboxDied, Snapshot, SnapshotError
from agentenv.errors import RuntimeUnavailable
from agentenv.fleet import moments
from agentenv.testing import exact, traces

pytestmark = pytest.mark.timeout(60)  # who waits for ever fails here

ENDLESS: dict[str, Any] = {"max_restarts": 100_000, "restart_backoff_s": 0.0}


@contextlib.contextmanager
def begun(env: str, steps: int = 7, **keys: Any) -> Iterator[AgentENV]:
    before = traces.take()
    made = AgentENV.from_env(env, **{**ENDLESS, **keys})
    try:
        made.reset(seed=3)
        future(made, steps)
        yield made
    finally:
        made.close()
    assert traces.take().left_since(before) == []


@contextlib.contextmanager
def vector(env: str, count: int = 2, **keys: Any) -> Iterator[AgentVectorEnv]:
    vec = AgentVectorEnv.from_env(env, count, **{**ENDLESS, **keys})
    try:
        vec.reset(seed=5)
        yield vec
    finally:
        vec.close()


def future(env: Any, steps: int) -> list[Any]:
    return [env.step(number % 3) for number in range(steps)]


def play(vec: AgentVectorEnv, steps: int) -> list[Any]:
    return [vec.step(np.full(vec.num_envs, number % 3)) for number in range(steps)]


def kill(env: Any, index: int = 0) -> None:
    worker = env._fleet.sandboxes[env._fleet.channel.group_of(index)]._worker
    if worker.pidfd >= 0:
        os.kill(worker.pid, signal.SIGKILL)
        worker.wait(10.0)


def as_replay(vec: AgentVectorEnv, kept: Snapshot | None, index: int) -> Snapshot:
    assert kept is not None
    moment = moments.take(vec._fleet, index, "replay")
    return replace(kept, how="replay", moment=moment)


def failing(monkeypatch: pytest.MonkeyPatch, of: Any, name: str) -> None:
    """Have a method fail once."""
    working, failed = getattr(of, name), []

    def fail_once(*args: Any, **keys: Any) -> Any:
        if failed:
            return working(*args, **keys)
        failed.append(name)
        raise RuntimeUnavailable("not now", "wait")

    monkeypatch.setattr(of, name, fail_once)


# -- one that does not get there


@pytest.mark.parametrize("cadence", [3, "never"])
def test_a_process_that_cannot_be_copied_leaves_it_where_it_was(monkeypatch: pytest.MonkeyPatch, cadence: Any) -> None:
    with begun("frail:Native", checkpoint_every=cadence) as env:
        snapshot = env.snapshot("fork")
        future(env, 5)
        (twin,) = env.fork()
        failing(monkeypatch, env._fleet.sandboxes[0], "serve_from")
        with pytest.raises(SnapshotError, match="the forked process cannot be copied: not now"):
            env.restore(snapshot)
        (after,) = env.fork()  # it is there again for whatever is done next
        expected = future(twin, 6)
        exact.assert_same(future(after, 6), expected)
        exact.assert_same(future(env, 6), expected)
        assert (env._fleet.recovery.recovered, twin._fleet.recovery.recovered) == (1, 0)
        for one in (twin, after, snapshot):
            one.close()


def test_what_cannot_be_built_again_leaves_it_where_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    with begun("frail:Walk", steps=2, seed=2) as other:
        elsewhere = other.snapshot("replay")  # built with another seed
    with begun("frail:Walk", seed=1) as env:
        snapshot = env.snapshot("replay")
        future(env, 5)
        (twin,) = env.fork()
        for moment in (snapshot, elsewhere):
            failing(monkeypatch, env._context.runtime, "create")
            with pytest.raises(RuntimeUnavailable, match="not now"):
                env.restore(moment)
            exact.assert_same(future(env, 3), future(twin, 3))
        assert env._fleet.recovery.recovered == 2
        env.restore(snapshot)
        twin.close()


def test_a_repetition_that_leads_elsewhere_is_left_again() -> None:
    with begun("frail:Walk") as env:
        snapshot = env.snapshot("replay")
        past = snapshot.moment.past
        assert past is not None
        wrong = replace(past, outcomes=past.outcomes + np.uint64(1))
        future(env, 5)
        (twin,) = env.fork()
        with pytest.raises(SnapshotError, match="does not lead there: it is not deterministic"):
            env.restore(replace(snapshot, moment=replace(snapshot.moment, past=wrong)))
        exact.assert_same(future(env, 6), future(twin, 6))
        twin.close()


def test_where_nobody_is_brought_back_it_raises_until_the_next_reset(monkeypatch: pytest.MonkeyPatch) -> None:
    with begun("frail:Walk", on_crash="raise") as env:
        snapshot = env.snapshot("replay")
        for end in ("step", "reset"):
            failing(monkeypatch, env._context.runtime, "create")
            with pytest.raises(RuntimeUnavailable, match="not now"):
                env.restore(snapshot)
            if end == "step":
                with pytest.raises(SandboxDied, match="could not be brought to a snapshot: not now"):
                    env.step(0)
            env.reset(seed=3)
            exact.assert_same(future(env, 7)[-1][0], snapshot.observation)


def test_who_is_restored_after_a_failure_forgets_it(monkeypatch: pytest.MonkeyPatch) -> None:
    with begun("frail:Walk") as env:
        snapshot = env.snapshot("replay")
        expected = future(env, 6)
        failing(monkeypatch, env._context.runtime, "create")
        with pytest.raises(RuntimeUnavailable, match="not now"):
            env.restore(snapshot)
        env.restore(snapshot)
        exact.assert_same(future(env, 6), expected)
        assert env._fleet.recovery.recovered == 0


def test_what_was_given_up_and_is_restored_serves_again() -> None:
    with vector("frail:Walk", on_crash="raise") as vec:
        play(vec, 4)
        kept = vec.snapshot()
        again = [as_replay(vec, one, index) for index, one in enumerate(kept)]
        expected = play(vec, 3)
        kill(vec, 1)
        with pytest.raises(SandboxDied):
            vec.step(np.zeros(2, np.int64))
        vec.restore(again)
        exact.assert_same(play(vec, 3), expected)


# -- what is refused


def test_nobody_is_changed_where_one_cannot_go_back() -> None:
    with vector("frail:Walk", 4, envs_per_sandbox=2) as vec:
        play(vec, 4)
        kept = vec.snapshot()
        kept[3] = as_replay(vec, kept[3], 3)
        last = play(vec, 5)[-1][0]
        with pytest.raises(SnapshotError, match="env-3: shares its sandbox with others"):
            vec.restore(kept)
        exact.assert_same(vec.restore([None] * 4), last)
        assert vec.get_attr("steps") == (9, 9, 9, 9)


@pytest.mark.parametrize("mode", ["NextStep", "Disabled"])
def test_what_is_quarantined_can_be_neither_kept_nor_brought_back(mode: str) -> None:
    with vector("frail:Walk", 3, max_restarts=0, autoreset_mode=mode) as vec:
        play(vec, 4)
        kept = vec.snapshot()
        again = [as_replay(vec, one, index) for index, one in enumerate(kept)]
        kill(vec, 1)
        _, _, _, truncated, _ = vec.step(np.zeros(3, np.int64))
        assert truncated.tolist() == [False, True, False]
        for act in (lambda: vec.restore(kept), lambda: vec.restore(again), vec.snapshot):
            with pytest.raises(SnapshotError, match=r"env-1: is quarantined \(.*restart.*\).*leave it out by a mask"):
                act()
        assert [None if one is None else one.how for one in vec.snapshot(~truncated)] == ["pickle", None, "pickle"]
        vec.restore(again, ~truncated)
        rows = vec.broadcast(0)
        assert rows[0].tolist() == rows[2].tolist() != rows[1].tolist()
        if mode == "Disabled":
            vec.reset(options={"reset_mask": truncated})
        for _ in range(2):
            rows, _, _, truncated, _ = vec.step(np.ones(3, np.int64))
            assert truncated.tolist() == [False, True, False]
            assert rows[0].tolist() == rows[2].tolist()
            if mode == "Disabled":
                vec.reset(options={"reset_mask": truncated})


# -- some get there, and some do not


def spoilt(kept: Snapshot | None) -> Snapshot:
    assert kept is not None
    return replace(kept, moment=replace(kept.moment, data=b"junk"))


@pytest.mark.parametrize("how", ["pickle", "replay"])
@pytest.mark.parametrize("strike", [None, 0, 1])
def test_who_got_there_stays_there_whoever_did_not(
    monkeypatch: pytest.MonkeyPatch, strike: int | None, how: str
) -> None:
    keys = {"autoreset_mode": "Disabled", "env_kwargs": {"length": 9}}
    with vector("frail:Walk", 3, checkpoint_every=3 if how == "pickle" else "never", **keys) as vec:
        play(vec, 4)
        kept = vec.snapshot()
        bad = spoilt(kept[1]) if how == "pickle" else as_replay(vec, kept[1], 1)
        expected = play(vec, 5)
        kept[1] = bad
        if how == "replay":
            failing(monkeypatch, vec._context.runtime, "create")
        with pytest.raises((SnapshotError, RuntimeUnavailable), match=r"env-1: the saved state cannot be|not now"):
            vec.restore(kept)
        assert vec._ended.tolist() == [False, True, False]
        rows = vec.restore([None] * 3)
        exact.assert_same(rows[1], expected[-1][0][1])
        for index in (0, 2):
            exact.assert_same(rows[index], kept[index].observation)  # type: ignore[union-attr]  # it was kept
        if strike is not None:
            kill(vec, strike)
        vec.reset(seed=5, options={"reset_mask": np.array([False, True, False])})
        seen = play(vec, 4)
        for row in (0, 2):
            for one, wanted in zip(seen, expected, strict=False):
                exact.assert_same(one[0][row], wanted[0][row])


def test_who_took_on_its_state_stays_there_where_another_is_given_up() -> None:
    with vector("frail:Walk", 2, on_crash="raise") as vec:
        play(vec, 4)
        kept = vec.snapshot()
        expected = play(vec, 3)
        kill(vec, 1)
        with pytest.raises(SandboxDied, match="index 1"):
            vec.restore(kept)
        assert vec._fleet.recovery.bases.states[0] is not None
        vec.reset(options={"reset_mask": np.array([False, True])})
        for one, wanted in zip(play(vec, 3), expected, strict=True):
            exact.assert_same(one[0][0], wanted[0][0])


def test_an_answer_beside_one_that_says_no_is_read() -> None:
    """Both say no, at such length that it does not fit into shared memory."""
    with vector("frail:Refusing", 2, envs_per_sandbox=2) as vec:
        play(vec, 4)
        kept = vec.snapshot()
        vec.set_attr("refuses", True)
        with pytest.raises(SnapshotError, match="env-0: the saved state cannot be taken on"):
            vec.restore(kept)
        assert [len(said) for said in vec.call("say", 40_000)] == [40_000, 40_000]


@pytest.mark.parametrize("who", [0, 1])
def test_who_is_quarantined_over_it_is_not_taken_for_restored(who: int) -> None:
    with vector("frail:Walk", 2, max_restarts=0) as vec:
        play(vec, 4)
        kept = vec.snapshot()
        expected = play(vec, 1)[0][0]
        kill(vec, who)
        with pytest.raises(SnapshotError, match=f"env-{who}: is quarantined"):
            vec.restore(kept)
        rows, _, _, truncated, _ = vec.step(np.zeros(2, np.int64))
        assert truncated.tolist() == [who == 0, who == 1]
        exact.assert_same(rows[1 - who], expected[1 - who])
        assert vec._fleet.recovery.bases.states[1 - who] is not None


# -- answers


def test_a_state_that_cannot_be_sent_leaves_the_next_one_read() -> None:
    """Neither fits into shared memory; what is left on the socket of the two would be taken for a later answer."""
    seen = []
    for every in (3, "never"):
        keys = {"env": "frail:Bulky", "max_message_mb": 1, "checkpoint_every": every}
        pair = [{"id": name, "env_kwargs": {"kib": kib}, **keys} for name, kib in (("a", 1500), ("b", 700))]
        vec = AgentVectorEnv({"global": {"seed": 1, "envs_per_sandbox": 2}, "environments": pair})
        try:
            vec.reset()
            seen.append(play(vec, 6))
            bases = vec._fleet.recovery.bases
            assert (vec._fleet.recovery.recovered, bases.states) == (0, [None, None])
        finally:
            vec.close()
    exact.assert_same(seen[0], seen[1])


def test_a_state_that_cannot_be_sent_is_kept_another_way() -> None:
    with begun("frail:Bulky", env_kwargs={"kib": 1500}, max_message_mb=1) as env:
        snapshot = env.snapshot()
        assert (snapshot.how, len(snapshot.reasons)) == ("fork", 1)
        assert "at most 1 MB are accepted" in snapshot.reasons[0]
        expected = future(env, 6)
        env.restore(snapshot)
        exact.assert_same(future(env, 6), expected)
        snapshot.close()


# -- a death before anything was saved


@pytest.mark.parametrize("cadence", [4, "never"])
@pytest.mark.parametrize("env", ["frail:Native", "frail:Walk"])
@pytest.mark.parametrize(("count", "seed"), [(1, None), (1, 5), (2, None), (2, 5)])
def test_a_fork_that_is_killed_at_once_comes_back_exactly(env: str, cadence: Any, count: int, seed: Any) -> None:
    with begun(env, 9, checkpoint_every=cadence) as made:
        twins, forks = made.fork(count, reseed=seed), made.fork(count, reseed=seed)
        for twin, fork in zip(twins, forks, strict=True):
            expected = future(twin, 8)
            (grandchild,) = fork.fork()
            for one in (fork, grandchild):
                kill(one)
                exact.assert_same(one.step(0), expected[0])
                kill(one)
                exact.assert_same([one.step(number % 3) for number in range(1, 8)], expected[1:])
                assert one._fleet.recovery.recovered == 2
            grandchild.close()
        for one in (*twins, *forks):
            one.close()


@pytest.mark.parametrize("env", ["frail:Native", "frail:Walk"])
def test_a_fork_lives_on_where_all_of_its_cell_dies(env: str) -> None:
    with begun(env, 9, checkpoint_every=4) as made:
        (twin,), (fork,) = made.fork(reseed=5), made.fork(reseed=5)
        expected = future(twin, 8)
        os.kill(made._fleet.sandboxes[0].pid, signal.SIGKILL)
        exact.assert_same(future(fork, 8), expected)
        assert fork._fleet.sandboxes[0].pid != made._fleet.sandboxes[0].pid
        twin.close()
        fork.close()


def test_a_fork_of_what_has_run_too_long_is_saved_before_it_is_asked() -> None:
    with begun("frail:Native", checkpoint_every=1000) as made:
        made._fleet.recovery.bases.births[0] = None  # as it is when too much has happened
        twin, fork = made.fork(2)
        expected = future(twin, 8)
        for number in range(8):
            if number in (1, 6):
                kill(fork)
            exact.assert_same(fork.step(number % 3), expected[number])
        assert fork._fleet.recovery.recovered == 2
        twin.close()
        fork.close()


def test_what_a_fork_with_streams_of_its_own_did_can_be_done_again() -> None:
    with begun("frail:Native") as made:
        (fork,) = made.fork(reseed=5)
        future(fork, 4)
        snapshot = fork.snapshot("replay")
        expected = future(fork, 6)
        exact.assert_same(fork.restore(snapshot), snapshot.observation)
        exact.assert_same(future(fork, 6), expected)
        with AgentENV.from_snapshot(snapshot) as other:
            exact.assert_same(future(other, 6), expected)
        fork.close()


def test_what_a_fork_has_borrowed_is_its_parents_to_end() -> None:
    with begun("frail:Native", 6, checkpoint_every=3) as made:
        twin, fork = made.fork(2)
        expected = future(twin, 8)
        bases = made._fleet.recovery.bases
        bases.births[0] = fork._fleet.recovery.bases.births[0] = None
        kill(fork)
        exact.assert_same(fork.step(0), expected[0])  # by the copy its parent has parked
        fork.close()
        assert bases.copies[0].parked.alive()
        exact.assert_same(future(made, 8), expected)
        twin.close()


@pytest.mark.parametrize("seed", [None, 9])
@pytest.mark.parametrize("cadence", [4, "never"])
@pytest.mark.parametrize("env", ["frail:Native", "frail:Walk"])
def test_who_went_back_to_a_process_and_is_killed_at_once_comes_back(env: str, cadence: Any, seed: Any) -> None:
    with begun(env, checkpoint_every=cadence) as made:
        snapshot = made.snapshot("fork")
        made.restore(snapshot, reseed=seed)
        expected = future(made, 9)
        for strikes in ((0,), (0, 1), (3, 8)):
            made.restore(snapshot, reseed=seed)
            for number in range(9):
                if number in strikes:
                    kill(made)
                exact.assert_same(made.step(number % 3), expected[number])
        assert made._fleet.recovery.recovered == 5
        made.restore(snapshot)  # it is there still
        snapshot.close()


def test_what_was_gone_back_to_is_let_go_of_once_something_was_saved() -> None:
    with begun("frail:Walk", checkpoint_every=4) as made:
        snapshot = made.snapshot("fork")
        made.restore(snapshot)
        expected = future(made, 9)
        made.restore(snapshot)
        seen = future(made, 1)
        assert not made._fleet.recovery.bases.copies[0].borrowed
        snapshot.close()
        kill(made)
        seen += [made.step(number % 3) for number in range(1, 9)]
        exact.assert_same(seen, expected)


def test_what_is_kept_since_a_process_was_gone_back_to_is_bounded() -> None:
    with begun("frail:Native", checkpoint_every="never") as made:
        journal, bases = made._fleet.journal, made._fleet.recovery.bases
        bases._most_bytes = 20_000
        snapshot = made.snapshot("fork")
        made.restore(snapshot)
        for _ in range(1_500):
            *_, terminated, truncated, _ = made.step(0)
            if terminated or truncated:
                made.reset()
            assert journal.nbytes <= 60_000
        kill(made)
        *_, info = made.step(0)
        assert "too much has happened" in info["agentenv"]["truncated"]
        snapshot.close()
