"""Directories as machines' snapshots are: memory that is mostly empty, a drive, small files; and reading them back."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path

from agentenv.snapshots.manifest import Snapshot
from agentenv.snapshots.store import SnapshotStore

PAGE = 4096
MACHINE = {"hypervisor": "qemu", "version": "7.2", "accelerator": "tcg", "processor": "one", "memory_mb": 1}
FULL = dict.fromkeys(range(30), 300)
"""Thirty pages, each with a content of its own."""
Pages = Mapping[int, int]
"""What pages are filled with, by number; 0 is a page that was written and is empty."""


def write_pages(path: Path, pages: Pages, size: int) -> Path:
    """A file with these pages, and holes elsewhere."""
    with open(path, "wb") as file:
        file.truncate(size)
        for number, value in pages.items():
            room = min(PAGE, size - number * PAGE)
            if room > 0:
                file.seek(number * PAGE)
                file.write((bytes([value]) * room) if value < 256 else os.urandom(room))
    return path


def make(
    path: Path, pages: Pages, size: int = 64 * PAGE, *, drive: Pages | None = None, state: bytes = b"state"
) -> Path:
    """A machine's snapshot."""
    path.mkdir(parents=True)
    write_pages(path / "memory", pages, size)
    if drive is not None:
        write_pages(path / "scratch.ext4", drive, size)
    (path / "state").write_bytes(state)
    (path / "machine.json").write_text(json.dumps(MACHINE))
    (path / "sandbox.json").write_text(json.dumps({"image": "gymnasium", "image_digest": "ab" * 32}))
    return path


def contents(path: Path) -> dict[str, bytes]:
    """All files of a directory."""
    return {one.name: one.read_bytes() for one in sorted(path.iterdir())}


def flip(path: Path, at: int = 0) -> None:
    """Change one bit of a file."""
    with open(path, "r+b") as file:
        file.seek(at)
        (before,) = file.read(1)
        file.seek(at)
        file.write(bytes([before ^ 1]))


def opened(store: SnapshotStore, snapshot: Snapshot | str) -> dict[str, bytes]:
    """The files of a snapshot."""
    with store.open(snapshot) as path:
        return contents(path)


def follow(tmp_path: Path, name: str, like: Path | dict[str, bytes], pages: dict[int, bytes]) -> Path:
    """A snapshot like another one but for some pages of its memory."""
    files = contents(like) if isinstance(like, Path) else like
    path = make(tmp_path / name, {})
    for file, content in files.items():
        with open(path / file, "wb") as target:
            target.truncate(len(content))
            for at in range(0, len(content), PAGE):
                if any(page := content[at : at + PAGE]):
                    target.seek(at)
                    target.write(page)
    with open(path / "memory", "r+b") as memory:
        for number, content in pages.items():
            memory.seek(number * PAGE)
            memory.write(content.ljust(PAGE, b"\0"))
    return path
