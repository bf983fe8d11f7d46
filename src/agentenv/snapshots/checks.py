"""Whether the files of snapshots are what was kept.

A file is read and compared with its digest before it is first used, and again when its size, its modification time or
its inode are others than when that was done; ``again`` reads it in any case. What was added was read then. So bringing
back costs a look at each file, and only after somebody touched them the time of reading all of it: a second for 1 to
2 GB of data, where holes do not count. What a disk changes silently under a file that was read before is found by
``SnapshotStore.verify`` alone.
"""

from __future__ import annotations

import contextlib
import json
import os
import stat
import tempfile
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from agentenv.errors import SnapshotDamaged
from agentenv.snapshots.blocks import digest_bytes, digest_content
from agentenv.snapshots.manifest import Snapshot, Stored
from agentenv.snapshots.places import Places
from agentenv.snapshots.progress import Pace, Progress


class Checks:
    """What is known of the files of a store."""

    def __init__(self, places: Places) -> None:
        """Know what other processes know."""
        self._places = places

    def check(self, snapshot: Snapshot, *, again: bool = False, progress: Progress | None = None) -> None:
        """Look at the files of a snapshot, not at its parent's.

        Raises:
            SnapshotDamaged: One is missing, cut, or has another content.
        """
        record = self._read(snapshot.id)
        seen = {} if again else record.get("files", {})
        files = {snapshot.path / path: stored for path, stored in snapshot.stored().items()}
        reason = at = ""
        found: dict[str, list[int]] = {}
        todo = {path: stored for path, stored in files.items() if _differs(path, seen.get(_key(snapshot, path)))}
        pace = Pace(progress, f"checking snapshot {snapshot.label}", sum(_data_bytes(path) for path in todo))
        for path, stored in files.items():
            if path in todo and (reason := problem(path, stored, pace)):
                at = _key(snapshot, path)
                break
            with contextlib.suppress(OSError):
                found[_key(snapshot, path)] = signature(path)
        damage = {"file": at, "reason": reason} if reason else None
        if found != record.get("files") or damage != record.get("damage"):
            self._write(snapshot.id, {**record, "files": found, "damage": damage})
        if reason:
            raise SnapshotDamaged(snapshot.id, at, reason, label=snapshot.label)

    def glance(self, snapshot: Snapshot) -> str:
        """What is wrong with the files of a snapshot, as far as that is seen without reading them; "" for nothing."""
        for path, stored in snapshot.stored().items():
            try:
                size = (snapshot.path / path).stat().st_size
            except OSError as error:
                return f"{path}: {error.strerror}"
            if size != stored.bytes:
                return f"{path}: expected {stored.bytes} bytes, got {size}"
        known = self._read(snapshot.id).get("damage")
        return f"{known.get('file')}: {known.get('reason')}" if known else ""

    def note(self, id: str, kind: str, paths: Mapping[str, Path]) -> None:
        """Note that files were found right just now.

        Args:
            id: The snapshot's.
            kind: "files" or "copies".
            paths: The files, by what the snapshot calls them.
        """
        self._write(id, {**self._read(id), kind: {name: signature(path) for name, path in paths.items()}})

    def noted(self, id: str, kind: str) -> dict[str, list[int]]:
        """What was noted last."""
        found: dict[str, list[int]] = self._read(id).get(kind, {})
        return found

    def forget(self, id: str) -> None:
        """Forget what is known of a snapshot that is gone."""
        (self._places.checked / f"{id}.json").unlink(missing_ok=True)

    def sweep(self, there: Collection[str]) -> None:
        """Forget what is known of all but these snapshots, and what dead processes left.

        Somebody may be writing just now; what they lose is a note, and costs reading a file again.
        """
        for path in self._places.checked.iterdir():
            if path.suffix != ".json" or path.stem not in there:
                path.unlink(missing_ok=True)

    def _read(self, id: str) -> dict[str, Any]:
        # Whatever is wrong with it: then nothing is known, and files are read again.
        with contextlib.suppress(OSError, ValueError, RecursionError):
            found = json.loads((self._places.checked / f"{id}.json").read_bytes())
            if isinstance(found, dict):
                return {key: value for key, value in found.items() if isinstance(value, dict)}
        return {}

    def _write(self, id: str, record: Mapping[str, Any]) -> None:
        # On a full or read-only disk snapshots can still be used; files are read again the next time.
        with contextlib.suppress(OSError):
            fd, name = tempfile.mkstemp(dir=self._places.checked, suffix=".new")
            try:
                with open(fd, "w", encoding="utf-8") as file:
                    json.dump(record, file)
                os.replace(name, self._places.checked / f"{id}.json")
            except BaseException:
                with contextlib.suppress(OSError):
                    os.unlink(name)
                raise


def problem(path: Path, stored: Stored, pace: Pace) -> str:
    """Read a file; why it is not what was kept, or ""."""
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):
            return "expected a file, got something else"
        if status.st_size != stored.bytes:
            return f"expected {stored.bytes} bytes, got {status.st_size}"
        found = digest(path, stored.digest.partition(":")[0], pace)
    except OSError as error:
        return error.strerror or str(error)
    return "" if found == stored.digest else "its content is not what was written"


def digest(path: Path, how: str, pace: Pace) -> str:
    """The digest of a file, with how it was made."""
    if how == "blocks":
        return f"blocks:{digest_content(path, pace.advance)}"
    return f"sha256:{digest_bytes(path, pace.advance)}"


def signature(path: Path) -> list[int]:
    """What changes when somebody writes to a file."""
    status = path.stat()
    return [status.st_size, status.st_mtime_ns, status.st_ino]


def _differs(path: Path, seen: object) -> bool:
    try:
        return signature(path) != seen
    except OSError:
        return True


def _data_bytes(path: Path) -> int:
    try:
        return path.stat().st_blocks * 512
    except OSError:
        return 0


def _key(snapshot: Snapshot, path: Path) -> str:
    return str(path.relative_to(snapshot.path))
