"""Giving room back: what no name refers to, no machine holds and nobody asked for lately is removed."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from agentenv import locks
from agentenv.images.files import disk_bytes, remove_tree
from agentenv.images.store import Store

GRACE_S = 600.0


@dataclass(frozen=True, slots=True)
class Collected:
    """What a collection did.

    Attributes:
        removed: How many objects, steps and layers are gone.
        freed_bytes: Room they took.
        held: How many unnamed ones stay because a machine or a build uses them, or they were asked for lately.
        swept: How many directories of dead processes are gone.
    """

    removed: int
    freed_bytes: int
    held: int
    swept: int


def collect(store: Store, *, needed: Collection[str] = (), unused_for_s: float = GRACE_S) -> Collected:
    """Remove what is not needed.

    What a name refers to always stays. What has no name can be made again from what it was made of.

    Args:
        store: The store.
        needed: Digests of objects that somebody else needs, such as stored snapshots of machines.
        unused_for_s: What was asked for within so many seconds stays: a machine that is starting has it in hand
            before it holds it.
    """
    swept = store.sweep()
    removed = freed = held = 0
    # The modification time of a directory in the store is when it was last asked for.
    before = time.time() - unused_for_s
    with locks.locked(store.root / "locks/collect"):
        named = {one.digest for kind in _kinds(store) for one in store.names(kind)} | set(needed)
        candidates = [path for path in (store.root / "objects").iterdir() if path.name not in named]
        candidates += [path for path in (store.root / "steps").iterdir() if not path.name.startswith(".")]
        candidates += list((store.blobs / "sha256").iterdir())
        for path in candidates:
            size = disk_bytes(path)
            if not _remove(store, path, before):
                held += 1
                continue
            removed, freed = removed + 1, freed + size
        for key in (store.root / "keys").glob("*.json"):
            if store.find(key.stem) is None:
                key.unlink(missing_ok=True)
    return Collected(removed, freed, held, swept)


def remove_object(store: Store, digest: str, *, needed: Collection[str] = ()) -> int:
    """Remove an object at once unless a name refers to it, a machine holds it or it is needed; the bytes freed."""
    with locks.locked(store.root / "locks/collect"):
        path = store.object_path(digest)
        named = {one.digest for kind in _kinds(store) for one in store.names(kind)}
        if path is None or digest in named or digest in needed:
            return 0
        size = disk_bytes(path)
        return size if _remove(store, path, float("inf")) else 0


def _kinds(store: Store) -> list[str]:
    return [path.name for path in (store.root / "names").iterdir()]


def _remove(store: Store, path: Path, before: float) -> bool:
    with contextlib.ExitStack() as stack, contextlib.suppress(FileNotFoundError):
        if path.stat().st_mtime > before:
            return False
        # A machine holds the files it uses; a build holds the lock of the step it uses, and one for all layers.
        guarded = [store.root / "locks" / path.name] if path.parent.name == "steps" else []
        guarded += [store.root / "locks/layers"] if path.parent.name == "sha256" else []
        guarded += [one for one in path.rglob("*") if one.is_file()] if path.parent.name == "objects" else []
        for one in guarded:
            fd = locks.take(one, wait=False)
            if fd is None:
                return False
            stack.callback(os.close, fd)
        # Renamed first, so that nobody finds half of it.
        gone = store.root / "tmp" / f"gone-{path.name}-{os.getpid()}"
        os.rename(path, gone)
        remove_tree(gone)
    return True
