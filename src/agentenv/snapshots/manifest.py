"""The record of a snapshot, as it lies on the disk.

    snapshots/<id>/
        manifest.json           this record
        files/<name>            files that are kept whole
        changes/<name>.pages    what changed in a large one since the parent's; see ``changes``
        changes/<name>.extents

A snapshot is full, then all its files are whole, or incremental, then at least one large file is kept as changes to the
file of the same name that the parent stands for. Large files are ``memory`` and ``*.ext4``.

The manifest is one JSON object: "format" (1), "id" (128 random bits), "name", "created", "kind", "parent" (only of
incremental ones), "depth" (how many parents one after another it needs), "replaces" (the snapshot that had the name
before), "logical_bytes", "stored_bytes", "machine" and "sandbox" (what is short in ``machine.json`` and
``sandbox.json``), "about" (what the caller said), "files", and "seal": the SHA-256 of all the rest as JSON with sorted
keys and without spaces. For each file: its name, "bytes", "digest" and, if only changes are kept, "pages" and "extents"
with their own bytes and digests. Digests say how they were made: ``sha256:`` of the bytes, ``blocks:`` as in
``blocks.ContentDigest``.

A parent is named by its id, as streams of btrfs and ZFS name what they follow, so that changes are never applied to
anything but what they were found by.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Any, Literal

Kind = Literal["full", "incremental", "unknown"]
MANIFEST = "manifest.json"
FILES, CHANGES = "files", "changes"
FORMAT = 1
_ID = re.compile(r"[0-9a-f]{32}")
_MOST_BYTES = 16 << 20


@dataclass(frozen=True, slots=True)
class Stored:
    """A file of a snapshot's directory.

    Attributes:
        bytes: Its size.
        digest: Of its content, with how it was made.
    """

    bytes: int
    digest: str


@dataclass(frozen=True, slots=True)
class Part:
    """A file as it was given, however it is kept.

    Attributes:
        name: Its name.
        bytes: Its size.
        digest: Of its content.
        pages: Where only changes are kept: the data of the pages that changed.
        extents: And which they are.
    """

    name: str
    bytes: int
    digest: str
    pages: Stored | None = None
    extents: Stored | None = None

    def stored(self) -> dict[str, Stored]:
        """The files in the snapshot's directory it is made from, by path."""
        if self.pages is None or self.extents is None:
            return {f"{FILES}/{self.name}": Stored(self.bytes, self.digest)}
        return {f"{CHANGES}/{self.name}.pages": self.pages, f"{CHANGES}/{self.name}.extents": self.extents}


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A stored snapshot.

    Attributes:
        id: 32 hexadecimal digits; its own for ever.
        name: What people call it; None where they do not, or where another one has the name now.
        created: When, as ISO 8601 with the offset from UTC.
        kind: "full", "incremental", or "unknown" where its record cannot be read.
        parent: The id of the one whose files it is made from, if it is incremental.
        path: Its directory in the store; ``SnapshotStore.open`` gives the files.
        logical_bytes: Size of the files it stands for, with their holes.
        stored_bytes: What it takes of the disk, without its parents.
        about: What was said about it when it was added.
        machine: What must be equal where it is brought back, as the runtime wrote it, without what is long.
        sandbox: What it was made with, likewise.
        files: The files it stands for.
        depth: How many parents one after another it needs.
        damage: Why it cannot be used, as far as that is known; "" for nothing known.
        replaces: The id of the one that had its name before; None for none.
    """

    id: str
    name: str | None
    created: str
    kind: Kind
    parent: str | None
    path: Path
    logical_bytes: int
    stored_bytes: int
    about: Mapping[str, Any] = field(default_factory=dict)
    machine: Mapping[str, Any] = field(default_factory=dict)
    sandbox: Mapping[str, Any] = field(default_factory=dict)
    files: tuple[Part, ...] = ()
    depth: int = 0
    damage: str = ""
    replaces: str | None = None

    @property
    def label(self) -> str:
        """What to call it in a message."""
        return repr(self.name) if self.name else self.id[:12]

    @property
    def runtime(self) -> str | None:
        """What ran the machine, as in "qemu"."""
        return _text(self.machine.get("hypervisor"))

    @property
    def runtime_version(self) -> str | None:
        """The version of that."""
        return _text(self.machine.get("version"))

    @property
    def accelerator(self) -> str | None:
        """What ran its processors, as in "kvm"."""
        return _text(self.machine.get("accelerator"))

    @property
    def processor(self) -> str | None:
        """The host's processor."""
        return _text(self.machine.get("processor"))

    @property
    def memory_mb(self) -> int | None:
        """The machine's RAM, MiB."""
        found = self.machine.get("memory_mb")
        return found if isinstance(found, int) else None

    def stored(self) -> dict[str, Stored]:
        """All files of its directory but the manifest, by path."""
        return {path: stored for part in self.files for path, stored in part.stored().items()}

    def to_json(self) -> dict[str, Any]:
        """It as JSON values, for people and programs."""
        record = asdict(self) | {"path": str(self.path), "about": dict(self.about)}
        named = ("runtime", "runtime_version", "accelerator", "processor", "memory_mb")
        return record | {name: getattr(self, name) for name in named}


def is_id(text: str) -> bool:
    """Whether it looks like the id of a snapshot."""
    return _ID.fullmatch(text) is not None


def is_large(name: str) -> bool:
    """Whether a file is one of those that are mostly holes and change little."""
    return name == "memory" or name.endswith(".ext4")


def to_bytes(snapshot: Snapshot) -> bytes:
    """The manifest of a snapshot."""
    record: dict[str, Any] = {"format": FORMAT}
    for name in ("id", "name", "created", "kind", "parent", "depth", "replaces", "logical_bytes", "stored_bytes"):
        record[name] = getattr(snapshot, name)
    record |= {"machine": snapshot.machine, "sandbox": snapshot.sandbox, "about": snapshot.about}
    kept = [{key: value for key, value in asdict(part).items() if value is not None} for part in snapshot.files]
    record["files"] = kept
    record["seal"] = _seal(record)
    return (json.dumps(record, indent=1) + "\n").encode()


def read(path: Path) -> Snapshot:
    """The snapshot in a directory of the store.

    Raises:
        ValueError: Its manifest is damaged; says how.
        OSError: It cannot be read.
    """
    with open(path / MANIFEST, "rb") as file:
        try:
            record = json.loads(file.read(_MOST_BYTES))
        except RecursionError as error:
            raise ValueError("it is no manifest") from error
    if not isinstance(record, dict):
        raise ValueError(f"expected an object, got {type(record).__name__}")
    if record.get("format") != FORMAT:
        raise ValueError(
            f"expected format {FORMAT}, got {record.get('format')!r}: another version of agentenv wrote it"
        )
    if record.pop("seal", None) != _seal(record):
        raise ValueError("its content is not what was written")
    _expect_fields(record)
    if record["id"] != path.name:
        raise ValueError(f"expected the id {path.name}, got {record['id']}")
    parts = tuple(map(_part, record["files"]))
    if len({part.name for part in parts}) < len(parts):
        raise ValueError("expected each file once")
    if (record["kind"] == "incremental") != (record["parent"] is not None):
        raise ValueError("expected a parent of incremental ones alone")
    if record["parent"] is None and any(part.pages is not None for part in parts):
        raise ValueError("expected changes of files of incremental ones alone")
    given = {key: value for key, value in record.items() if key not in ("format", "files")}
    return Snapshot(path=path, files=parts, **given)


_FIELDS: dict[str, tuple[bool, Callable[[Any], bool]]] = {
    "id": (True, lambda value: isinstance(value, str)),
    "name": (True, lambda value: value is None or isinstance(value, str)),
    "created": (True, lambda value: isinstance(value, str)),
    "kind": (True, lambda value: value in ("full", "incremental")),
    "parent": (True, lambda value: value is None or (isinstance(value, str) and is_id(value))),
    "depth": (False, lambda value: _is_count(value)),
    "replaces": (False, lambda value: value is None or (isinstance(value, str) and is_id(value))),
    "logical_bytes": (True, lambda value: _is_count(value)),
    "stored_bytes": (True, lambda value: _is_count(value)),
    "machine": (False, lambda value: isinstance(value, dict)),
    "sandbox": (False, lambda value: isinstance(value, dict)),
    "about": (False, lambda value: isinstance(value, dict)),
    "files": (True, lambda value: isinstance(value, list)),
    "format": (True, lambda value: True),
}
"""What a manifest has, whether it must, and what it may be: its seal says what was written, not by whom."""


def _expect_fields(record: Mapping[str, Any]) -> None:
    for key, (is_needed, fits) in _FIELDS.items():
        if key in record and not fits(record[key]):
            raise ValueError(f"its {key!r} cannot be {record[key]!r:.80}")
        if is_needed and key not in record:
            raise ValueError(f"it has no {key!r}")
    if others := sorted(set(record) - set(_FIELDS)):
        raise ValueError(f"expected nothing called {others[0]!r:.80} in it: another version of agentenv wrote it")


def _part(found: Any) -> Part:
    if not isinstance(found, dict) or set(found) - {"name", "bytes", "digest", "pages", "extents"}:
        raise ValueError(f"expected a file's name, size and digest, got {found!r:.80}")
    name = found.get("name")
    if not isinstance(name, str) or name in ("", ".", "..") or "/" in name or "\0" in name:
        raise ValueError(f"expected the name of a file, got {name!r:.80}")
    if ("pages" in found) != ("extents" in found):
        raise ValueError(f"expected both pages and extents of {name!r:.80}")
    changes = [_stored(found[key]) if key in found else None for key in ("pages", "extents")]
    return Part(name, *_size_and_digest(found), *changes)


def _stored(found: Any) -> Stored:
    if not isinstance(found, dict) or set(found) != {"bytes", "digest"}:
        raise ValueError(f"expected a size and a digest, got {found!r:.80}")
    return Stored(*_size_and_digest(found))


def _size_and_digest(found: Mapping[str, Any]) -> tuple[int, str]:
    size, digest = found.get("bytes"), found.get("digest")
    if not _is_count(size) or not isinstance(digest, str):
        raise ValueError(f"expected a size and a digest, got {size!r:.40} and {digest!r:.80}")
    assert isinstance(size, int)
    return size, digest


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def unreadable(path: Path, reason: str) -> Snapshot:
    """What stands for a snapshot whose manifest is damaged."""
    try:
        created = datetime.fromtimestamp(path.stat().st_mtime).astimezone().isoformat()
    except OSError:
        created = ""
    return Snapshot(path.name, None, created, "unknown", None, path, 0, 0, damage=f"{MANIFEST}: {reason}")


def without_name(snapshot: Snapshot) -> Snapshot:
    """The same, after another one took its name."""
    return replace(snapshot, name=None)


def _seal(record: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(record, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None
