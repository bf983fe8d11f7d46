"""The snapshots there are, and using one: found by name, looked at, put together, and held while it is used."""

from __future__ import annotations

import contextlib
import difflib
import json
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from agentenv.disk import sync
from agentenv.errors import SnapshotDamaged, SnapshotUnknown
from agentenv.snapshots import manifest
from agentenv.snapshots.checks import Checks, problem
from agentenv.snapshots.manifest import FILES, Snapshot, Stored
from agentenv.snapshots.places import Places
from agentenv.snapshots.progress import Pace, Progress

_SHORTEST_PREFIX = 4
_SANDBOX = "sandbox.json"


class Shelf:
    """The snapshots in the directories of a store."""

    def __init__(self, places: Places) -> None:
        """Nothing is read yet."""
        self.places = places
        self.checks = Checks(places)

    def all(self) -> list[Snapshot]:
        """All snapshots, oldest first; of damaged ones what is known."""
        there = [found for path in self.places.snapshots.iterdir() if (found := self._look(path)) is not None]
        by_id = {one.id: one for one in there}
        # Whoever is killed between adding one and taking the name from the one before leaves two with that name.
        replaced = {one.replaces for one in there}
        named = [manifest.without_name(one) if one.id in replaced else one for one in there]
        known = [replace(one, damage=one.damage or self._damage_above(one, by_id)) for one in named]
        return sorted(known, key=lambda one: (one.created, one.id))

    def settle_names(self) -> None:
        """Take the name away from those whose name another one has now. Only while ``changing``."""
        there = [one for path in self.places.snapshots.iterdir() if (one := self._look(path)) is not None]
        replaced = {one.replaces for one in there}
        for one in there:
            if one.name is not None and one.id in replaced:
                # Until it is done, whoever looks knows it all the same.
                with contextlib.suppress(OSError):
                    new = one.path / f"{manifest.MANIFEST}.new"
                    new.write_bytes(manifest.to_bytes(manifest.without_name(one)))
                    sync(new)
                    os.replace(new, one.path / manifest.MANIFEST)
                    sync(one.path)

    def load(self, id: str) -> Snapshot:
        """A snapshot as its manifest says, whatever its files are.

        Raises:
            SnapshotUnknown: There is none.
            SnapshotDamaged: Its manifest cannot be read.
        """
        path = self.places.snapshots / id
        try:
            return manifest.read(path)
        except (OSError, ValueError) as error:
            if not path.is_dir():
                raise SnapshotUnknown(f"there is no snapshot {id} any more in {self.places.root}") from error
            raise SnapshotDamaged(id, manifest.MANIFEST, str(error)) from error

    def find(self, text: str) -> Snapshot:
        """The snapshot of a name, an id, or the first digits of an id.

        Raises:
            SnapshotUnknown: There is none, or several ids begin so.
        """
        there = self.all()
        for one in there:
            if text == one.name:
                return one
        begin = [one for one in there if one.id.startswith(text)] if len(text) >= _SHORTEST_PREFIX else []
        if len(begin) == 1:
            return begin[0]
        if begin:
            ids = ", ".join(one.id[: len(text) + 4] for one in begin[:5])
            raise SnapshotUnknown(f"expected one snapshot, the ids of {len(begin)} begin with {text!r}: {ids}")
        names = [one.name for one in there if one.name]
        nearest = difflib.get_close_matches(text, names, 1, 0.5)
        if nearest:
            hint = f"did you mean {nearest[0]!r}?"
        else:
            hint = f"there are {', '.join(names[:10])}" if names else "there are none with a name"
        raise SnapshotUnknown(f"no snapshot in {self.places.root} is called {text!r}, nor does its id begin so; {hint}")

    def chain(self, snapshot: Snapshot) -> list[Snapshot]:
        """A snapshot after all it is made from, the full one first.

        Raises:
            SnapshotDamaged: One of them is not there, or its manifest cannot be read.
        """
        found = [snapshot]
        while (parent := found[0].parent) is not None:
            try:
                found.insert(0, self.load(parent))
            except SnapshotUnknown as error:
                reason = f"its parent {parent} is missing"
                raise SnapshotDamaged(snapshot.id, "", reason, label=snapshot.label) from error
            except SnapshotDamaged as error:
                raise _blamed(snapshot, error) from error
            if len(found) > snapshot.depth + 1:
                raise SnapshotDamaged(snapshot.id, "", "its parents do not end", label=snapshot.label)
        return found

    def check(self, snapshot: Snapshot, *, again: bool = False, progress: Progress | None = None) -> list[Snapshot]:
        """Look at all files it is made from, its own and its parents'; returns these, the full one first.

        Raises:
            SnapshotDamaged: Something is wrong with it or with one of its parents.
        """
        chain = self.chain(snapshot)
        for one in reversed(chain):
            try:
                self.checks.check(one, again=again, progress=progress)
            except SnapshotDamaged as error:
                raise (error if one is snapshot else _blamed(snapshot, error)) from error
        return chain

    def made_with(self, snapshot: Snapshot, key: str) -> Any:
        """What is said under a key of ``sandbox.json``; None where nothing is.

        Raises:
            SnapshotDamaged: The manifest, or the file where the manifest has not all of it, is not what was written.
        """
        if snapshot.kind == "unknown":
            raise SnapshotDamaged(snapshot.id, manifest.MANIFEST, snapshot.damage.partition(": ")[2])
        if key in snapshot.sandbox:
            return snapshot.sandbox[key]
        part = next((one for one in snapshot.files if one.name == _SANDBOX), None)
        if part is None:
            return None
        path = snapshot.path / FILES / part.name
        reason = problem(path, Stored(part.bytes, part.digest), Pace(None, "", 0))
        if reason and snapshot.path.is_dir():
            raise SnapshotDamaged(snapshot.id, f"{FILES}/{part.name}", reason, label=snapshot.label)
        found = None
        # What was kept as it is now may be no JSON, or removed just now: then nothing is said.
        with contextlib.suppress(OSError, ValueError, RecursionError):
            found = json.loads(path.read_bytes())
        return found.get(key) if isinstance(found, dict) else None

    @contextlib.contextmanager
    def held(self, id: str) -> Iterator[Snapshot]:
        """A snapshot that nobody removes during the block.

        Raises:
            SnapshotUnknown: There is none.
            SnapshotDamaged: Its manifest cannot be read.
        """
        path = self.places.snapshots / id
        try:
            fd = self.places.hold(path)
        except FileNotFoundError as error:
            raise SnapshotUnknown(f"there is no snapshot {id} any more in {self.places.root}") from error
        try:
            with contextlib.suppress(OSError):
                os.utime(path)  # when it was last used
            yield self.load(id)
        finally:
            os.close(fd)

    @contextlib.contextmanager
    def opened(self, id: str, progress: Progress | None = None) -> Iterator[Path]:
        """A directory with the whole files of a snapshot, which stays during the block; for reading only.

        Raises:
            SnapshotUnknown: There is none.
            SnapshotDamaged: It is not what was kept.
            ResourceLimit: There is no room to put it together.
        """
        from agentenv.snapshots.whole import copied

        with self.held(id) as snapshot:
            chain = self.check(snapshot, progress=progress)
            if snapshot.kind == "full":
                yield snapshot.path / FILES
            else:
                with copied(self, chain, progress) as path:
                    yield path

    def _look(self, path: Path) -> Snapshot | None:
        if not manifest.is_id(path.name):
            return None
        try:
            found = manifest.read(path)
        except (OSError, ValueError) as error:
            # Another process may have removed it just now.
            return manifest.unreadable(path, str(error)) if path.is_dir() else None
        return replace(found, damage=self.checks.glance(found))

    def _damage_above(self, snapshot: Snapshot, by_id: dict[str, Snapshot]) -> str:
        one, steps = snapshot, 0
        while one.parent is not None and steps <= snapshot.depth:
            above = by_id.get(one.parent)
            if above is None:
                return f"its parent {one.parent} is missing"
            if above.damage:
                return f"its parent {above.label} is damaged: {above.damage}"
            one, steps = above, steps + 1
        return ""


def _blamed(snapshot: Snapshot, error: SnapshotDamaged) -> SnapshotDamaged:
    """A snapshot is as damaged as what it is made from."""
    return SnapshotDamaged(
        snapshot.id, f"../{error.id}/{error.file}", f"{error.reason}; it is made from that one", label=snapshot.label
    )
