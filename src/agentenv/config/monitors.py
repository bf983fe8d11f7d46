"""Field types and rules of the tables of monitors, [qemu] and [firecracker].

What no machine could be given, or what would have no effect, is refused here with the reason, before anything starts.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterator, Mapping
from typing import Annotated, Any

from pydantic import BeforeValidator, WithJsonSchema

from agentenv.config.faults import Fault, refusal
from agentenv.config.words import got

TABLES = ("qemu", "firecracker")
_LONGEST_WORDS = 1024
_RESERVED = ("/", "/.agentenv", "/dev", "/proc", "/run", "/sys", "/tmp")


def _check_jailer(value: object) -> object:
    if isinstance(value, bool) or (isinstance(value, str) and value not in ("", "true", "false")):
        return value
    hint = "write it without quotes" if value in ("true", "false") else "true takes the jailer on PATH"
    raise refusal(Fault((), f"expected true, false or the path of the jailer, {got(value)}", hint))


def _check_place(value: object) -> object:
    if not isinstance(value, str) or not value.startswith("/") or "\0" in value:
        raise refusal(Fault((), f"expected an absolute path in the machine, {got(value)}", 'such as "/data"'))
    place = posixpath.normpath(value)
    if place in _RESERVED or place.startswith(tuple(f"{name}/" for name in _RESERVED[1:-1])):
        raise refusal(Fault((), f"expected a directory for the drive alone, {got(value)}", 'such as "/data"'))
    return place


def _check_kernel_words(value: object) -> object:
    if isinstance(value, str):
        size = len(value.encode("utf-8", "replace"))
        if size > _LONGEST_WORDS:
            hint = "the kernel takes 2047 bytes in all, of which a monitor needs some"
            raise refusal(Fault((), f"expected at most {_LONGEST_WORDS} bytes, got {size}", hint))
        if any(not character.isprintable() for character in value):
            raise refusal(Fault((), f"expected words on one line without control characters, {got(value)}"))
    return value


Jailer = Annotated[
    bool | str,
    BeforeValidator(_check_jailer),
    WithJsonSchema({"anyOf": [{"type": "boolean"}, {"type": "string", "minLength": 1}]}),
]
KernelWords = Annotated[str, BeforeValidator(_check_kernel_words), WithJsonSchema({"type": "string"})]
Place = Annotated[str, BeforeValidator(_check_place), WithJsonSchema({"type": "string", "pattern": "^/."})]


def monitor_conflicts(tables: Mapping[str, Any]) -> Iterator[Fault]:
    """Keys of the tables of monitors, as written, that do not go with each other or that cannot hold."""
    for name in TABLES:
        table = tables.get(name)
        if not isinstance(table, Mapping):
            continue
        yield from _drive_conflicts(name, table.get("drives"))
        huge = table.get("huge_pages") == "2M"
        if name == "firecracker":
            yield from _firecracker_conflicts(table, huge=huge)
        elif type(size := table.get("balloon_mb")) is int and size > 0:
            hint = (
                "machines share the memory of their snapshot, and QEMU would let a guest take pages out of that file by"
                " its balloon; the firecracker runtime has one"
            )
            yield Fault((name, "balloon_mb"), f"expected 0, {got(size, with_kind=False)}", hint)


def _firecracker_conflicts(table: Mapping[str, Any], *, huge: bool) -> Iterator[Fault]:
    if huge:
        hint = (
            "machines are brought back from snapshots, and Firecracker does not map a snapshot into huge pages; the"
            " qemu runtime has them"
        )
        yield Fault(("firecracker", "huge_pages"), 'expected "none", got "2M"', hint)
    for key in ("jailer_uid", "jailer_gid"):
        if key in table and not table.get("jailer"):
            yield Fault(("firecracker", key), f"expected {key} only together with jailer", "set jailer = true")


def _drive_conflicts(name: str, drives: object) -> Iterator[Fault]:
    owners: dict[str, int] = {}
    for index, drive in enumerate(drives if isinstance(drives, (list, tuple)) else ()):
        if not isinstance(drive, Mapping):
            continue
        if drive.get("readonly") is False:
            hint = "all machines share the file; what an environment writes goes to /tmp"
            yield Fault((name, "drives", index, "readonly"), "expected true, got false", hint)
        mount = drive.get("mount")
        if not isinstance(mount, str) or not mount.startswith("/"):
            continue
        place = posixpath.normpath(mount)
        if place in owners:
            hint = f"drives[{owners[place]}] has it already"
            yield Fault((name, "drives", index, "mount"), f"expected a directory of its own, {got(mount)}", hint)
        owners.setdefault(place, index)
