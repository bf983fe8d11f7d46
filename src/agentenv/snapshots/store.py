"""The store of snapshots, as others use it.

Any number of processes and threads may use one at once. What a snapshot looks like on the disk is in ``manifest``, what
is checked when in ``checks``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from agentenv.disk import data_directory
from agentenv.errors import ConfigError, Problem
from agentenv.snapshots.collect import Collected, collect, remove
from agentenv.snapshots.manifest import Snapshot, is_id
from agentenv.snapshots.places import Places, disk_bytes
from agentenv.snapshots.progress import Progress
from agentenv.snapshots.shelf import Shelf

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,127}")
_MOST_SAID = 1 << 20


class SnapshotStore:
    """The snapshots in one directory.

    Args:
        root: The directory; made if missing, readable by its owner alone.

    Raises:
        RuntimeUnavailable: It cannot be made or written.
    """

    def __init__(self, root: Path) -> None:
        self._shelf = Shelf(Places(root))

    @classmethod
    def default(cls) -> SnapshotStore:
        """The store of this user.

        In ``$AGENTENV_DATA/snapshots``, ``$XDG_DATA_HOME/agentenv/snapshots`` or ``~/.local/share/agentenv/snapshots``.
        """
        return cls(data_directory() / "snapshots")

    @property
    def root(self) -> Path:
        """The directory."""
        return self._shelf.places.root

    def add(
        self,
        directory: Path,
        *,
        name: str | None = None,
        parent: Snapshot | str | None = None,
        about: Mapping[str, Any] | None = None,
        replace: bool = False,
        progress: Progress | None = None,
    ) -> Snapshot:
        """Take over the files of a directory, as ``Workbench.snapshot`` wrote them.

        When it returns, they are on the disk and gone from the directory. Whatever happens before, SIGKILL too, they
        are still there, and the store has all of the snapshot or nothing.

        Args:
            directory: Holds regular files only. On the same file system they are not copied.
            name: What to call it: letters, digits, ".", "_", "+" and "-", at most 128.
            parent: A snapshot it is probably like, as of the same machine some time before: only pages of large files
                that differ are stored, where that saves a third or more and the parent does not need eight others.
                The new one needs its parent then, see ``Snapshot.parent``. A parent that is damaged or was removed
                meanwhile is warned of, and the new one is full.
            about: JSON values to keep with it.
            replace: Whether a snapshot that has the name loses it; it stays, without a name, until it is collected.
            progress: Is told of what takes longer than two seconds.

        Raises:
            ConfigError: The name or ``about`` cannot be kept.
            SnapshotError: The name is taken, or the directory has something else in it than files.
            SnapshotUnknown: ``parent`` is a name or an id that there is none of.
            ResourceLimit: The disk is full.
        """
        # numpy is only needed here and where one is opened.
        from agentenv.snapshots.adding import Wanted, add

        _check_name(name)
        wanted = Wanted(Path(directory).absolute(), name, _checked(about or {}), replace)
        given = self.find(parent) if isinstance(parent, str) else parent
        return add(self._shelf, wanted, None if given is None else given.id, progress)

    def expect_name(self, name: str | None, *, replace: bool = False) -> None:
        """See that ``add`` would take a name now; None it always takes.

        Raises:
            ConfigError: It cannot be a name.
            SnapshotError: It is taken.
        """
        from agentenv.snapshots.adding import expect_free

        _check_name(name)
        if name is not None:
            expect_free(self._shelf, name, replacing=replace)

    def find(self, snapshot: str) -> Snapshot:
        """The snapshot of a name, an id, or the first digits of an id, four at least; damaged or not.

        Raises:
            SnapshotUnknown: There is none, or several ids begin so. Says which name is nearest.
        """
        return self._shelf.find(snapshot)

    def list(self) -> list[Snapshot]:
        """All snapshots, oldest first. Of damaged ones ``damage`` says what is known to be wrong."""
        return self._shelf.all()

    def made_with(self, snapshot: Snapshot, key: str) -> Any:
        """What ``sandbox.json`` says of the sandbox a snapshot was made of, whatever else of the snapshot is damaged.

        Args:
            snapshot: The snapshot.
            key: As in "files"; also what is too long for ``Snapshot.sandbox``.

        Returns:
            A JSON value; None where nothing is said.

        Raises:
            SnapshotDamaged: It cannot be told.
        """
        return self._shelf.made_with(snapshot, key)

    def open(self, snapshot: Snapshot | str, *, progress: Progress | None = None) -> AbstractContextManager[Path]:
        """A context: the directory with the whole files of a snapshot, fit for ``SandboxSpec.origin``.

        It stays, and is not to be written to, until the context is left or the process ends. What an incremental one is
        made from is put together the first time, and kept for the next.

        Args:
            snapshot: A snapshot, or what ``find`` takes.
            progress: Is told of what takes longer than two seconds.

        Raises:
            SnapshotUnknown: There is none.
            SnapshotDamaged: It, or one it is made from, is not what was kept.
            ResourceLimit: There is no room to put it together.
        """
        return self._shelf.opened(self._id(snapshot), progress)

    def verify(self, snapshot: Snapshot | str, *, progress: Progress | None = None) -> None:
        """Read all files a snapshot is made from and compare them with their digests.

        Raises:
            SnapshotUnknown: There is none.
            SnapshotDamaged: Something is wrong; names the file and the reason.
        """
        with self._shelf.held(self._id(snapshot)) as held:
            self._shelf.check(held, again=True, progress=progress)

    def remove(self, snapshot: Snapshot | str) -> int:
        """Remove a snapshot, damaged or not; returns the bytes freed.

        Raises:
            SnapshotUnknown: There is none.
            SnapshotError: Another one is made from it, or it is open.
        """
        return remove(self._shelf, self._id(snapshot))

    def gc(self, *, now: bool = False) -> Collected:
        """Remove snapshots without a name that nothing is made from and nobody has open, and what can be made again.

        Args:
            now: Also those that were added or used within the last ten minutes.
        """
        return collect(self._shelf, now=now)

    def disk_bytes(self) -> tuple[int, int]:
        """What the store takes of the disk, with what is on its way there, in bytes.

        Returns:
            All of it, and how much of that are whole files that were put together.
        """
        places = self._shelf.places
        return disk_bytes(self.root, places.taking), disk_bytes(places.copies)

    def _id(self, snapshot: Snapshot | str) -> str:
        return self.find(snapshot).id if isinstance(snapshot, str) else snapshot.id


def _check_name(name: str | None) -> None:
    if name is None or (isinstance(name, str) and _NAME.fullmatch(name) and not is_id(name)):
        return
    message = f"expected letters, digits, '.', '_', '+' and '-', at most 128 and no id, got {name!r}"
    raise ConfigError([Problem("keyword argument", "name", message)])


def _checked(about: Mapping[str, Any]) -> Mapping[str, Any]:
    try:
        text = json.dumps(dict(about), allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise ConfigError([Problem("keyword argument", "about", f"expected JSON values: {error}")]) from error
    if len(text) > _MOST_SAID:
        message = f"expected at most {_MOST_SAID} characters of JSON, got {len(text)}"
        raise ConfigError([Problem("keyword argument", "about", message)])
    found: Mapping[str, Any] = json.loads(text)
    return found
