"""Where images, kernels and drives are kept: by the digest of their content, with names that point at them.

    objects/<digest>/   files that never change; the digest is of the first one, or of all
    keys/<key>.json     which object came of which ingredients, and how large that is: nothing is made twice
    names/<kind>/       what people call them, and what is known of them
    steps/<key>/        finished steps of builds: trees and archives
    oci/blobs/sha256/   layers as they were fetched
    locks/, tmp/        who makes what now; what a dead process left in tmp goes with the next build

All is written beside its place and renamed into it. Whoever uses a file of an object has it locked, a build by
``hold``, a runtime those of its machines for as long as it is open; and what is locked is not collected.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agentenv import locks
from agentenv.disk import cache_directory, room_for, sync
from agentenv.errors import ConfigError, Problem, RuntimeUnavailable
from agentenv.images.content import close, digest_files, is_key, is_whole, mend, sizes
from agentenv.images.files import MAKE_ROOM, sync_tree
from agentenv.images.leftovers import remove_all
from agentenv.images.progress import LINES, Report

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,127}")
_FOLDERS = ("objects", "keys", "names", "steps", "locks", "tmp", "oci/blobs/sha256")


@dataclass(frozen=True, slots=True)
class Named:
    """What a name refers to.

    Attributes:
        name: What people call it.
        digest: Of its object.
        record: What is known of it, as JSON values.
    """

    name: str
    digest: str
    record: Mapping[str, Any]


class Store:
    """The store in one directory; any number of processes may use it at once.

    Args:
        root: The directory, made if missing.

    Raises:
        RuntimeUnavailable: It cannot be made or written.
    """

    def __init__(self, root: Path) -> None:
        self.root = root.absolute()
        try:
            if not self.root.exists():
                # Projects are copied into drives: nobody else's business.
                self.root.mkdir(parents=True, mode=0o700, exist_ok=True)
            for folder in _FOLDERS:
                (self.root / folder).mkdir(parents=True, mode=0o700, exist_ok=True)
                _close_to_others(self.root / folder.partition("/")[0])
        except OSError as error:
            raise RuntimeUnavailable(
                f"expected to write the image store {self.root}, got: {error.strerror}",
                "choose another directory with AGENTENV_CACHE=DIR",
            ) from error

    @classmethod
    def default(cls) -> Store:
        """The store of this user: ``$AGENTENV_CACHE``, ``$XDG_CACHE_HOME/agentenv`` or ``~/.cache/agentenv``."""
        return cls(cache_directory())

    @property
    def blobs(self) -> Path:
        """Layers as they were fetched, by digest."""
        return self.root / "oci/blobs"

    @property
    def own(self) -> tuple[Path, Path]:
        """What is never copied into the store, wherever it lies: itself, and where it is written to meanwhile."""
        return self.root, self.root / "tmp"

    @contextlib.contextmanager
    def work(self) -> Iterator[Path]:
        """An empty directory on the disk of the store that is gone after the block.

        Raises:
            ResourceLimit: The disk is full or read-only, or became so in the block.
        """
        self.sweep()
        with self.room():
            path, fd = self._locked_directory()
            try:
                yield path
            finally:
                remove_all(path)
                os.close(fd)

    def _locked_directory(self) -> tuple[Path, int]:
        """An empty directory of ours; whoever takes it for a dead process's before it is locked removes it."""
        while True:
            path = Path(tempfile.mkdtemp(dir=self.root / "tmp"))
            with contextlib.suppress(FileNotFoundError):
                return path, locks.hold(path, alone=True)

    def room(self) -> contextlib.AbstractContextManager[None]:
        """Turn a disk that is full or read-only into words.

        Raises:
            ResourceLimit: It is.
        """
        return room_for("", self.root, MAKE_ROOM)

    def sweep(self) -> int:
        """Remove what dead processes left in ``tmp``; returns how many."""
        removed = 0
        for path in (self.root / "tmp").iterdir():
            with contextlib.suppress(OSError):
                if (fd := locks.take(path, wait=False)) is not None:
                    # Between making a directory and locking it there is a moment.
                    if os.fstat(fd).st_nlink and not _is_fresh(path):
                        removed += remove_all(path)
                    os.close(fd)
        return removed

    @contextlib.contextmanager
    def lock(self, key: str, report: Report = LINES, what: str = "") -> Iterator[int]:
        """Be the only one who makes what a key stands for, until the end of the block.

        Raises:
            ResourceLimit: The disk is full or read-only.
        """

        def waiting() -> None:
            report.say(f"waiting for another process, which is making {what}")

        with contextlib.ExitStack() as held:
            with self.room():
                fd = held.enter_context(locks.locked(self.root / "locks" / key, waiting=waiting if what else None))
            yield fd

    def find(self, key: str) -> Path | None:
        """The object that came of a key's ingredients, or None, as where a file of it is gone or cut."""
        record = _read(self.root / "keys" / f"{key}.json")
        place = None if record is None else self.object_path(str(record.get("digest")))
        if record is None or place is None:
            return None
        try:
            found = sizes(place)
        except FileNotFoundError:  # it is being removed
            return None
        return place if record.get("files", found) == found else None

    def object_path(self, digest: str) -> Path | None:
        """The directory of an object, or None if it is not there."""
        path = self.root / "objects" / digest
        return path if is_key(digest) and path.is_dir() else None

    def once(
        self,
        key: str,
        build: Callable[[Path], None],
        *,
        what: str,
        report: Report = LINES,
        again: bool = False,
        digest: str | None = None,
    ) -> Path:
        """The object of a key, made unless it is there; of several who ask at once, one makes it.

        Args:
            key: Of all ingredients.
            build: Fills the directory it is given with files; they never change afterwards.
            what: What is made, for those who wait.
            report: Whom to tell.
            again: Whether it is made again even if it is there.
            digest: What names it; None is the digest of its content, which is all read for it.

        Returns:
            The directory of the object.
        """
        if not again and (found := self.find(key)) is not None:
            self.touch(found)
            return found
        with self.lock(key, report, what):
            if not again and (found := self.find(key)) is not None:
                self.touch(found)
                return found
            with self.work() as work:
                out = work / "out"
                out.mkdir()
                build(out)
                return self._publish(key, out, digest)

    def _publish(self, key: str, out: Path, given: str | None) -> Path:
        close(out)
        digest = given or digest_files(out)
        sync_tree(out)
        # Whoever collects must not see an object before its key.
        with locks.locked(self.root / "locks/collect", shared=True):
            place = self.root / "objects" / digest
            if not self._move(out, place) and not is_whole(place, out, None if given else digest):
                mend(place, out)
            self.touch(place)
            self._write(self.root / "keys" / f"{key}.json", {"digest": digest, "files": sizes(place)})
        return place

    def _move(self, out: Path, place: Path) -> bool:
        """Put an object into its place; False where one is there."""
        if place.is_dir():
            return False
        try:
            os.rename(out, place)
        except OSError as error:  # others may have made the same of other ingredients
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise
            return False
        sync(place.parent)
        return True

    def touch(self, path: Path) -> None:
        """Note that an object or a step was asked for just now."""
        with contextlib.suppress(OSError):
            os.utime(path)

    def hold(self, path: Path) -> int:
        """Keep a file of the store from being collected until the returned descriptor is closed.

        Raises:
            FileNotFoundError: It has been collected already.
        """
        return locks.hold(path)

    def name(self, kind: str, name: str, digest: str, record: Mapping[str, Any]) -> Named:
        """Give an object a name, which may have meant another one before.

        Raises:
            ConfigError: The name is not fit for a file.
            ResourceLimit: The disk is full or read-only.
        """
        check_name(name)
        folder = self.root / "names" / kind
        with self.room():
            folder.mkdir(exist_ok=True)
        self._write(folder / f"{name}.json", {**record, "digest": digest})
        return Named(name, digest, record)

    def named(self, kind: str, name: str) -> Named | None:
        """What a name means, or None."""
        if not _NAME.fullmatch(name):
            return None
        record = _read(self.root / "names" / kind / f"{name}.json")
        if record is None or self.object_path(str(record.get("digest"))) is None:
            return None
        return Named(name, str(record.pop("digest")), record)

    def names(self, kind: str) -> list[Named]:
        """All names of a kind."""
        folder = self.root / "names" / kind
        found = [self.named(kind, path.stem) for path in sorted(folder.glob("*.json"))]
        return [one for one in found if one is not None]

    def forget(self, kind: str, name: str) -> bool:
        """Take a name away; the object goes with the next collection. Whether there was such a name."""
        if not _NAME.fullmatch(name):
            return False
        try:
            with self.room():
                (self.root / "names" / kind / f"{name}.json").unlink()
        except FileNotFoundError:
            return False
        return True

    def _write(self, path: Path, record: Mapping[str, Any]) -> None:
        with self.work() as work:
            new = work / "record"
            new.write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
            sync_tree(new)
            os.replace(new, path)
            sync(path.parent)


def check_name(name: str, asked: str = "NAME") -> None:
    """Refuse a name that cannot become a file's.

    Args:
        name: The name.
        asked: What the user calls it, for messages.

    Raises:
        ConfigError: It cannot.
    """
    if not _NAME.fullmatch(name):
        message = f"expected letters, digits, '.', '_', '+' and '-', at most 128, got {name!r}"
        raise ConfigError([Problem("command line", asked, message)])


def shown(names: Sequence[str]) -> str:
    """What there is, for a message."""
    return ", ".join(names) or "none yet"


def instead(wanted: str, names: Sequence[str], remedy: str) -> str:
    """What helps where a name is missing: the nearest one that is there, and what makes it."""
    from agentenv.config.nearest import suggest_value  # only mistakes need it

    near = suggest_value(wanted, names)
    return f"{near} Else: {remedy}" if near else remedy


def _close_to_others(folder: Path) -> None:
    """Whatever the mode of the directory the user named, which is not ours to change."""
    status = folder.stat()
    if status.st_mode & 0o077 and status.st_uid == os.geteuid():
        folder.chmod(0o700)


def _read(path: Path) -> dict[str, Any] | None:
    try:
        value = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _is_fresh(path: Path) -> bool:
    """Whether a directory may be so new that its maker has not locked it yet."""
    return time.time() - path.stat().st_mtime < 1.0 and not any(path.iterdir())
