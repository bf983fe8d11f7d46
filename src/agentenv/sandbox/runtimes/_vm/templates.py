"""Snapshots of machines that have booted and imported what environments need, from which others are brought back.

Booting and importing take seconds; bringing back takes a fraction of one, and what nobody changes stays shared. A
template is kept in a cache under a name made from all that went into it, so that it serves later runs as well, and is
written once, whoever asks for it first. One that was damaged or taken away, while it is used as well, is made anew:
nothing is lost by that but the time of a boot.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import json
import logging
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TypeVar

from agentenv import locks
from agentenv.disk import Remedy
from agentenv.errors import RuntimeUnavailable
from agentenv.sandbox.runtimes._vm.files import room_in
from agentenv.sandbox.runtimes._vm.seal import damage, seal

logger = logging.getLogger("agentenv.sandbox")

SCRATCH = "scratch.ext4"
_FORMAT = "4"
_MOST_BYTES = 4 << 30
_KEPT_S = 3600.0
_REMEDY = Remedy("remove what is not needed there while nothing runs", "choose another disk with AGENTENV_CACHE=DIR")

Made = TypeVar("Made")


class Templates:
    """The templates in one directory."""

    def __init__(self, directory: Path) -> None:
        """Use a directory; it is made when it is needed."""
        self._directory = directory

    def get(self, parts: Sequence[str], make: Callable[[Path], None]) -> Path:
        """The template made from these parts.

        Args:
            parts: All that went into it.
            make: Writes it into an empty directory, when there is none yet or what is there is damaged.

        Raises:
            ResourceLimit: The disk is full, or may not be written.
        """
        name = hashlib.sha256(json.dumps([_FORMAT, *parts]).encode()).hexdigest()[:32]
        found = self._directory / name
        if found.is_dir() and not damage(found):
            _touch(found)
            return found
        with room_in(self._directory, "keep a machine's snapshot", _REMEDY):
            self._directory.mkdir(parents=True, exist_ok=True, mode=0o700)
            with locks.locked(self._directory / f"{name}.lock", waiting=partial(_say_waiting, found)):
                if found.is_dir():
                    if not (wrong := damage(found)):
                        return found
                    logger.warning("the snapshot %s that machines are brought back from is damaged (%s)", found, wrong)
                    self._discard(found)
                self._sweep(name)
                self._write(name, make)
        self._make_room(found)
        return found

    def bring_back(
        self,
        parts: Sequence[str],
        make: Callable[[Path], None],
        do: Callable[[Path], Made],
        *,
        seen: Path | None = None,
    ) -> Made:
        """Do something with a template; once more with another one, where it turns out to be damaged or gone.

        Args:
            parts: As in ``get``.
            make: As in ``get``.
            do: It; is told the template's directory.
            seen: What ``get`` has just answered, which then is not looked at again.
        """
        template = self.get(parts, make) if seen is None else seen
        try:
            return do(template)
        except (OSError, RuntimeUnavailable):
            if not (wrong := damage(template, thoroughly=True)):
                raise
            logger.warning("the snapshot %s was damaged or removed while it was used (%s)", template, wrong)
        return do(self.get(parts, make))

    def _write(self, name: str, make: Callable[[Path], None]) -> None:
        temporary = Path(tempfile.mkdtemp(prefix=f".{name}-", dir=self._directory))
        try:
            make(temporary)
            seal(temporary)
            os.rename(temporary, self._directory / name)
        except BaseException as error:
            shutil.rmtree(temporary, ignore_errors=True)
            # Where the lock was removed with a template, two may have made it at once.
            if not (isinstance(error, OSError) and error.errno in (errno.ENOTEMPTY, errno.EEXIST)):
                raise

    def _discard(self, template: Path) -> None:
        """Take a template away in one moment; machines that run keep hold of its memory."""
        aside = Path(tempfile.mkdtemp(prefix=f".{template.name}-", dir=self._directory))
        with contextlib.suppress(FileNotFoundError):
            os.rename(template, aside / "damaged")
        shutil.rmtree(aside, ignore_errors=True)

    def _sweep(self, ours: str) -> None:
        """Remove what killed processes left half made, of whichever template."""
        for left in self._directory.glob(".*-*"):
            name = left.name[1:].partition("-")[0]
            with contextlib.suppress(OSError), open(self._directory / f"{name}.lock", "w") as lock:
                if name != ours:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(left, ignore_errors=True)

    def _make_room(self, newest: Path) -> None:
        """Remove those unused for longest, where all of them take too much; never one that was used within the hour.

        Machines that run keep hold of the memory they came from, wherever its name is gone.
        """
        used: dict[Path, float] = {}
        for path in self._directory.iterdir():
            with contextlib.suppress(OSError):  # others remove some as well
                if path.is_dir():
                    used[path] = path.stat().st_mtime
        left = _MOST_BYTES
        for path in sorted(used, key=lambda path: used[path], reverse=True):
            with contextlib.suppress(OSError):
                left -= sum(file.stat().st_blocks * 512 for file in path.iterdir())
            if left < 0 and path != newest and time.time() - used[path] > _KEPT_S and path.name[0] != ".":
                shutil.rmtree(path, ignore_errors=True)
                path.with_name(f"{path.name}.lock").unlink(missing_ok=True)


def _touch(template: Path) -> None:
    """Note that it was used just now."""
    with contextlib.suppress(OSError):  # a cache of somebody else's, or one that was removed in this moment
        os.utime(template)


def _say_waiting(template: Path) -> None:
    logger.info(
        "waiting for another process, which boots a machine to bring others back from (%s); lslocks shows which one"
        " has %s.lock, should it have been stopped",
        template,
        template.name,
    )
