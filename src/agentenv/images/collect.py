"""Giving room back: what no name refers to, no machine holds and nobody asked for lately is removed."""

from __future__ import annotations

import contextlib
import errno
import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from agentenv import locks
from agentenv.images.content import is_key
from agentenv.images.files import disk_bytes, remove_tree
from agentenv.images.store import Store

GRACE_S = 600.0
_AT_ONCE = 16


@dataclass(frozen=True, slots=True)
class Needed:
    """What somebody outside the store needs of it.

    Attributes:
        digests: Of objects.
        doubt: Why it cannot be told what else; "" for nothing else. Until it can, no object is removed.
    """

    digests: frozenset[str] = frozenset()
    doubt: str = ""


@dataclass(frozen=True, slots=True)
class Collected:
    """What a collection did.

    Attributes:
        removed: How many objects, steps and layers are gone.
        freed_bytes: Room they took.
        held: How many unnamed ones stay because a machine or a build uses them, they were asked for lately, or it
            cannot be told whether they are needed.
        swept: How many directories of dead processes are gone.
        doubt: Why that cannot be told; "" where nothing stays for it.
    """

    removed: int
    freed_bytes: int
    held: int
    swept: int = 0
    doubt: str = ""


def collect(store: Store, *, needed: Callable[[], Needed] = Needed, unused_for_s: float = GRACE_S) -> Collected:
    """Remove what is not needed.

    What a name refers to always stays. What has no name can be made again from what it was made of.

    Args:
        store: The store.
        needed: Tells what somebody else needs, such as stored snapshots of machines; asked while nobody can begin or
            end using what may be removed.
        unused_for_s: What was asked for within so many seconds stays: a machine that is starting has it in hand
            before it holds it.
    """
    swept = store.sweep()
    # The modification time of a directory in the store is when it was last asked for.
    before = time.time() - unused_for_s
    with store.room(), locks.locked(store.root / "locks/collect"):
        named = _named(store)
        candidates = [path for path in (store.root / "objects").iterdir() if path.name not in named]
        candidates += [path for path in (store.root / "steps").iterdir() if not path.name.startswith(".")]
        candidates += list((store.blobs / "sha256").iterdir())
        done = _remove(store, candidates, before, needed)
        for key in (store.root / "keys").glob("*.json"):
            if store.find(key.stem) is None:
                key.unlink(missing_ok=True)
        _remove_locks(store)
    return replace(done, swept=swept)


def _remove_locks(store: Store) -> None:
    """Remove the locks of what is neither there nor being made."""
    for path in (store.root / "locks").iterdir():
        there = (store.root / "keys" / f"{path.name}.json", store.root / "steps" / path.name)
        if is_key(path.name) and not any(one.exists() for one in there):
            with contextlib.suppress(OSError):
                if (fd := locks.take(path, wait=False)) is not None:
                    path.unlink()
                    os.close(fd)


def remove_object(store: Store, digest: str, *, needed: Callable[[], Needed] = Needed) -> Collected:
    """Remove an object at once unless a name refers to it, a machine holds it or it is needed; see ``collect``."""
    with store.room(), locks.locked(store.root / "locks/collect"):
        path = store.object_path(digest)
        return _remove(store, [] if path is None else [path], float("inf"), needed)


def _named(store: Store) -> set[str]:
    kinds = [path.name for path in (store.root / "names").iterdir()]
    return {one.digest for kind in kinds for one in store.names(kind)}


def _remove(store: Store, paths: Sequence[Path], before: float, needed: Callable[[], Needed]) -> Collected:
    """Remove objects, steps and layers that nobody uses."""
    removed = freed = held = 0
    doubt = ""
    for some in _batches(paths):
        with contextlib.ExitStack() as claims:
            claimed = [path for path in some if _claim(store, path, before, claims)]
            kept = set()
            if any(map(_is_object, claimed)):
                # Whoever gives something a name, or stores what needs it, holds it until that is done: asked only now,
                # when nobody does, they tell everything.
                told = needed()
                kept = _named(store) | told.digests
                if told.doubt and (doubtful := {path.name for path in claimed} - kept):
                    doubt = told.doubt
                    kept |= doubtful
                    held += len(doubtful)
            held += len(some) - len(claimed)
            for path in claimed:
                if path.name not in kept:
                    freed += _take_away(store, path)
                    removed += 1
    return Collected(removed, freed, held, doubt=doubt)


def _batches(paths: Sequence[Path]) -> Iterator[Sequence[Path]]:
    """Objects some at a time, since each costs descriptors; all others alone, since many have one lock in common."""
    objects = [path for path in paths if _is_object(path)]
    yield from ([path] for path in paths if not _is_object(path))
    for start in range(0, len(objects), _AT_ONCE):
        yield objects[start : start + _AT_ONCE]


def _is_object(path: Path) -> bool:
    return path.parent.name == "objects"


def _claim(store: Store, path: Path, before: float, claims: contextlib.ExitStack) -> bool:
    """Have alone all that whoever uses it holds; False where somebody does, or where it was asked for lately."""
    # A machine holds the files it uses; a build holds the lock of the step it uses, and one for all layers.
    if _is_object(path):
        guards = [one for one in path.rglob("*") if one.is_file()]
    else:
        guards = [store.root / "locks" / (path.name if path.parent.name == "steps" else "layers")]
    with contextlib.ExitStack() as stack, contextlib.suppress(FileNotFoundError):
        if path.stat().st_mtime > before:
            return False
        for guard in guards:
            fd = locks.take(guard, wait=False, create=not _is_object(path))
            if fd is None:
                return False
            stack.callback(os.close, fd)
        claims.push(stack.pop_all())
        return True
    return False


def _take_away(store: Store, path: Path) -> int:
    """Remove it; the bytes freed."""
    size = disk_bytes(path)
    # Renamed first, so that nobody finds half of it.
    gone = store.root / "tmp" / f"gone-{path.name}-{os.getpid()}"
    try:
        os.rename(path, gone)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        gone = path  # in a lower layer of an overlay, as in a container made with it: only its files can go
    remove_tree(gone)
    return size
