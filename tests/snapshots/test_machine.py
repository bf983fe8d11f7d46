"""A real machine, kept twice in a row, and both moments brought back from the store."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from agentenv.config import load_config
from agentenv.fleet.context import RunContext
from agentenv.sandbox.contract import Sandbox, SandboxSpec
from agentenv.snapshots.manifest import Snapshot
from agentenv.snapshots.store import SnapshotStore
from agentenv.testing import traces
from agentenv.testing.workbenches import run, work
from machines_ground import need_machines

pytestmark = pytest.mark.timeout(300)
QEMU = {"global": {"runtime": "qemu"}, "environments": [{"id": "box", "memory_mb": 256}]}


@pytest.fixture(scope="module")
def context() -> Iterator[RunContext]:
    need_machines()
    before = traces.take()
    config = load_config(QEMU)
    context = RunContext(config, config.expand(), record=False)
    yield context
    context.close()
    assert traces.take().left_since(before) == []


def machine(context: RunContext, id: str, origin: Path | None = None) -> Sandbox:
    members = load_config(QEMU).expand()
    spec: SandboxSpec = context.spec(id, members)
    spec = replace(spec, id=id, envs=(), command=(), network=None, start_timeout_s=120.0, origin=origin)
    (made,) = context.runtime.create([spec], context.output)
    return made


def keep(store: SnapshotStore, box: Sandbox, place: Path, name: str, parent: Snapshot | None = None) -> Snapshot:
    place.mkdir()
    assert box.workbench is not None
    box.workbench.snapshot(place)
    return store.add(place, name=name, parent=parent)


def said(box: Sandbox) -> dict[str, bytes]:
    assert box.workbench is not None
    found = {name: work(box.workbench, op="read", path=f"/root/{name}").stdout for name in ("first", "second")}
    # On the drive and in memory.
    return found | {"memory": run(box.workbench, "cat", "/dev/shm/note").stdout}


def test_two_moments_of_one_machine(context: RunContext, store: SnapshotStore, tmp_path: Path) -> None:
    box = machine(context, "box")
    try:
        assert box.workbench is not None
        work(box.workbench, b"one", op="write", path="/root/first")
        work(box.workbench, b"in memory", op="write", path="/dev/shm/note")
        first = keep(store, box, tmp_path / "1", "first")
        work(box.workbench, b"two", op="write", path="/root/second")
        work(box.workbench, b"", op="write", path="/dev/shm/note")
        second = keep(store, box, tmp_path / "2", "second", first)
    finally:
        box.destroy()
    assert (first.kind, second.kind) == ("full", "incremental")
    assert second.stored_bytes < first.stored_bytes * 2 / 3
    assert first.runtime == "qemu"
    assert first.memory_mb == 256
    assert first.sandbox["files"]["root"].endswith(".ext4")
    store.gc(now=True)
    for one in (first, second):
        store.verify(one)
    expected = {
        "first": {"first": b"one", "second": b"", "memory": b"in memory"},
        "second": {"first": b"one", "second": b"two", "memory": b""},
    }
    for name in ("second", "first", "second"):
        with store.open(name) as origin:
            copy = machine(context, f"copy-{name}", origin)
            try:
                assert said(copy) == expected[name]
            finally:
                copy.destroy()
    # What was brought back wrote nothing into the store.
    for one in (first, second):
        store.verify(one)
    with store.open("second") as origin:
        copy = machine(context, "third", origin)
        try:
            third = keep(store, copy, tmp_path / "3", "third", second)
        finally:
            copy.destroy()
    assert (third.kind, third.depth) == ("incremental", 2)
    store.gc(now=True)
    with store.open(third) as origin:
        copy = machine(context, "copy-third", origin)
        try:
            assert said(copy) == expected["second"]
        finally:
            copy.destroy()
