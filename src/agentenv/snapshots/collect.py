"""Giving room back: removing one snapshot, or all that nobody needs; never what another one needs or somebody uses."""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass
from pathlib import Path

from agentenv.errors import SnapshotError, SnapshotUnknown
from agentenv.snapshots.manifest import Snapshot
from agentenv.snapshots.places import disk_bytes
from agentenv.snapshots.shelf import Shelf

GRACE_S = 600.0


@dataclass(frozen=True, slots=True)
class Collected:
    """What a collection did.

    Attributes:
        removed: How many snapshots without a name are gone.
        copies: How many whole files of incremental ones, put together before, are gone.
        freed_bytes: Room all of it took.
        kept: How many snapshots without a name stay: another one needs them, somebody uses them, they are new, or it
            cannot be told because the record of another one is damaged.
        swept: How many directories of dead processes are gone.
    """

    removed: int
    copies: int
    freed_bytes: int
    kept: int
    swept: int


def collect(shelf: Shelf, *, now: bool) -> Collected:
    """Remove what is not needed.

    Args:
        shelf: Where.
        now: Also what was used within the last ten minutes.
    """
    places = shelf.places
    before = float("inf") if now else time.time() - GRACE_S
    with places.changing():
        freed = disk_bytes(places.tmp, places.taking)
        swept = places.sweep()
        freed -= disk_bytes(places.tmp, places.taking)
        shelf.settle_names()
        removed, kept = _take_unneeded(shelf, before)
        there = {path.name for path in places.snapshots.iterdir()}
        copies = []
        for path in list(places.copies.iterdir()):
            lonely = path.name not in there
            if (taken := _take(shelf, path, float("inf") if lonely else before)) is not None:
                copies.append(taken)
        shelf.checks.sweep(there)
    # Large files take their time.
    freed += sum(places.drop(path, fd) for path, fd in [*removed, *copies])
    return Collected(len(removed), len(copies), freed, kept, swept)


def remove(shelf: Shelf, id: str) -> int:
    """Remove a snapshot, damaged or not; returns the bytes freed.

    Raises:
        SnapshotUnknown: There is none.
        SnapshotError: Another one needs it, or somebody uses it.
    """
    places = shelf.places
    with places.changing():
        places.sweep()
        shelf.settle_names()
        there = {one.id: one for one in shelf.all()}
        found = there.get(id)
        if found is None:
            raise SnapshotUnknown(f"there is no snapshot {id} any more in {places.root}")
        children = [one for one in there.values() if one.parent == id]
        if children:
            labels = ", ".join(one.label for one in children[:5]) + (", ..." if len(children) > 5 else "")
            raise SnapshotError(
                f"snapshot {found.label} cannot be removed: it is what {labels} is made from; remove"
                f" {'that' if len(children) == 1 else 'those'} first"
            )
        taken = _take(shelf, places.snapshots / id, float("inf"))
        if taken is None:
            raise SnapshotError(
                f"snapshot {found.label} cannot be removed: it is in use; end the machines made from it first"
            )
        gone = [taken]
        with contextlib.suppress(FileNotFoundError):
            if (copy := _take(shelf, places.copies / id, float("inf"))) is not None:
                gone.append(copy)
        shelf.checks.forget(id)
    return sum(places.drop(path, fd) for path, fd in gone)


def _take_unneeded(shelf: Shelf, before: float) -> tuple[list[tuple[Path, int]], int]:
    """Take out the snapshots that have no name and that nothing needs; also how many without one stay."""
    there = {one.id: one for one in shelf.all()}
    # What cannot be read may need any of them, and may be put right by hand.
    doubtful = any(one.kind == "unknown" for one in there.values())
    taken: list[tuple[Path, int]] = []
    # Whoever needs a snapshot needs one more than it does: the last of a lineage come first.
    for one in sorted(there.values(), key=lambda one: one.depth, reverse=True):
        if one.name is None and not doubtful and not _is_needed(one, there):
            gone = _take(shelf, one.path, before)
            if gone is not None:
                taken.append(gone)
                del there[one.id]
    return taken, sum(one.name is None for one in there.values())


def _is_needed(snapshot: Snapshot, there: dict[str, Snapshot]) -> bool:
    return any(one.parent == snapshot.id for one in there.values())


def _take(shelf: Shelf, path: Path, before: float) -> tuple[Path, int] | None:
    """Take a directory out of its place, unless somebody holds it or it was used lately; by what name, and its lock."""
    if path.stat().st_mtime > before:
        return None
    fd = shelf.places.claim(path)
    return None if fd is None else (shelf.places.take_out(path, fd), fd)
