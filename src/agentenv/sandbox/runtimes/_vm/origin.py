"""What a machine was made from, kept beside its snapshot: copies need the same drives.

A snapshot holds what a machine has changed, and the files it shares with others by name alone. They are immutable, so
that their names, sizes and times of change tell whether they still are what they were.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from agentenv.disk import sync
from agentenv.errors import RuntimeUnavailable
from agentenv.sandbox.files import MachineFiles
from agentenv.sandbox.runtimes._vm.machine import MachineSpec

NAME = "sandbox.json"
_FORMAT = 1
_MOST_BYTES = 64 << 20
_AGAIN = "make the image or kernel again as it was, or make a new sandbox"


@dataclass(frozen=True, slots=True)
class Origin:
    """What is needed to bring a snapshot back.

    Attributes:
        files: What the machine was made from.
        memory_mb: Its RAM.
        vcpu_count: Its processors.
        disk_mb: What each of its file systems in memory may hold.
        introductions: Of the environments in it, as ``Sandbox.introductions``.
    """

    files: MachineFiles
    memory_mb: int
    vcpu_count: int
    disk_mb: int
    introductions: tuple[dict[str, Any], ...]


def write_origin(
    directory: Path,
    files: MachineFiles,
    machine: MachineSpec,
    disk_mb: int,
    introductions: Sequence[Mapping[str, Any]],
) -> None:
    """Put it beside a snapshot."""
    found = {
        "format": _FORMAT,
        "memory_mb": machine.memory_mb,
        "vcpu_count": machine.vcpu_count,
        "disk_mb": disk_mb,
        "files": {name: str(value) if isinstance(value, Path) else value for name, value in asdict(files).items()},
        "fingerprint": files.fingerprint(),
        "introductions": list(introductions),
    }
    path = directory / NAME
    path.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    sync(path)


def read_origin(directory: Path) -> Origin:
    """What a snapshot was made from, as it is there still.

    Raises:
        RuntimeUnavailable: It is not a snapshot of a sandbox, or something it needs is gone or was changed.
    """
    path = directory / NAME
    try:
        with open(path, "rb") as file:
            found = json.loads(file.read(_MOST_BYTES))
        if found["format"] != _FORMAT:
            raise ValueError(f"expected format {_FORMAT}, got {found['format']!r}")
        files = MachineFiles(**{field.name: _value(field.name, found["files"]) for field in fields(MachineFiles)})
        numbers = {name: _number(found[name]) for name in ("memory_mb", "vcpu_count", "disk_mb")}
        origin = Origin(files, introductions=tuple(dict(one) for one in found["introductions"]), **numbers)
        fingerprint = list(found["fingerprint"])
        now = _fingerprint(directory, files)
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise RuntimeUnavailable(
            f"{directory} is not the snapshot of a sandbox: {NAME}: {type(error).__name__}: {error}",
            "it was not written to its end, or was damaged: make it anew",
        ) from error
    changed = [f"{then}, is now {here}" for then, here in zip(fingerprint, now, strict=False) if then != here]
    if changed or len(fingerprint) != len(now):
        raise RuntimeUnavailable(
            f"snapshot {directory} needs files as they were: {'; '.join(changed) or 'others'}", _AGAIN
        )
    return origin


_PATHS = frozenset({"kernel", "initramfs", "root", "tools", "scratch", "project", "cache"})
_PAIRS = frozenset({"places", "variables"})
_LISTS = frozenset({"entrypoint", "cmd"})
_MOST = 1 << 31


def _fingerprint(directory: Path, files: MachineFiles) -> list[str]:
    try:
        return files.fingerprint()
    except OSError as error:
        raise RuntimeUnavailable(
            f"snapshot {directory} needs {error.filename}, which is not there any more", _AGAIN
        ) from error


def _number(value: object) -> int:
    if type(value) is not int or not 0 <= value < _MOST:
        raise ValueError(f"expected a number, got {value!r}")
    return value


def _value(name: str, found: dict[str, Any]) -> Any:
    value = found[name]
    if name in _PATHS:
        return None if value is None and name == "project" else Path(_text(value))
    if name in _PAIRS:
        return tuple((_text(first), _text(second)) for first, second in value)
    return tuple(_text(one) for one in value) if name in _LISTS else _text(value)


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"expected a text, got {value!r}")
    return value
