"""What stored snapshots of machines need besides themselves: the images and drives their copies share."""

from __future__ import annotations

import os
from pathlib import Path

from agentenv.errors import SnapshotDamaged
from agentenv.images.collect import Needed
from agentenv.images.store import Store
from agentenv.snapshots.store import SnapshotStore


def needed_objects(store: Store, snapshots: SnapshotStore) -> Needed:
    """The objects of a store that any stored snapshot was made with, damaged ones included.

    Of one whose record of that cannot be read nobody can say: it may be put right, and need any of them.
    """
    objects = Path(os.path.realpath(store.root / "objects"))
    digests: set[str] = set()
    doubt = ""
    for snapshot in snapshots.list():
        try:
            files = snapshots.made_with(snapshot, "files")
        except SnapshotDamaged as error:
            doubt = f"snapshot {snapshot.label} in {snapshots.root}: {error.file}: {error.reason}"
            continue
        for value in files.values() if isinstance(files, dict) else ():
            # A store may be reached by more than one path.
            if isinstance(value, str) and (path := Path(os.path.realpath(value))).is_relative_to(objects):
                digests.update(path.relative_to(objects).parts[:1])
    return Needed(frozenset(digests), doubt)
