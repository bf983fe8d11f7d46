"""Machines by QEMU, emulated where there is no KVM: the published suites, trimmed to what differs elsewhere."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
import pytest

from agentenv import AgentENV, AgentVectorEnv
from agentenv.errors import CauseKind
from agentenv.testing import check_parity, check_single_parity, exact, traces
from agentenv.testing.attacks import ATTACKS, Arena
from agentenv.testing.runtimes import RuntimeSuite
from machines_ground import need_machines

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.timeout(300)]

QEMU: dict[str, Any] = {"runtime": "qemu", "start_timeout_s": 120.0, "memory_mb": 256}
# What is done to the wall, to the agent and to what it carries; the rest meets the same cell as elsewhere.
_DEEDS = (
    "die_by_SIGKILL", "exit_3", "raise", "hang", "stop_itself", "allocate", "fill_shm", "fork_bomb", "leave_orphans",
    "garbage_everywhere", "silent_answer", "steal_rings", "close_everything", "fill_control", "forged_exit",
    "promise_nothing_sent", "info_of_80_mb",
)  # fmt: skip


@pytest.fixture(scope="module", autouse=True)
def machines() -> None:
    """The timer of pytest-timeout starts with the first test: what has to be fetched counts for it."""
    need_machines()


class TestQemu(RuntimeSuite):
    """Few of them."""

    settings: ClassVar = {"runtime": "qemu"}
    many = 4
    cycles = 4
    tight_mb = 192
    start_s = 20.0
    own_processes = False


@pytest.mark.parametrize(("name", "mode"), [("CartPole-v1", "NextStep"), ("agentenv/GridWorld-v0", "SameStep")])
def test_a_vector_equals_sync_vector_env(name: str, mode: str) -> None:
    keys = {"env_kwargs": {"slip": 0.3, "walls": 4}} if "Grid" in name else {}
    parity = check_parity(name, autoreset_mode=mode, seed=11, num_envs=2, steps=60, max_episode_steps=9, **keys, **QEMU)
    assert parity.episodes >= 6


def test_a_single_environment_equals_the_bare_one() -> None:
    assert check_single_parity("Blackjack-v1", seed=12, steps=60, **QEMU).episodes >= 3


def _played(kill: Any) -> tuple[list[Any], int]:
    with closing(AgentVectorEnv.from_env("CartPole-v1", num_envs=2, seed=5, max_restarts=100, **QEMU)) as vec:
        seen: list[Any] = [vec.reset(seed=1)[0].copy()]
        vec.action_space.seed(3)
        for step in range(60):
            kill(vec, step)
            observations, rewards, terminated, truncated, infos = vec.step(vec.action_space.sample())
            seen.append((observations.copy(), rewards.copy(), terminated.copy(), truncated.copy(), infos))
        return seen, vec._fleet.recovery.recovered


def test_machines_that_are_killed_come_back_and_lose_nothing() -> None:
    before = traces.take()
    quiet, _ = _played(lambda vec, step: None)

    def kill(vec: Any, step: int) -> None:
        if step in (5, 31):
            os.kill(vec._fleet.sandboxes[step % 2].pid, signal.SIGKILL)
        if step == 45:
            os.kill(vec._context.runtime._relay._process.pid, signal.SIGKILL)  # takes both with it

    disturbed, recovered = _played(kill)
    exact.assert_same(disturbed, quiet)
    assert recovered == 4
    assert traces.take().left_since(before) == []


def test_a_moment_can_be_kept_gone_back_to_and_forked() -> None:
    with AgentENV.from_env("CartPole-v1", **QEMU) as env:
        env.reset(seed=1)
        env.step(1)
        snapshot = env.snapshot()
        expected = [env.step(0) for _ in range(5)]
        env.restore(snapshot)
        (child,) = env.fork(1)
        exact.assert_same([env.step(0) for _ in range(5)], expected)
        with closing(child):
            exact.assert_same([child.step(0) for _ in range(5)], expected)


def test_machines_from_one_snapshot_are_not_the_same_one() -> None:
    with closing(AgentVectorEnv.from_env("frail:Itself", num_envs=2, **QEMU)) as vec:
        vec.reset(seed=1)
        (one, other) = vec.call("who")
    assert one["host"] == "env-0"
    assert other["host"] == "env-1"
    assert one["machine"] != other["machine"]
    assert one["random"] != other["random"]
    assert abs(one["time"] - other["time"]) < 30
    assert one["user"] != 0


@pytest.fixture(scope="module")
def arena() -> Iterator[Arena]:
    before = traces.take()
    arena = Arena("qemu", environments=[{"step_timeout_s": 8.0, "start_timeout_s": 120.0, "memory_mb": 256}] * 3)
    try:
        yield arena
    finally:
        arena.close()
    assert traces.take().left_since(before) == []


@pytest.mark.parametrize("name", _DEEDS)
def test_attacks(arena: Arena, name: str) -> None:
    attack = next(attack for attack in ATTACKS if attack.name == name and attack.moment in ("step", "reset"))
    if name == "stop_itself":
        # From outside one cannot see what is stopped inside: it is late like any other.
        attack = replace(attack, expected=frozenset({CauseKind.TIMEOUT}))
    if name == "steal_rings":
        # The agent never waits for a ring, so there is nothing to read where none is left.
        attack = replace(attack, expected=frozenset({CauseKind.EXCEPTION}))
    arena.run(attack)


def test_what_a_machine_adds_in_memory_is_what_it_changes() -> None:
    with closing(AgentVectorEnv.from_env("CartPole-v1", num_envs=2, **QEMU)) as vec:
        vec.reset(seed=1)
        vec.step(np.zeros(2, np.int64))
        usages = vec._fleet.usage()
    assert all(usage is not None and usage.memory_bytes < 200 << 20 for usage in usages)
