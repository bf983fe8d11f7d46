"""What stored snapshots of machines need besides themselves: the images and drives their copies share."""

from __future__ import annotations

from pathlib import Path

from agentenv.images.store import Store
from agentenv.snapshots.store import SnapshotStore


def needed_objects(store: Store, snapshots: SnapshotStore) -> frozenset[str]:
    """Digests of the objects of a store that any stored snapshot was made with, damaged ones included."""
    objects = store.root / "objects"
    digests = set()
    for snapshot in snapshots.list():
        files = snapshot.sandbox.get("files")
        for value in files.values() if isinstance(files, dict) else ():
            if isinstance(value, str) and (path := Path(value)).is_relative_to(objects) and path != objects:
                digests.add(path.relative_to(objects).parts[0])
    return frozenset(digests)
