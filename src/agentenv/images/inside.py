"""Paths as they are meant inside a root file system: no link and no ".." leads out of it.

What is resolved here is private to the build while it runs, so that nothing changes between looking and acting.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

from agentenv.errors import ProtocolError

_MOST_LINKS = 40
LONGEST = 4096
# Whoever walks through a tree or removes it may do so by recursion.
DEEPEST = 256


def parts_of(name: str) -> list[str]:
    """The parts of a name from an archive, which may begin with "/" or "./".

    Raises:
        ProtocolError: It has "..", a NUL character, or is too long.
    """
    parts = [part for part in name.split("/") if part not in ("", ".")]
    if ".." in parts or "\0" in name or len(name) > LONGEST or any(len(os.fsencode(part)) > 255 for part in parts):
        raise ProtocolError(f"expected a path inside the image, got {name[:200]!r}")
    return parts


def resolve(root: Path, parts: list[str]) -> str:
    """Where a path leads: links in all of its parts but the last are followed as in a system with this root.

    Args:
        root: The root file system.
        parts: Of the path, without "..".

    Returns:
        A path relative to the root of which no part but the last is a link; "" is the root itself. Directories in it
        may be missing.

    Raises:
        ProtocolError: Links go in a circle, or it is too deep.
    """
    done: list[str] = []
    pending = list(reversed(parts))
    links = 0
    while pending:
        part = pending.pop()
        if part == "..":  # from a link's target
            del done[-1:]
            continue
        done.append(part)
        if not pending:
            break
        path = root.joinpath(*done)
        if not path.is_symlink():
            continue
        links += 1
        if links > _MOST_LINKS:
            raise ProtocolError(f"expected a path inside the image, got a circle of links at {'/'.join(done)!r}")
        target = os.readlink(path)
        if target.startswith("/"):
            done.clear()
        else:
            done.pop()
        pending.extend(reversed([piece for piece in target.split("/") if piece not in ("", ".")]))
    if len(done) > DEEPEST:
        raise ProtocolError(f"expected a path of at most {DEEPEST} parts, got {len(done)}: {'/'.join(done)[:200]!r}")
    return "/".join(done)


def make_parents(root: Path, path: str) -> int:
    """Make the directories above a resolved path; a file in the way is replaced.

    Args:
        root: The root file system.
        path: As ``resolve`` returned it.

    Returns:
        How many were made.
    """
    place, made = root, 0
    for part in path.split("/")[:-1]:
        place = place / part
        try:
            if stat.S_ISDIR(place.lstat().st_mode):
                continue
            place.unlink()
        except FileNotFoundError:
            pass
        place.mkdir()
        place.chmod(0o755)
        made += 1
    return made
