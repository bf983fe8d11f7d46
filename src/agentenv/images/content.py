"""The files of an object of the store: what names them, whether they are what was made, and mending what is not."""

from __future__ import annotations

import hashlib
import json
import os
import re
from pathlib import Path

from agentenv.disk import sync
from agentenv.images.files import digest_file


def key_of(*ingredients: object) -> str:
    """The key of what is made from these ingredients: JSON values."""
    return hashlib.sha256(json.dumps(ingredients, sort_keys=True).encode()).hexdigest()


def is_key(text: str) -> bool:
    """Whether it looks like a key, or like a digest."""
    return re.fullmatch(r"[0-9a-f]{64}", text) is not None


def close(place: Path) -> None:
    """From here on nobody writes to the files."""
    for path in _files(place):
        path.chmod(0o755 if path.stat().st_mode & 0o100 else 0o444)


def digest_files(place: Path) -> str:
    """Of the one file there is, or of the list of names and digests of several."""
    digests = [(str(path.relative_to(place)), digest_file(path)) for path in _files(place)]
    return digests[0][1] if len(digests) == 1 else key_of(digests)


def sizes(place: Path) -> dict[str, int]:
    """How many bytes each file has."""
    return {str(path.relative_to(place)): path.stat().st_size for path in _files(place)}


def is_whole(place: Path, made: Path, digest: str | None) -> bool:
    """Whether an object has what was made just now.

    Args:
        place: The object.
        made: What was made.
        digest: What names it, compared with its content; None where that would take too long.
    """
    return sizes(place) == sizes(made) and digest in (None, digest_files(place))


def mend(place: Path, made: Path) -> None:
    """Put the files that were made just now into the place of those of an object, one after the other."""
    wanted = {path.relative_to(made): path for path in _files(made)}
    for path in _files(place):
        if path.relative_to(place) not in wanted:
            path.unlink()
    for name, path in wanted.items():
        target = place / name
        target.parent.mkdir(parents=True, exist_ok=True)
        os.replace(path, target)
        sync(target.parent)


def _files(place: Path) -> list[Path]:
    return sorted(path for path in place.rglob("*") if path.is_file())
