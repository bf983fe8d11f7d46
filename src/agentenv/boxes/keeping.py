"""Snapshots of sandboxes in the store, and what is needed to bring them back."""

from __future__ import annotations

import contextlib
from pathlib import Path

from agentenv.boxes.plans import Plan
from agentenv.errors import SnapshotError, SnapshotUnknown
from agentenv.sandbox.taking import taking_ground
from agentenv.sandbox.workbench import Workbench
from agentenv.snapshots.manifest import Snapshot
from agentenv.snapshots.store import SnapshotStore

_PLAN = "plan"


def place() -> Path:
    """Where whoever runs this process keeps snapshots."""
    return SnapshotStore.default().root


def keep(bench: Workbench, plan: Plan, *, name: str | None, replace: bool, store: Path | None = None) -> str:
    """Make a sandbox a snapshot and store it; returns the snapshot's id.

    What can be seen to be wrong is said before the machine stands still.

    Args:
        bench: Of the sandbox.
        plan: What it is made of.
        name: What to call the snapshot; None for no name.
        replace: Whether an older one of this name loses it.
        store: Where; None for this process's own store.

    Raises:
        ResourceLimit, OSError: There is no room.
        ConfigError: The name cannot be one.
        SnapshotError: The name is taken.
    """
    shelf = SnapshotStore.default() if store is None else SnapshotStore(store)
    shelf.expect_name(name, replace=replace)
    with taking_ground(shelf.root.parent) as directory:
        bench.snapshot(directory)
        about = {"sandbox": plan.spec.id, _PLAN: plan.to_record()}
        parent = _still_there(shelf, plan.parent)
        return shelf.add(directory, name=name, parent=parent, about=about, replace=replace).id


def find(snapshot: str) -> Snapshot:
    """The stored snapshot of a name or an id.

    Raises:
        SnapshotUnknown: There is none.
    """
    return SnapshotStore.default().find(snapshot)


def opened(snapshot: str) -> contextlib.AbstractContextManager[Path]:
    """Its files; see ``SnapshotStore.open``."""
    return SnapshotStore.default().open(snapshot)


def plan_of(snapshot: Snapshot, name: str) -> Plan:
    """What to make of a stored snapshot.

    Raises:
        SnapshotError: It was not made of a sandbox.
    """
    try:
        plan = Plan.from_record(snapshot.about[_PLAN])
    except (KeyError, TypeError, ValueError) as error:
        raise SnapshotError(
            f"snapshot {snapshot.label} was not made of a sandbox, and nobody says how to bring it back"
        ) from error
    source = f"snapshot {snapshot.name or snapshot.id[:12]}"
    return Plan(plan.runtime, plan.settings, plan.named(name).spec, snapshot.id, source, snapshot.id)


def _still_there(store: SnapshotStore, parent: str | None) -> str | None:
    with contextlib.suppress(SnapshotUnknown):
        return None if parent is None else store.find(parent).id
    return None
