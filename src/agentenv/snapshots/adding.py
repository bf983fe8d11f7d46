"""Taking a directory's files into the store, as a whole or as what changed since the parent's.

The files get second names in the store, so that they stay where they are until everything is on the disk; only then
they lose their first ones. Where that is impossible, as between two disks, they are copied without their holes.
"""

from __future__ import annotations

import contextlib
import errno
import json
import logging
import os
import secrets
import stat
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from agentenv.disk import sync
from agentenv.errors import ResourceLimit, SnapshotDamaged, SnapshotError, SnapshotUnknown
from agentenv.snapshots import changes, whole
from agentenv.snapshots.blocks import copy_content, data_bytes
from agentenv.snapshots.checks import digest
from agentenv.snapshots.manifest import CHANGES, FILES, MANIFEST, Part, Snapshot, Stored, is_large, to_bytes
from agentenv.snapshots.places import disk_bytes
from agentenv.snapshots.progress import Pace, Progress
from agentenv.snapshots.shelf import Shelf

LOGGER = logging.getLogger("agentenv.snapshots")
MOST_DEPTH = 8
"""Parents one after another; what would need more is stored full."""
_MOST_READ, _MOST_SAID = 4 << 20, 1 << 16
_NO_LINK = (errno.EXDEV, errno.EPERM, errno.EACCES, errno.EMLINK, errno.EOPNOTSUPP, errno.ENOSYS)


@dataclass(frozen=True, slots=True)
class Wanted:
    """What is to be added.

    Attributes:
        directory: Holds the files.
        name: What to call it, or None.
        about: What is said about it, as JSON values.
        replacing: Whether a snapshot that has the name loses it.
    """

    directory: Path
    name: str | None
    about: Mapping[str, Any]
    replacing: bool


def add(shelf: Shelf, wanted: Wanted, parent: str | None, progress: Progress | None) -> Snapshot:
    """Take in a directory's files; afterwards it is empty.

    Args:
        shelf: Where they are kept.
        wanted: What is to be added.
        parent: The id of the snapshot it is probably like; without it, or if it is no good, the new one is full.
        progress: Whom to tell.

    Raises:
        SnapshotError: The name is taken, or there are other things than files in the directory.
        ResourceLimit: The disk is full; the directory is as before.
    """
    names = _names_in(wanted.directory, shelf.places.root)
    _name_before(shelf, wanted)
    with contextlib.ExitStack() as stack:
        old = stack.enter_context(_built_on(shelf, parent, progress))
        work = stack.enter_context(shelf.places.work())
        made, copy = work / secrets.token_hex(16), work / "copy"
        for folder in (made, made / FILES, copy):
            folder.mkdir(mode=0o700)
        for name in names:
            _take(wanted.directory / name, made / FILES / name)
        machine, sandbox = (_object(made / FILES / f"{one}.json") for one in ("machine", "sandbox"))
        parts = _store(made, copy, names, old, progress)
        changed = any(part.pages is not None for part in parts)
        _sync_all(made, copy)
        snapshot = Snapshot(
            made.name,
            wanted.name,
            datetime.now(UTC).isoformat(timespec="microseconds"),
            "incremental" if changed else "full",
            parent if changed else None,
            made,
            sum(part.bytes for part in parts),
            disk_bytes(made),
            wanted.about,
            machine,
            sandbox,
            parts,
            shelf.load(parent).depth + 1 if changed and parent else 0,
        )
        done = _publish(shelf, snapshot, wanted)
        shelf.checks.note(done.id, "files", {path: done.path / path for path in done.stored()})
        if changed:
            # It can be put together again.
            with contextlib.suppress(OSError):
                os.close(whole.keep(shelf, done, copy))
    if changed:
        whole.trim(shelf, done.id)
    for name in names:
        with contextlib.suppress(OSError):
            (wanted.directory / name).unlink()
    return done


def _names_in(directory: Path, root: Path) -> list[str]:
    """The files to take.

    Raises:
        SnapshotError: There are none, or there is something else.
    """
    if not directory.is_dir():
        raise SnapshotError(f"expected a directory with a snapshot's files, got {directory}")
    if root in directory.resolve().parents:
        raise SnapshotError(f"{directory} belongs to a stored snapshot; copy its files before you add them again")
    names = sorted(os.listdir(directory))
    for name in names:
        if not stat.S_ISREG((directory / name).lstat().st_mode):
            raise SnapshotError(f"expected only files in the snapshot {directory}, {name!r} is none")
        try:
            name.encode()
        except UnicodeEncodeError:
            raise SnapshotError(f"expected names of files in UTF-8 in {directory}, got {name!r}") from None
    if not names:
        raise SnapshotError(f"expected a snapshot's files in {directory}, it is empty")
    return names


@contextlib.contextmanager
def _built_on(shelf: Shelf, parent: str | None, progress: Progress | None) -> Iterator[Path | None]:
    """The files of the parent; None where the new snapshot should not need it."""
    with contextlib.ExitStack() as stack:
        path = None
        try:
            if parent is not None and stack.enter_context(shelf.held(parent)).depth < MOST_DEPTH:
                path = stack.enter_context(shelf.opened(parent, progress))
        except (SnapshotUnknown, SnapshotDamaged, ResourceLimit) as error:
            # What is to be kept now is in order, and may need no room at all; whoever took the parent may not know
            # that it was collected.
            LOGGER.warning("the new snapshot is stored full, without its parent: %s", error)
        yield path


def _take(source: Path, target: Path) -> None:
    try:
        os.link(source, target, follow_symlinks=False)
    except OSError as error:
        if error.errno not in _NO_LINK:
            raise
        copy_content(source, target, lambda amount: None)


def _object(path: Path) -> Mapping[str, Any]:
    """What a file says, where it is a JSON object of a reasonable size; without what is long in it."""
    with contextlib.suppress(OSError, ValueError, RecursionError):
        if path.stat().st_size <= _MOST_READ:
            found = json.loads(path.read_bytes())
            if isinstance(found, dict):
                return {key: value for key, value in found.items() if len(json.dumps(value)) <= _MOST_SAID}
    return {}


def _store(
    made: Path, copy: Path, names: Sequence[str], old: Path | None, progress: Progress | None
) -> tuple[Part, ...]:
    """Keep of the files what has to be kept; where that is only what changed, the whole ones are put aside.

    Args:
        made: The snapshot's directory, with all files whole.
        copy: An empty directory for the whole files.
        names: Of the files.
        old: The whole files of the parent, or None.
        progress: Whom to tell.
    """
    files = made / FILES
    digests: dict[str, str] = {}
    changed = {} if old is None else _compare(made, [name for name in names if is_large(name)], old, digests, progress)
    pace = Pace(progress, "reading the snapshot", disk_bytes(files))
    parts = []
    for name in names:
        found = digests.get(name) or digest(files / name, "blocks" if is_large(name) else "sha256", pace)
        part = Part(name, (files / name).stat().st_size, found)
        if changed:
            os.link(files / name, copy / name)
        if name in changed:
            pages, extents = changed[name]
            part = replace(part, pages=pages, extents=extents)
            (files / name).unlink()
        parts.append(part)
    return tuple(parts)


def _compare(
    made: Path, names: Sequence[str], old: Path, digests: dict[str, str], progress: Progress | None
) -> dict[str, tuple[Stored, Stored]]:
    """Write down what changed in large files; empty where that would save less than a third.

    Args:
        made: The snapshot's directory.
        names: Of its large files.
        old: The files of the parent.
        digests: Takes those that were worked out on the way.
        progress: Whom to tell.
    """
    data = {name: _data_bytes(made / FILES / name) for name in names}
    both = [name for name in names if (old / name).is_file()]
    pace = Pace(progress, "comparing with the snapshot before", sum(data.values()))
    (made / CHANGES).mkdir(mode=0o700)
    left = sum(data.values()) * 2 // 3 - sum(data[name] for name in names if name not in both)
    changed: dict[str, tuple[Stored, Stored]] = {}
    for name in both if left > 0 else []:
        base = made / CHANGES / name
        pages, extents = base.with_name(f"{name}.pages"), base.with_name(f"{name}.extents")
        with open(old / name, "rb") as before, open(made / FILES / name, "rb") as now, open(pages, "xb") as sink:
            found = changes.compare(before.fileno(), now.fileno(), sink, left, pace.advance)
        digests[name] = f"blocks:{found.digest}"
        if found.extents is None:
            left = -1
            break
        changes.write_extents(extents, found.extents)
        left -= found.page_bytes + extents.stat().st_size
        quiet = Pace(None, "", 0)
        stored = [Stored(path.stat().st_size, digest(path, "sha256", quiet)) for path in (pages, extents)]
        changed[name] = (stored[0], stored[1])
    if left >= 0 and changed:
        return changed
    for path in (made / CHANGES).iterdir():
        path.unlink()
    (made / CHANGES).rmdir()
    return {}


def _data_bytes(path: Path) -> int:
    with open(path, "rb") as file:
        return data_bytes(file.fileno())


def _sync_all(*folders: Path) -> None:
    for top in folders:
        for folder, _, names in os.walk(top):
            for name in names:
                sync(Path(folder, name))
            sync(Path(folder))


def expect_free(shelf: Shelf, name: str, *, replacing: bool) -> str | None:
    """The id of the snapshot that has a name now.

    Raises:
        SnapshotError: It has, and shall keep it.
    """
    found = next((one for one in shelf.all() if one.name == name), None)
    if found is not None and not replacing:
        raise SnapshotError(
            f"there is a snapshot called {found.name!r} already, of {found.created[:19]}; choose another name,"
            f" give its name to this one with replace=True, or remove it: agentenv snapshot rm {found.name}"
        )
    return None if found is None else found.id


def _name_before(shelf: Shelf, wanted: Wanted) -> str | None:
    return None if wanted.name is None else expect_free(shelf, wanted.name, replacing=wanted.replacing)


def _publish(shelf: Shelf, snapshot: Snapshot, wanted: Wanted) -> Snapshot:
    """Have it appear, complete, under its name."""
    places = shelf.places
    with places.changing():
        found = replace(snapshot, replaces=_name_before(shelf, wanted))
        (found.path / MANIFEST).write_bytes(to_bytes(found))
        _sync_all(found.path)
        done = replace(found, path=places.snapshots / found.id)
        os.rename(found.path, done.path)
        sync(places.snapshots)
        if done.replaces is not None:
            shelf.settle_names()
    return done
