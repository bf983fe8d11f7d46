"""Who the sandboxes of a run belong to, and how bubblewrap is started as that user.

An ordinary user's sandboxes are his own. Root's are nobody's: processes inside should not be the machine's root even as
seen from outside. That needs everything visible to be readable by everybody. Where something is private to root (as
under a umask of 077), the sandboxes stay root's, which the kernel then does not allow to be nested, and this is said;
where it is private to one other user, they are that user's: root in a user namespace may read only what is root's.
"""

from __future__ import annotations

import json
import os
import stat
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from agentenv.errors import RuntimeUnavailable
from agentenv.sandbox.runtimes._view import View, importable

_NOBODY = 65534
_STAGINGS = ("/mnt", "/media", "/srv", "/run")
"""Directories that are nearly everywhere, and of which one can be covered where nothing that is needed is in it."""
_MAX_CHECKED = 2000


@dataclass(frozen=True, slots=True)
class StagePlan:
    """How to start bubblewrap.

    Attributes:
        uid, gid: The owner of the sandboxes, on the host.
        slots: Host path -> name in the staging directory; empty when nothing is staged.
        owners: Host path -> the one user for whom something of it is private, and in whose place they are.
        staging: The staging directory, in which none of the host paths lies.
    """

    uid: int
    gid: int
    slots: dict[str, str] = field(default_factory=dict)
    owners: dict[str, int] = field(default_factory=dict)
    staging: str = _STAGINGS[0]

    def source(self, path: str) -> str:
        """Where bubblewrap finds a host path."""
        slot = self.slots.get(path)
        return path if slot is None else f"{self.staging}/{slot}"

    def wrap(self, argv: Sequence[str]) -> list[str]:
        """The command that starts bubblewrap as the right user."""
        if not self.slots:
            return list(argv)
        plan = {
            "uid": self.uid,
            "gid": self.gid,
            "staging": self.staging,
            "binds": [(path, slot, self.owners.get(path)) for path, slot in self.slots.items()],
            "argv": list(argv),
        }
        program = str(Path(__file__).with_name("_stage.py"))
        return [sys.executable, "-I", "-S", program, json.dumps(plan)]

    def give(self, directory: Path) -> None:
        """Make a directory of ours writable for the sandboxes."""
        if self.slots:
            os.chown(directory, self.uid, self.gid)


def unreadable(paths: Sequence[str], owner: int | None = None) -> str:
    """The first of these, or of the modules directly in them, that not everybody may read; "" if none.

    Args:
        paths: Files and directories.
        owner: A user who may read what everybody may, and what is his own.
    """
    checked = 0
    for path in paths:
        for candidate in (path, *importable(path)):
            checked += 1
            if checked > _MAX_CHECKED:
                return ""
            if not _may_read(candidate, owner):
                return candidate
    return ""


def _may_read(path: str, owner: int | None) -> bool:
    try:
        found = os.stat(path)
    except OSError:
        return True
    need = 0o5 if stat.S_ISDIR(found.st_mode) else 0o4
    if found.st_uid == owner:
        need <<= 6
    return found.st_mode & need == need


def plan_stage(view: View, imported: Sequence[str], out: Path | None) -> StagePlan:
    """Decide for the calling user.

    Args:
        view: What the sandboxes see.
        imported: Directories they import from, checked one level deep.
        out: Host directory they write to, or None.

    Raises:
        RuntimeUnavailable: What they must see is private to different users, so that none can see all of it, or lies
            in every directory in which it could be staged.
    """
    uid, gid = os.geteuid(), os.getegid()
    if uid != 0:
        return StagePlan(uid, gid)
    user, owners = _NOBODY, dict[str, int]()
    private = unreadable(view.binds) or unreadable(imported)
    if private:
        owner = os.stat(private).st_uid
        if owner != 0 and not (unreadable(view.binds, owner) or unreadable(imported, owner)):
            user = owner  # whatever file system it is on
        else:
            owners = {path: found for path in view.binds if (found := _owner_of(path, imported)) is not None}
    wanted = [*view.binds, *([str(out)] if out is not None else [])]
    slots = {path: str(number) for number, path in enumerate(wanted)}
    return StagePlan(user, _NOBODY, slots, owners, _choose_staging(wanted))


def plan_tree_stage(tree: str, shown: Sequence[str]) -> StagePlan:
    """Decide for a program that is root of a tree of ours and nobody outside: what it writes becomes ours.

    Args:
        tree: The tree; all of it belongs to the calling user.
        shown: What it sees beside that, without writing to it.

    Raises:
        RuntimeUnavailable: Something of what is shown is private to different users.
    """
    uid, gid = os.geteuid(), os.getegid()
    if uid != 0:
        return StagePlan(uid, gid)
    paths = [tree, *shown]
    owners = {path: found for path in shown if (found := _owner_of(path, ())) is not None}
    slots = {path: str(number) for number, path in enumerate(paths)}
    return StagePlan(_NOBODY, _NOBODY, slots, {tree: uid, **owners}, _choose_staging(paths))


def _owner_of(path: str, imported: Sequence[str]) -> int | None:
    """For whom something of a path is private; None where everybody may read all of it.

    Raises:
        RuntimeUnavailable: For different users.
    """
    inside = [path, *(one for one in imported if Path(one).is_relative_to(path))]
    private = unreadable(inside)
    if not private:
        return None
    owner = os.stat(private).st_uid
    if other := unreadable(inside, owner):
        raise RuntimeUnavailable(
            f"no user may read all that sandboxes must see: {private} is private to user {owner}, who may not read"
            f" {other}",
            f"chmod -R a+rX {path}",
        )
    return owner


def _choose_staging(paths: Sequence[str]) -> str:
    """A directory that hides none of these when it is covered."""
    taken = [Path(os.path.realpath(path)) for path in paths]
    for staging in _STAGINGS:
        if os.path.isdir(staging) and not any(path.is_relative_to(os.path.realpath(staging)) for path in taken):
            return staging
    names = ", ".join(_STAGINGS)
    raise RuntimeUnavailable(
        f"what sandboxes must see lies in each of {names}, or they are missing; one is needed to stage it in",
        f"make the first of them that is missing, or move what is in one of them elsewhere: {' '.join(paths)}",
    )
