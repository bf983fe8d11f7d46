"""A sandbox that somebody kills while it is built is begun again: from the third time on it is told."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from agentenv import AgentVectorEnv, EnvError, SandboxDied
from agentenv.cli import main
from agentenv.errors import CauseKind, Owner
from agentenv.sandbox.runtimes._cell import CellSandbox
from agentenv.testing import traces


@pytest.fixture(params=["admit", "attach"])
def kills(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """As many of those started next as it has places are killed then; whom it was is put there."""
    places: list[str] = []

    def kill(cell: CellSandbox) -> None:
        if "" in places and cell.spec.id == "env-1":
            places[places.index("")] = cell.spec.id
            os.kill(cell.pid, signal.SIGKILL)
            cell.await_end(10)

    step = request.param
    whole = getattr(CellSandbox, step)
    monkeypatch.setattr(CellSandbox, step, lambda self, *said: (kill(self), whole(self, *said))[1])
    return places


def start(**keys: Any) -> AgentVectorEnv:
    return AgentVectorEnv.from_env("envs.samples:Counter", num_envs=3, **keys)


@pytest.mark.parametrize("times", [1, 2])
def test_a_vector_is_begun_again(times: int, kills: list[str]) -> None:
    before = traces.take()
    kills += [""] * times
    with start() as vec:
        vec.reset(seed=1)
        assert vec.step(np.zeros(3, np.int64))[0][:, 0].tolist() == [1, 1, 1]
    assert kills == ["env-1"] * times
    assert traces.take().left_since(before) == []


def test_but_not_for_ever(kills: list[str]) -> None:
    before = traces.take()
    kills += [""] * 5
    with pytest.raises(SandboxDied, match="killed from outside") as caught:
        start()
    assert (caught.value.cause.kind, caught.value.cause.owner) == (CauseKind.SANDBOX_LOST, Owner.INFRASTRUCTURE)
    assert kills.count("") == 2
    assert traces.take().left_since(before) == []


def test_one_that_fails_of_its_own_is_not(caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(EnvError, match="no assets"):
        AgentVectorEnv.from_env("envs.samples:Broken", num_envs=2)
    assert "it is begun again" not in caplog.text


def test_nor_are_those_of_a_run_that_were_not_killed(
    kills: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kills.append("")
    config = tmp_path / "three.toml"
    config.write_text('[[environments]]\nid = "env"\nenv = "envs.samples:Counter"\ncount = 3\nepisodes = 1\n')
    assert main(["run", str(config), "--run-dir", str(tmp_path / "runs"), "--json"]) == 0
    summary = json.loads(capsys.readouterr().out)
    assert [(e["id"], e["episodes"]) for e in summary["environments"]] == [(f"env-{i}", 1) for i in range(3)]
    assert kills == ["env-1"]
