"""Whether the files of a directory still are what was written: a disk that lies, a copy cut short, a stray edit.

A monitor reads a damaged memory without complaint, and the machine goes wrong in ways that look like an environment's.
To read all of a memory costs as much as to bring a machine back from it, so that is done once per boot of the host and
whenever a file is not the one it was by its number, size and times; in between these are compared, and the small files
read.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

SEAL = "seal.json"
_SEEN = "seen.json"
_OWN = (SEAL, _SEEN)
_FORMAT = 1
_PIECE = 1 << 16
_ZEROS = bytes(_PIECE)
_SMALL_BYTES = 1 << 20
_MOST_BYTES = 1 << 16


def seal(directory: Path) -> None:
    """Write down what the files of a directory are.

    Raises:
        OSError: There is no room.
    """
    files = {
        path.name: {"size": path.stat().st_size, "digest": digest(path)}
        for path in sorted(directory.iterdir())
        if path.is_file() and path.name not in _OWN
    }
    (directory / SEAL).write_text(json.dumps({"format": _FORMAT, "files": files}, indent=1) + "\n", encoding="ascii")
    _note_seen(directory, files)


def damage(directory: Path, *, thoroughly: bool = False) -> str:
    """What is wrong with the files of a sealed directory, in words; "" for nothing.

    Args:
        directory: It.
        thoroughly: Read everything, whatever was seen before.
    """
    files = _read(directory / SEAL).get("files")
    if not isinstance(files, dict) or not files:
        return f"{SEAL} is missing or damaged"
    seen = {} if thoroughly else _read(directory / _SEEN)
    known = seen.get("files") if seen.get("boot") == _boot() else None
    anew = False
    try:
        for name, expected in files.items():
            path = directory / name
            size = path.stat().st_size
            if size != expected["size"]:
                return f"{name} has {size} bytes, expected {expected['size']}"
            if size > _SMALL_BYTES and isinstance(known, dict) and known.get(name) == _look(path):
                continue
            anew = anew or size > _SMALL_BYTES
            if digest(path) != expected["digest"]:
                return f"{name} is not what was written"
    except OSError as error:
        return f"{error.filename and Path(error.filename).name}: {error.strerror}"
    except (KeyError, TypeError, ValueError):
        return f"{SEAL} is damaged"
    if anew:
        with contextlib.suppress(OSError):  # a cache that cannot be written is read in full every time
            _note_seen(directory, files)
    return ""


def digest(path: Path) -> str:
    """Of a file's content; holes and zeros count the same, and holes cost nothing."""
    found = hashlib.blake2b(digest_size=16)
    with open(path, "rb", buffering=0) as file:
        fd, at = file.fileno(), 0
        while True:
            try:
                at = os.lseek(fd, at, os.SEEK_DATA) // _PIECE * _PIECE
            except OSError:  # nothing but a hole follows
                break
            end = os.lseek(fd, at, os.SEEK_HOLE)
            if end <= at:  # the beginning of this piece is a hole, its end is not
                end = at + _PIECE
            while at < end:
                piece = os.pread(fd, _PIECE, at)
                if piece != _ZEROS[: len(piece)]:
                    found.update(at.to_bytes(8, "little"))
                    found.update(piece)
                at += _PIECE
    return found.hexdigest()


def _note_seen(directory: Path, names: Mapping[str, Any]) -> None:
    """Several may do so at once: the last one's stays."""
    text = json.dumps({"boot": _boot(), "files": {name: _look(directory / name) for name in names}})
    fd, temporary = tempfile.mkstemp(prefix=f"{_SEEN}.", dir=directory)
    try:
        with open(fd, "w", encoding="ascii") as file:
            file.write(text)
        os.rename(temporary, directory / _SEEN)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise


def _look(path: Path) -> list[int]:
    found = path.stat()
    return [found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns]


def _read(path: Path) -> dict[str, Any]:
    try:
        with open(path, "rb") as file:
            found = json.loads(file.read(_MOST_BYTES))
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _boot() -> str:
    """Of this host: a number that every boot changes."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return file.read().strip()
    except OSError:
        return ""
