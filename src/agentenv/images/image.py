"""Images by name or by file, and what is known of each: how programs are started in it, and what it was made from."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from agentenv.errors import RuntimeUnavailable
from agentenv.images.oci import Start
from agentenv.images.store import Named, Store, instead, shown
from agentenv.images.trees import damaged_step

KIND = "image"
FILE = "rootfs.ext4"
_KINDS: dict[str, tuple[type, str]] = {
    "env": (dict, "an object of strings"),
    "user": (str, "a string"),
    "workdir": (str, "a string"),
    "entrypoint": (list, "a list of strings"),
    "cmd": (list, "a list of strings"),
}
_BESIDE = 'such as {"env": {"KEY": "value"}, "user": "app", "workdir": "/app"}, or remove the file'


@dataclass(frozen=True, slots=True)
class Image:
    """A root file system that can be booted.

    Attributes:
        path: The ext4 or squashfs image; it never changes.
        digest: SHA-256 of it; "" for a file that is not from the store.
        name: In the store; "" for a file that is not from it.
        start: How programs are started in it.
        source: What it was made from.
        packages: Python packages in it, as name==version.
        created: When, as ISO 8601; "" where it is not known.
        size_bytes: Of the image.
    """

    path: Path
    digest: str = ""
    name: str = ""
    start: Start = field(default_factory=lambda: Start({}))
    source: str = ""
    packages: tuple[str, ...] = ()
    created: str = ""
    size_bytes: int = 0

    def to_json(self) -> dict[str, Any]:
        """For people and programs: what is known of it."""
        record = {key: value for key, value in asdict(self).items() if key not in ("start", "path", "packages")}
        start = {key: list(value) if isinstance(value, tuple) else value for key, value in asdict(self.start).items()}
        return {**record, "path": str(self.path), **start, "packages": list(self.packages)}


def resolve_image(value: str, store: Store, asked: str = "rootfs_image") -> Image:
    """The image a configuration's ``rootfs_image`` means: a file, or a name in the store.

    Beside a file may lie ``FILE.json``, which says how programs are started in it, with the keys of an image's record.

    Args:
        value: The file or the name; a directory of that name is in nobody's way.
        store: Where images with names are.
        asked: What the user calls it, for messages.

    Raises:
        RuntimeUnavailable: There is neither, or what lies beside a file cannot be understood.
    """
    path = Path(os.path.expanduser(value))
    if os.path.isfile(path):
        return _from_record(_read_beside(path.with_name(f"{path.name}.json")), path.absolute(), "", "")
    found = store.named(KIND, value)
    if found is not None:
        return _of(found, store)
    if os.path.isdir(path):
        raise RuntimeUnavailable(
            f"expected a file or the name of an image as {asked}, got the directory {str(path)!r}",
            f"agentenv image build {path.absolute().name or 'NAME'} --from {path}",
        )
    names = [one.name for one in store.names(KIND)]
    build = f"agentenv image build {path.name or 'NAME'} --from debian:bookworm --pip gymnasium --pip numpy"
    raise RuntimeUnavailable(
        f"expected a file or the name of an image as {asked}, got {value!r} (images here: {shown(names)})",
        instead(value, names, build),
    )


def _read_beside(path: Path) -> dict[str, Any]:
    try:
        record = json.loads(path.read_bytes())
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, RecursionError) as error:
        raise RuntimeUnavailable(f"expected JSON in {path}: {error}", _BESIDE) from error
    if not isinstance(record, dict):
        raise RuntimeUnavailable(f"expected a JSON object in {path}, got {record!r:.80}", _BESIDE)
    for key, (expected, kind) in _KINDS.items():
        given = record.get(key)
        parts = [*given, *given.values()] if isinstance(given, dict) else given if isinstance(given, list) else [given]
        if given is not None and not (isinstance(given, expected) and all(map(_is_text, parts))):
            raise RuntimeUnavailable(f"expected {kind} as {key!r} in {path}, got {given!r:.80}", _BESIDE)
    return record


def _is_text(value: object) -> bool:
    """Whether a program can be given it."""
    return isinstance(value, str) and "\0" not in value and not any("\ud800" <= one <= "\udfff" for one in value)


def list_images(store: Store) -> list[Image]:
    """All images that have a name."""
    return [_of(found, store) for found in store.names(KIND)]


def _of(found: Named, store: Store) -> Image:
    place = store.object_path(found.digest)
    assert place is not None, "a name is not listed without its object"
    return _from_record(found.record, place / FILE, found.digest, found.name)


def _from_record(record: Mapping[str, Any], path: Path, digest: str, name: str) -> Image:
    def texts(key: str) -> tuple[str, ...]:
        value = record.get(key)
        return tuple(str(one) for one in value) if isinstance(value, list) else ()

    env = record.get("env")
    size = 0  # of one whose file is gone, or is being removed just now: whoever needs it says so
    with contextlib.suppress(OSError):
        size = path.stat().st_size
    return Image(
        path=path,
        digest=digest,
        name=name,
        start=Start(
            {str(key): str(value) for key, value in env.items()} if isinstance(env, dict) else {},
            str(record.get("user") or ""),
            str(record.get("workdir") or "/"),
            texts("entrypoint"),
            texts("cmd"),
        ),
        source=str(record.get("source") or ""),
        packages=texts("packages"),
        created=str(record.get("created") or ""),
        size_bytes=size,
    )


def write_start(place: Path, start: Start) -> None:
    """Keep how programs are started beside a tree."""
    (place / "start.json").write_text(json.dumps(asdict(start)), encoding="utf-8")


def read_start(place: Path) -> Start:
    """What was kept beside a tree.

    Raises:
        RuntimeUnavailable: It is damaged.
    """
    try:
        record = json.loads((place / "start.json").read_bytes())
        return Start(
            record["env"], record["user"], record["workdir"], tuple(record["entrypoint"]), tuple(record["cmd"])
        )
    except FileNotFoundError:
        return Start({})
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise damaged_step(place / "start.json", error) from error
