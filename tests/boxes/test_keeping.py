"""Snapshots of sandboxes: what is seen to be wrong before a machine stands still."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from agentenv.boxes.commands import make_spec
from agentenv.boxes.keeping import keep
from agentenv.boxes.plans import Plan
from agentenv.errors import ConfigError, SnapshotError
from agentenv.snapshots.store import SnapshotStore
from snapshots.making import FULL, make


class Stands(Exception):
    """The machine would stand still now."""


class Bench:
    """Of a machine that must not."""

    def snapshot(self, directory: Path) -> None:
        raise Stands


@pytest.fixture(autouse=True)
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SnapshotStore:
    monkeypatch.setenv("AGENTENV_DATA", str(tmp_path / "data"))
    store = SnapshotStore.default()
    store.add(make(tmp_path / "first", FULL), name="first")
    return store


def _keep(name: Any, *, replace: bool = False) -> None:
    bench: Any = Bench()
    keep(bench, Plan("qemu", {}, make_spec(image=None, name="web")), name=name, replace=replace)


@pytest.mark.parametrize("name", ["a/b", "", ".a", "a b", "x" * 129, "0" * 32, 3, ["a"]])
@pytest.mark.parametrize("replace", [False, True])
def test_what_cannot_be_a_name_is_refused_while_it_runs(name: Any, replace: bool) -> None:
    with pytest.raises(ConfigError, match="expected letters"):
        _keep(name, replace=replace)


def test_a_name_that_is_taken_is_refused_while_it_runs() -> None:
    with pytest.raises(SnapshotError, match="there is a snapshot called 'first' already"):
        _keep("first")


@pytest.mark.parametrize(("name", "replace"), [(None, False), ("second", False), ("first", True), ("second", True)])
def test_others_are_kept(name: str | None, replace: bool) -> None:
    with pytest.raises(Stands):
        _keep(name, replace=replace)
