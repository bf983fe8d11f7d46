"""A run without a trainer, in this process: what one environment answers ends nobody else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from agentenv.config import load_config
from agentenv.errors import CauseKind, Owner
from agentenv.fleet import digests
from agentenv.fleet.play import Play
from agentenv.fleet.player import Player
from agentenv.fleet.progress import EnvState
from agentenv.fleet.summary import Summary


def play(tmp_path: Path, *tables: dict[str, Any]) -> Summary:
    settings = {"seed": 3, "run_dir": str(tmp_path), "runtime": "process"}
    return Play(load_config({"global": settings, "environments": list(tables)})).run()


def test_an_answer_without_a_digest_ends_the_environment_that_gave_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(value: Any) -> bytes:
        raise RecursionError("too deep for this host")

    monkeypatch.setattr(digests, "canonical", fail)
    summary = play(tmp_path, {"id": "bad", "env": "misbehaving:DeepInfo"}, {"id": "good", "env": "misbehaving:Fine"})
    bad, good = summary.environments
    assert (good.state, good.episodes) == (EnvState.DONE, 1)
    assert bad.state is EnvState.FAILED
    assert bad.cause is not None
    assert (bad.cause.kind, bad.cause.owner) == (CauseKind.PROTOCOL, Owner.ENVIRONMENT)
    assert "cannot be put in order: RecursionError" in bad.cause.detail


def test_an_errand_that_fails_unexpectedly_ends_its_player_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    take = Player.take

    def fail(player: Player) -> None:
        if player.spilled():
            raise MemoryError("no room for it")
        take(player)

    monkeypatch.setattr(Player, "take", fail)
    summary = play(tmp_path, {"id": "bad", "env": "misbehaving:LargeInfo"}, {"id": "good", "env": "misbehaving:Fine"})
    bad, good = summary.environments
    assert (bad.state, good.state, good.episodes) == (EnvState.FAILED, EnvState.DONE, 1)
    assert bad.cause is not None
    assert "MemoryError: no room for it" in bad.cause.detail
