"""Users and groups of an image, read from its own files: its C library is not the agent's."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Identity:
    """As whom a program runs.

    Attributes:
        uid: User.
        gid: Group.
        groups: Further groups.
        home: Home directory.
        name: Name, or the number as text.
    """

    uid: int
    gid: int
    groups: tuple[int, ...]
    home: str
    name: str


def find_identity(asked: str) -> Identity:
    """Who is meant by "user", "user:group", or numbers instead of names.

    Raises:
        OSError: The image has no such user or group.
    """
    user, _, group = (asked or "0").partition(":")
    uid = int(user) if user.isascii() and user.isdigit() else None
    for name, _, number, primary, _, home, *_ in _rows("/etc/passwd", 6):
        if name == user or (uid is not None and number == str(uid)):
            found = Identity(int(number), int(primary), _groups_of(name), home or "/", name)
            break
    else:
        if uid is None:
            raise OSError(errno.EINVAL, f"there is no user {user!r} in /etc/passwd of the image")
        found = Identity(uid, uid if uid == 0 else 0, (), "/root" if uid == 0 else "/", str(uid))
    if not group:
        return found
    return Identity(found.uid, _group(group), found.groups, found.home, found.name)


def _group(asked: str) -> int:
    if asked.isascii() and asked.isdigit():
        return int(asked)
    for name, _, number, *_ in _rows("/etc/group", 3):
        if name == asked:
            return int(number)
    raise OSError(errno.EINVAL, f"there is no group {asked!r} in /etc/group of the image")


def _groups_of(user: str) -> tuple[int, ...]:
    return tuple(int(row[2]) for row in _rows("/etc/group", 4) if user in row[3].split(","))


def _rows(path: str, least: int) -> Iterator[list[str]]:
    with contextlib.suppress(OSError), open(path, encoding="utf-8", errors="replace") as stream:
        for line in stream:
            row = line.rstrip("\n").split(":")
            if len(row) >= least and row[2].isdigit() and (least < 6 or row[3].isdigit()):
                yield row


def become(identity: Identity) -> None:
    """Be that user from now on."""
    os.setgroups(identity.groups)
    os.setgid(identity.gid)
    os.setuid(identity.uid)
