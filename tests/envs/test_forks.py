"""Forks: copies of a running environment that go on by themselves, and live, die and end as independently as can be."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from agentenv import AgentENV, SandboxDied, SnapshotError
from agentenv.errors import ResourceLimit
from agentenv.testing import exact, traces

ENDLESS: dict[str, Any] = {"max_restarts": 100_000, "restart_backoff_s": 0.0}


def future(env: Any, steps: int = 45) -> list[Any]:
    """All that comes out, over the end of an episode."""
    seen: list[Any] = []
    for number in range(steps):
        seen.append(env.step(number % 3))
        if seen[-1][2] or seen[-1][3]:
            seen.append(env.reset())
    return seen


@contextlib.contextmanager
def begun(env: str = "frail:Native", steps: int = 7, **keys: Any) -> Iterator[AgentENV]:
    """An environment in the middle of an episode; when it is closed, nothing may be left of it or its forks."""
    before = traces.take()
    made = AgentENV.from_env(env, **{**ENDLESS, **keys})
    try:
        made.reset(seed=3)
        for number in range(steps):
            made.step(number % 2)
        yield made
    finally:
        made.close()
    assert traces.take().left_since(before) == []


def close(envs: list[AgentENV]) -> None:
    for env in envs:
        env.close()


def counted_down_to(expected: int) -> int:
    """How many processes there are below this one, once those that were just killed are reaped."""
    ends = time.monotonic() + 20.0
    while (found := len(traces.descendants(os.getpid()))) > expected and time.monotonic() < ends:
        threading.Event().wait(0.01)
    return found


def worker(env: AgentENV) -> int:
    return int(env._fleet.sandboxes[0]._worker.pid)  # type: ignore[attr-defined]  # a cell's


def kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)


@pytest.mark.parametrize("env", ["frail:Native", "frail:Walk", "frail:Stateful", "CartPole-v1"])
def test_a_fork_has_the_same_future(env: str) -> None:
    with begun("frail:Walk" if env == "CartPole-v1" else env) as made:
        forks = made.fork(3)
        futures = [future(one) for one in (made, *forks)]
        for found in futures[1:]:
            exact.assert_same(found, futures[0])
        assert len({worker(one) for one in (made, *forks)}) == 4
        assert len({one.env_id for one in (made, *forks)}) == 4
        close(forks)


def test_forks_go_their_own_ways() -> None:
    with begun() as made:
        one, other = made.fork(2)
        one.step(2)
        one.step(2)
        expected = future(made, 10)
        exact.assert_same(future(other, 10), expected)
        assert one.get_attr("steps") == 9
        close([one, other])


@pytest.mark.parametrize("env", ["frail:Native", "frail:Busy"])
def test_seeds_make_futures_of_their_own(env: str) -> None:
    if env == "frail:Busy":
        with begun(env) as made, pytest.raises(SnapshotError, match="cannot be given new random streams"):
            made.fork(reseed=5)
        return
    with begun(env) as made:
        found: dict[Any, list[list[str]]] = {}
        for reseed in (5, 5, 6, "spawn", "spawn"):
            forks = made.fork(3, reseed=reseed)
            rows = [json.dumps(fork.step(1)[0].tolist()) for fork in forks]
            assert len(set(rows)) == 3, "copies share a stream"
            found.setdefault(reseed, []).append(rows)
            close(forks)
        assert found[5][0] == found[5][1]
        assert set(found[5][0]).isdisjoint(found[6][0])
        assert set(found["spawn"][0]).isdisjoint(found["spawn"][1]), "the same forks a second time"


def test_a_run_with_a_seed_spawns_the_same_again() -> None:
    found = []
    for _ in range(2):
        with begun(seed=9) as made:
            forks = made.fork(2, reseed="spawn") + made.fork(1, reseed="spawn")
            found.append([fork.step(1)[0].tolist() for fork in forks])
            close(forks)
    assert found[0] == found[1]
    assert len({json.dumps(row) for row in found[0]}) == 3


def test_a_fork_of_a_fork_of_a_fork() -> None:
    with begun() as made:
        (child,) = made.fork()
        child.step(1)
        (grandchild,) = child.fork()
        grandchild.step(2)
        (last,) = grandchild.fork()
        expected = future(grandchild)
        exact.assert_same(future(last), expected)
        child.step(2)
        exact.assert_same(future(child), expected)
        close([child, grandchild, last])


@pytest.mark.parametrize("order", ["parent", "child"])
def test_either_outlives_the_other(order: str) -> None:
    with begun() as made:
        (child,) = made.fork()
        (twin,) = made.fork()
        expected = future(twin)
        twin.close()
        first, second = (made, child) if order == "parent" else (child, made)
        first.close()
        exact.assert_same(future(second), expected)
        second.reset(seed=1)
        second.step(0)
        (another,) = second.fork()
        exact.assert_same(future(another, 5), future(second, 5))
        close([second, another])


def test_processes_are_counted_down_to_none() -> None:
    before = traces.descendants(os.getpid())
    with begun() as made:
        alone = len(traces.descendants(os.getpid()))
        forks = made.fork(4)
        assert counted_down_to(alone + 4) == alone + 4  # what they were copied from is gone as well
        close(forks[:2])
        assert len(traces.descendants(os.getpid())) <= alone + 4
        pids = [worker(fork) for fork in forks[2:]]
        close(forks[2:])
        assert counted_down_to(alone) == alone
        assert not traces.descendants(os.getpid()) & set(pids)
    assert traces.descendants(os.getpid()) <= before


def test_the_last_to_be_closed_takes_all_with_it() -> None:
    before = traces.take()
    made = AgentENV.from_env("frail:Native", **ENDLESS)
    made.reset(seed=1)
    forks = made.fork(2)
    made.close()
    forks[0].close()
    assert traces.take().left_since(before) != []
    forks[1].close()
    forks[1].close()
    assert traces.take().left_since(before) == []


@pytest.mark.parametrize("steps", [0, 12])
@pytest.mark.parametrize("env", ["frail:Native", "frail:Walk"])
def test_a_killed_fork_comes_back(env: str, steps: int) -> None:
    with begun(env, checkpoint_every=5) as made:
        child, twin = made.fork(2)
        expected = future(twin)
        seen = future(child, steps)
        kill(worker(child))
        seen.append(child.step(steps % 3))
        assert "agentenv" not in seen[-1][4]
        exact.assert_same(seen, expected[: len(seen)])
        assert child._fleet.recovery.recovered == 1
        child.step(0)
        exact.assert_same(future(made, 9), expected[:9])
        close([child, twin])


def test_the_death_of_one_does_not_touch_the_others() -> None:
    with begun(checkpoint_every=5) as made:
        forks = made.fork(3)
        expected = future(forks[2], 20)
        kill(worker(made))
        kill(worker(forks[0]))
        exact.assert_same(future(forks[1], 20), expected)
        exact.assert_same(future(made, 20), expected)
        close(forks)


def test_who_begins_anew_does_so_beside_its_forks() -> None:
    """Nothing is saved, so the cell goes with the one it was made for; each then begins anew in one of its own."""
    with begun(on_crash="truncate") as made:
        (child,) = made.fork()
        for _ in range(2):
            kill(worker(made))
            *_, truncated, info = made.step(0)
            assert (truncated, info["agentenv"]["cause"]) == (True, "signal")
            made.reset(seed=1)
        *_, truncated, info = child.step(0)
        assert (truncated, info["agentenv"]["cause"]) == (True, "sandbox_lost")
        exact.assert_same(child.reset(seed=1), made.reset(seed=1))
        made.step(0)
        child.step(0)
        child.close()


def test_the_death_of_the_cell_is_survived_by_who_has_a_state() -> None:
    """All of them live in one cell: when that is killed, each gets a sandbox of its own."""
    with begun("frail:Walk", checkpoint_every=3) as made:
        child, twin = made.fork(2)
        expected = future(twin, 30)
        seen = [future(made, 6), future(child, 6)]
        kill(made._fleet.sandboxes[0].pid)
        for env, found in zip((made, child), seen, strict=True):
            for number in range(6, 30):
                found.append(env.step(number % 3))
            exact.assert_same(found, expected[:30])
            assert env._fleet.recovery.recovered == 1
        assert made._fleet.sandboxes[0].pid != child._fleet.sandboxes[0].pid
        close([child, twin])


def test_where_nothing_is_recovered_a_killed_fork_raises() -> None:
    with begun(on_crash="raise") as made:
        (child,) = made.fork()
        kill(worker(child))
        with pytest.raises(SandboxDied):
            child.step(0)
        child.reset(seed=5)
        exact.assert_same(child.step(1)[2:4], (False, False))
        made.step(0)
        child.close()


def test_a_fork_of_what_cannot_be_copied_gets_a_sandbox_of_its_own() -> None:
    with begun("frail:Threaded") as made:
        (child,) = made.fork()
        assert child._fleet.sandboxes[0].pid != made._fleet.sandboxes[0].pid
        exact.assert_same(future(child), future(made))
        child.close()


def test_a_fork_of_what_can_be_neither_copied_nor_saved_says_why() -> None:
    with begun("frail:Threaded", checkpoint_every=4) as made:
        future(made, 10)
        made._fleet.recovery.bases.births[0] = None  # as it is when too much has happened
        with pytest.raises(SnapshotError, match=r"cannot be kept: .*2 threads.*not all known any more"):
            made.fork()
        made.step(0)


@pytest.mark.parametrize("env", ["frail:Native", "frail:Walk"])
def test_snapshots_and_forks_go_together(env: str) -> None:
    with begun(env) as made:
        snapshot = made.snapshot()
        (child,) = made.fork()
        future(child, 4)
        exact.assert_same(child.restore(snapshot), snapshot.observation)
        exact.assert_same(future(child, 20), future(made, 20))
        exact.assert_same(child.snapshot("fork" if env == "frail:Native" else None).how, snapshot.how)
        made.restore(snapshot)
        (later,) = made.fork()
        exact.assert_same(later.snapshot().observation, snapshot.observation)
        exact.assert_same(future(later, 20), future(made, 20))
        snapshot.close()
        close([child, later])


def test_observations_of_variable_size_are_copied_as_well() -> None:
    with AgentENV.from_env("frail:Reading") as made:
        made.reset(seed=1)
        last = made.step({"move": 1, "say": "hi"})[0]
        (child,) = made.fork()
        exact.assert_same(child.snapshot().observation, last)
        action = {"move": 2, "say": "you"}
        exact.assert_same(child.step(action), made.step(action))
        child.close()


def test_spaces_and_descriptions_are_its_own() -> None:
    with begun("CartPole-v1", steps=1) as made:
        made.action_space.seed(5)
        (child,) = made.fork()
        assert child.action_space == made.action_space
        assert child.observation_space == made.observation_space
        drawn = [int(made.action_space.sample()) for _ in range(20)]
        assert [int(child.action_space.sample()) for _ in range(20)] == drawn, "it goes on as the parent's would have"
        assert child.spec is made.spec
        assert child.metadata == made.metadata
        child.close()


def test_a_forgotten_snapshot_ends_its_process() -> None:
    with begun() as made:
        before, processes = traces.take(), len(traces.descendants(os.getpid()))
        snapshot = made.snapshot()
        assert snapshot.how == "fork"
        parked = weakref.ref(snapshot.moment.parked)
        pid = snapshot.moment.parked.worker.pid  # type: ignore[union-attr]  # it is a fork
        del snapshot
        assert parked() is None
        assert counted_down_to(processes) == processes, "it lives on"
        assert pid not in traces.descendants(os.getpid())
        assert len(traces.take().descriptors) == len(before.descriptors)


def test_more_copies_than_its_processes_may_be_are_refused_at_once() -> None:
    """So many that what nobody reads would fill a socket."""
    before = traces.take()
    with AgentENV.from_env("CartPole-v1", pids=16) as made:
        made.reset(seed=1)
        with pytest.raises(ResourceLimit, match="raise pids"):
            made.fork(320)
        assert made.step(1)[0] is not None
        close(made.fork(2))
    assert traces.take().left_since(before) == []


@pytest.mark.parametrize("n", [0, -1, True, "3", 2.0, None])
def test_wrong_numbers_are_refused(n: Any) -> None:
    with begun("CartPole-v1", steps=1) as made:
        with pytest.raises(ValueError, match=r"fork\(n\): expected a number of copies of at least 1, got "):
            made.fork(n)
        made.step(0)


@pytest.mark.parametrize("reseed", [-1, True, 1.5, "each"])
def test_wrong_seeds_are_refused(reseed: Any) -> None:
    with begun("CartPole-v1", steps=1) as made:
        with pytest.raises(ValueError, match='reseed: expected None, "spawn" or an int'):
            made.fork(2, reseed=reseed)
        made.step(0)


_ABANDON = textwrap.dedent(
    """
    import os, sys
    sys.path.insert(0, sys.argv[1])
    from agentenv import AgentENV
    from agentenv.testing import traces
    env = AgentENV.from_env("frail:Native")
    env.reset(seed=1)
    forks = env.fork(2) + env.fork(1)
    kept = env.snapshot()
    forks[0].fork()
    spaces = traces.pid_namespaces(traces.descendants(os.getpid()))
    print(*spaces, flush=True)
    if sys.argv[2] == "raise":
        raise SystemExit(5)
    os.kill(os.getpid(), 9)
    """
)


@pytest.mark.parametrize("end", ["raise", "kill"])
def test_whoever_made_them_may_end_without_closing(end: str) -> None:
    here = str(Path(__file__).resolve().parents[1])
    done = subprocess.run(
        [sys.executable, "-c", _ABANDON, here, end], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == (5 if end == "raise" else -9), done.stderr
    namespaces = frozenset(done.stdout.split())
    assert namespaces
    assert traces.inhabitants(namespaces, within_s=20.0) == []


def test_many_forks_one_after_the_other_leave_no_descriptor() -> None:
    with begun() as made:
        close(made.fork(1))
        before, processes = traces.take(), len(traces.descendants(os.getpid()))
        for number in range(20):
            (child,) = made.fork(reseed=number)
            assert np.isfinite(child.step(0)[0]).all()
            child.close()
            snapshot = made.snapshot("fork")
            made.restore(snapshot)
            snapshot.close()
        after = traces.take()
        assert len(after.descriptors) == len(before.descriptors)
        assert counted_down_to(processes) <= processes
