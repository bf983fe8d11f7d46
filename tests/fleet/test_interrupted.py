"""An exception out of a wait, such as Ctrl-C's: what was asked is a part of the past all the same."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

import numpy as np
import pytest

from agentenv import AgentENV, AgentVectorEnv, SandboxDied
from agentenv.channel.shm import ShmChannel
from agentenv.fleet.pacing import Pace
from agentenv.fleet.recovery import Recovery
from agentenv.fleet.revival import Revival
from agentenv.testing import exact
from agentenv.testing.leftovers import becomes_true
from agentenv.wire.slot import Flag


class _Interrupt(BaseException):
    """As Ctrl-C."""


@contextmanager
def _interrupted(monkeypatch: pytest.MonkeyPatch, owner: type, name: str) -> Iterator[None]:
    """The next call of a method raises at once, as the handler of a signal would, and calls after it do not."""
    with monkeypatch.context() as patch:

        def interrupt(*_: Any, **__: Any) -> None:
            patch.undo()
            raise _Interrupt

        patch.setattr(owner, name, interrupt)
        with pytest.raises(_Interrupt):
            yield


def _kill(env: Any, number: int = 0) -> None:
    sandbox = env._fleet.sandboxes[number]
    os.kill(sandbox._worker.pid, signal.SIGKILL)
    assert becomes_true(lambda: not sandbox.alive(), 10)


def _play(interrupt: Any, kill: Any, **keys: Any) -> list[Any]:
    """Four steps, the second of which is not seen to its end, and what the others return."""
    with AgentENV.from_env("frail:Walk", seed=3, **keys) as env:
        env.reset()
        found = [env.step(1)]
        interrupt(env)
        found += [env.step(2)]
        kill(env)
        return [*found, env.step(0)]


@pytest.mark.parametrize("every", ["never", 1000])
def test_a_step_that_was_interrupted_was_taken(every: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(env: AgentENV) -> None:
        with _interrupted(monkeypatch, ShmChannel, "wait"):
            env.step(1)

    expected = _play(lambda env: env.step(1), lambda env: None, checkpoint_every=every)
    exact.assert_same(_play(interrupt, _kill, checkpoint_every=every), expected)


@pytest.mark.parametrize("where", ["_put_in_place", "_load", "_replay", "cut"])
def test_who_was_half_brought_back_is_brought_back_wholly(where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(env: AgentENV) -> None:
        env._fleet.recovery.checkpoint()
        _kill(env)
        with _interrupted(monkeypatch, Revival, where):
            env.step(1)

    expected = _play(lambda env: env.step(1), lambda env: None)
    exact.assert_same(_play(interrupt, _kill, checkpoint_every=1000), expected)


def test_a_request_that_was_noted_and_never_sent_was_not_made(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(env: AgentENV) -> None:
        env._fleet.recovery.bases.due = True
        with _interrupted(monkeypatch, Recovery, "checkpoint"):
            env.reset(seed=1)
        env._fleet.recovery.bases.due = False  # so that all is done again from the beginning
        env._fleet.set_pace(Pace.EAGER, 10)  # of which nothing is noted: its answer is that of no other request
        env.step(1)

    expected = _play(lambda env: env.step(1), lambda env: None)
    exact.assert_same(_play(interrupt, _kill, checkpoint_every="never"), expected)


def test_answers_that_were_not_read_are_not_taken_for_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """They lie in the sockets of those that gave them."""
    vec = AgentVectorEnv.from_env("frail:Large", num_envs=2, seed=3)
    vec.reset()
    with _interrupted(monkeypatch, ShmChannel, "payload"):
        vec.step(np.ones(2, np.int64))
    infos = vec.step(np.ones(2, np.int64))[4]
    assert [text[:3] for text in infos["large"]] == ["2 2", "2 2"]
    vec.close()


def test_who_dies_with_half_of_its_answer_sent_is_told_of_by_what_it_answers_then(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    vec = AgentVectorEnv.from_env("frail:Large", num_envs=2, seed=3, on_crash="truncate", envs_per_sandbox=2)
    vec.reset()
    payload, killed = ShmChannel.payload, []

    def dying(channel: ShmChannel, index: int) -> bytes:
        if index == 1 and not killed:
            killed.append(index)
            _kill(vec)
            channel.groups[0].control.close()  # type: ignore[union-attr]  # what it sent is lost with it
        return payload(channel, index)

    monkeypatch.setattr(ShmChannel, "payload", dying)
    truncated, infos = vec.step(np.ones(2, np.int64))[3:]
    assert truncated.tolist() == [True, True]
    assert infos["_agentenv"].tolist() == [True, True]
    assert not int(vec._fleet.channel.status[0]) & Flag.SPILLED
    vec.close()


def test_the_step_of_the_others_counts_where_one_is_given_up() -> None:
    def play(kill: bool) -> Any:
        tables = [{"id": "a", "env": "frail:Mortal", "restart": "never"}, {"id": "b", "env": "frail:Mortal"}]
        config = {"global": {"seed": 3}, "environments": [{**table, "on_quarantine": "raise"} for table in tables]}
        with closing(AgentVectorEnv(config, autoreset_mode="Disabled")) as vec:
            vec.reset(seed=3)
            for _ in range(6):
                vec.step(np.array([0, 1]))
            with pytest.raises(SandboxDied, match="status 3"):
                vec.step(np.array([2, 1]))
            vec.reset(options={"reset_mask": np.array([True, False])})
            if kill:
                _kill(vec, 1)
            return vec.step(np.array([0, 1]))[:4]

    expected = play(False)
    found = play(True)
    exact.assert_same([part[1] for part in found], [part[1] for part in expected])
