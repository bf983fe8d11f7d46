"""How sandboxes come to be in this process: new, or brought back from what was kept."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from agentenv.boxes.ground import Ground, open_ground
from agentenv.boxes.keeping import find, opened, plan_of
from agentenv.boxes.local import LocalAccess, hold
from agentenv.boxes.plans import Plan
from agentenv.boxes.reach import expect_networks
from agentenv.fleet.descriptors import told
from agentenv.images.progress import LINES, Report

if TYPE_CHECKING:
    from agentenv.snapshots.manifest import Snapshot


def create(plans: Sequence[Plan], report: Report = LINES) -> list[LocalAccess]:
    """Start sandboxes of one kind, all or none.

    Args:
        plans: What to start; of all of them the first one's runtime counts.
        report: Told of what takes long.

    Raises:
        RuntimeUnavailable, ResourceLimit: This machine cannot.
        SandboxDied, StepTimeout: One did not come up.
    """
    with told():
        return _create(plans, report)


def _create(plans: Sequence[Plan], report: Report) -> list[LocalAccess]:
    first = plans[0]
    network = any(plan.spec.network is not None for plan in plans)
    if network:
        expect_networks(first.source if first.snapshot else "")
    ground = open_ground(first.runtime, first.settings, report, network=network)
    try:
        if first.snapshot:
            return _bring_back(ground, first)
        return hold(ground, [plan.spec for plan in plans], origin=first.source, parent=first.parent)
    finally:
        ground.release()


def bring_back(snapshot: Snapshot | str, name: str, report: Report = LINES) -> LocalAccess:
    """What a stored snapshot kept, under a name.

    Raises:
        RuntimeUnavailable: It cannot be brought back here.
        SnapshotError: There is none, or it is damaged.
    """
    found = find(snapshot) if isinstance(snapshot, str) else snapshot
    return create([plan_of(found, name)], report)[0]


def _bring_back(ground: Ground, plan: Plan) -> list[LocalAccess]:
    with contextlib.ExitStack() as stack:
        directory = stack.enter_context(opened(plan.snapshot))
        made = hold(ground, [replace(plan.spec, origin=directory)], origin=plan.source, parent=plan.snapshot)
        made[0].keep_open(stack.pop_all())
        return made
