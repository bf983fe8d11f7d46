"""The whole files of an incremental snapshot: put together once, kept for the next who wants them.

A copy of the nearest parent's whole files is made, blocks shared where the file system can, and what changed is applied
to it, step by step. What comes out must have the digest that was taken when the snapshot was added. Copies may be
removed whenever nobody holds them: they can be put together again.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from agentenv import locks
from agentenv.disk import sync
from agentenv.errors import SnapshotDamaged
from agentenv.snapshots import changes
from agentenv.snapshots.blocks import copy_content
from agentenv.snapshots.checks import problem, signature
from agentenv.snapshots.manifest import CHANGES, FILES, Part, Snapshot, Stored
from agentenv.snapshots.places import disk_bytes
from agentenv.snapshots.progress import Pace, Progress
from agentenv.snapshots.shelf import Shelf

MOST_BYTES = 4 << 30
"""When copies take more than this, those that nobody holds and that were not used for longest are removed."""
_COPIES = "copies"


@contextlib.contextmanager
def copied(shelf: Shelf, chain: Sequence[Snapshot], progress: Progress | None) -> Iterator[Path]:
    """A directory with the whole files of an incremental snapshot, which stays during the block.

    Args:
        shelf: Where it is.
        chain: All it is made from and it itself, which somebody holds and has checked.
        progress: Whom to tell.

    Raises:
        SnapshotDamaged: What is put together is not what was kept.
        ResourceLimit: There is no room for it.
    """
    fd = _hold_good(shelf, chain[-1])
    if fd is None:
        # Of several who ask at once, one puts it together.
        with locks.locked(chain[-1].path / CHANGES):
            fd = _hold_good(shelf, chain[-1])
            if fd is None:
                fd = _put_together(shelf, chain, progress)
    path = shelf.places.copies / chain[-1].id
    try:
        with contextlib.suppress(OSError):
            os.utime(path)
        yield path
    finally:
        os.close(fd)


def keep(shelf: Shelf, snapshot: Snapshot, ready: Path) -> int:
    """Make a directory with all files of a snapshot its copy; returns a descriptor that holds it."""
    with shelf.places.changing():
        place = shelf.places.copies / snapshot.id
        fd = locks.take(ready, shared=True)
        assert fd is not None
        try:
            os.rename(ready, place)
            shelf.checks.note(snapshot.id, _COPIES, {part.name: place / part.name for part in snapshot.files})
        except BaseException:
            os.close(fd)
            raise
    return fd


def trim(shelf: Shelf, newest: str) -> None:
    """Remove copies where all of them take too much."""
    with shelf.places.changing():
        used: dict[Path, float] = {}
        for path in shelf.places.copies.iterdir():
            with contextlib.suppress(FileNotFoundError):
                used[path] = path.stat().st_mtime
        left = MOST_BYTES
        gone = []
        for path in sorted(used, key=lambda path: used[path], reverse=True):
            left -= disk_bytes(path)
            if left < 0 and path.name != newest and (fd := shelf.places.claim(path)) is not None:
                gone.append((shelf.places.take_out(path, fd), fd))
    for path, fd in gone:
        shelf.places.drop(path, fd)


def _hold_good(shelf: Shelf, snapshot: Snapshot) -> int | None:
    """Hold the copy of a snapshot; None if there is none that is right."""
    path = shelf.places.copies / snapshot.id
    try:
        fd = shelf.places.hold(path)
    except FileNotFoundError:
        return None
    try:
        noted = shelf.checks.noted(snapshot.id, _COPIES)
        files = {part.name: path / part.name for part in snapshot.files}
        read = [part for part in snapshot.files if not _as_noted(files[part.name], noted.get(part.name))]
        if any(problem(files[part.name], Stored(part.bytes, part.digest), Pace(None, "", 0)) for part in read):
            os.close(fd)
            return None
        if read:
            shelf.checks.note(snapshot.id, _COPIES, files)
    except BaseException:
        os.close(fd)
        raise
    return fd


def _as_noted(path: Path, noted: object) -> bool:
    try:
        return signature(path) == noted
    except OSError:
        return False


def _put_together(shelf: Shelf, chain: Sequence[Snapshot], progress: Progress | None) -> int:
    snapshot = chain[-1]
    _remove_bad(shelf, snapshot)
    with shelf.places.work() as work:
        ready = work / "copy"
        # A parent's copy may have been changed without anybody's noticing; the parents themselves are beyond doubt.
        for near in (True, False):
            ready.mkdir(mode=0o700)
            with contextlib.ExitStack() as holding:
                bases = _bases(shelf, chain, holding) if near else {}
                pace = Pace(progress, f"putting snapshot {snapshot.label} together", _total(chain, bases))
                for part in snapshot.files:
                    _make(chain, part, bases.get(part.name), ready / part.name, pace)
            made = Pace(progress, f"checking snapshot {snapshot.label}", disk_bytes(ready))
            wrong = _first_wrong(snapshot, ready, made)
            if not wrong:
                break
            if not bases:
                raise SnapshotDamaged(snapshot.id, *wrong, label=snapshot.label)
            for path in ready.iterdir():
                path.unlink()
            ready.rmdir()
        for part in snapshot.files:
            sync(ready / part.name)
        fd = keep(shelf, snapshot, ready)
    try:
        trim(shelf, snapshot.id)
    except BaseException:
        os.close(fd)
        raise
    return fd


def _remove_bad(shelf: Shelf, snapshot: Snapshot) -> None:
    path = shelf.places.copies / snapshot.id
    with shelf.places.changing():
        if not path.is_dir():
            return
        fd = shelf.places.claim(path)
        if fd is None:
            reason = (
                "the files put together for it were changed while somebody uses them: end the machines made from it"
            )
            raise SnapshotDamaged(snapshot.id, f"../../{_COPIES}/{snapshot.id}", reason, label=snapshot.label)
        gone = shelf.places.take_out(path, fd)
    shelf.places.drop(gone, fd)


def _bases(shelf: Shelf, chain: Sequence[Snapshot], holding: contextlib.ExitStack) -> Mapping[str, tuple[int, Path]]:
    """Of the nearest parent that has a copy: its place in the chain and its files, by name. Empty if none has."""
    for at in range(len(chain) - 2, 0, -1):
        fd = _hold_good(shelf, chain[at])
        if fd is not None:
            holding.callback(os.close, fd)
            folder = shelf.places.copies / chain[at].id
            return {part.name: (at, folder / part.name) for part in chain[at].files}
    return {}


def _make(chain: Sequence[Snapshot], part: Part, base: tuple[int, Path] | None, target: Path, pace: Pace) -> None:
    """Make a file of the last snapshot of a chain."""
    steps: list[tuple[Snapshot, Part]] = []
    for at in range(len(chain) - 1, -1, -1):
        if base is not None and base[0] == at:
            copy_content(base[1], target, pace.advance)
            break
        found = next(one for one in chain[at].files if one.name == part.name)
        if found.pages is None:
            copy_content(chain[at].path / FILES / part.name, target, pace.advance)
            break
        steps.insert(0, (chain[at], found))
    for snapshot, step in steps:
        _apply(snapshot, step, target, pace)


def _apply(snapshot: Snapshot, part: Part, target: Path, pace: Pace) -> None:
    name = f"{CHANGES}/{part.name}.extents"
    assert part.pages is not None
    try:
        extents = changes.read_extents(snapshot.path / name, part.bytes, part.pages.bytes)
    except ValueError as error:
        raise SnapshotDamaged(snapshot.id, name, str(error), label=snapshot.label) from error
    with open(snapshot.path / CHANGES / f"{part.name}.pages", "rb") as pages, open(target, "r+b") as file:
        changes.apply(file.fileno(), extents, pages.fileno(), part.bytes, pace.advance)


def _first_wrong(snapshot: Snapshot, ready: Path, pace: Pace) -> tuple[str, str] | None:
    for part in snapshot.files:
        if reason := problem(ready / part.name, Stored(part.bytes, part.digest), pace):
            return part.name, f"put together from its parents, {reason}"
    return None


def _total(chain: Sequence[Snapshot], bases: Mapping[str, tuple[int, Path]]) -> int:
    """How much is about to be read."""
    first = max((at + 1 for at, _ in bases.values()), default=0)
    files = [path for _, path in bases.values()]
    files += [one.path / path for one in chain[first:] for path in one.stored()]
    return sum(path.stat().st_blocks * 512 for path in files)
