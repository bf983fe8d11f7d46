"""Who the sandboxes of a run belong to, and how bubblewrap is started as that user.

An ordinary user's sandboxes are his own. Root's are nobody's: processes inside should not be the machine's root even as
seen from outside. That needs everything visible to be readable by everybody; where it is not (a private umask),
the sandboxes stay root's, which the kernel then does not allow to be nested, and this is said.
"""

from __future__ import annotations

import json
import os
import stat
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from agentenv.sandbox.runtimes._view import View, importable

_NOBODY = 65534
_STAGING = "/mnt"
_MAX_CHECKED = 2000


@dataclass(frozen=True, slots=True)
class StagePlan:
    """How to start bubblewrap.

    Attributes:
        uid, gid: The owner of the sandboxes, on the host.
        slots: Host path -> name in the staging directory; empty when nothing is staged.
        note: Why root's sandboxes stay root's, or "".
    """

    uid: int
    gid: int
    slots: dict[str, str] = field(default_factory=dict)
    note: str = ""

    def source(self, path: str) -> str:
        """Where bubblewrap finds a host path."""
        slot = self.slots.get(path)
        return path if slot is None else f"{_STAGING}/{slot}"

    def wrap(self, argv: Sequence[str]) -> list[str]:
        """The command that starts bubblewrap as the right user."""
        if not self.slots:
            return list(argv)
        plan = {
            "uid": self.uid,
            "gid": self.gid,
            "staging": _STAGING,
            "binds": list(self.slots.items()),
            "argv": list(argv),
        }
        program = str(Path(__file__).with_name("_stage.py"))
        return [sys.executable, "-I", "-S", program, json.dumps(plan)]

    def give(self, directory: Path) -> None:
        """Make a directory of ours writable for the sandboxes."""
        if self.slots:
            os.chown(directory, self.uid, self.gid)


def unreadable(paths: Sequence[str]) -> str:
    """The first of these, or of the modules directly in them, that not everybody may read; "" if none."""
    checked = 0
    for path in paths:
        for candidate in (path, *importable(path)):
            checked += 1
            if checked > _MAX_CHECKED:
                return ""
            try:
                mode = os.stat(candidate).st_mode
            except OSError:
                continue
            need = 0o005 if stat.S_ISDIR(mode) else 0o004
            if mode & need != need:
                return candidate
    return ""


def plan_stage(view: View, imported: Sequence[str], out: Path | None) -> StagePlan:
    """Decide for the calling user.

    Args:
        view: What the sandboxes see.
        imported: Directories they import from, checked one level deep.
        out: Host directory they write to, or None.
    """
    uid, gid = os.geteuid(), os.getegid()
    if uid != 0:
        return StagePlan(uid, gid)
    private = unreadable(view.binds) or unreadable(imported)
    if private:
        return StagePlan(
            uid,
            gid,
            note=f"{private} is readable by its owner only, so the sandboxes must run as root to see it;"
            " chmod -R a+rX it to have them run as nobody",
        )
    wanted = [*view.binds, *([str(out)] if out is not None else [])]
    return StagePlan(_NOBODY, _NOBODY, {path: str(number) for number, path in enumerate(wanted)})
