"""Drives beside the image: an empty one to write on, and read-only ones with directories of the host."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from pathlib import Path

from agentenv.errors import ConfigError, Problem
from agentenv.images.content import key_of
from agentenv.images.copying import MAX_FILES, MAX_MB, Changed, Copier
from agentenv.images.ext4 import make_empty, make_ext4
from agentenv.images.progress import LINES, Report
from agentenv.images.store import Store

_LOG = logging.getLogger(__name__)
_FORMAT = 2
_SCRATCH, _DIRECTORIES = "scratch.ext4", "directories.ext4"
_LEAST_MB = 4


def scratch_template(size_mb: int, store: Store, report: Report = LINES) -> Path:
    """An empty file system, to be copied sparsely for each machine.

    Raises:
        ConfigError: It would be too small for a file system.
        RuntimeUnavailable: e2fsprogs is not installed.
    """
    if size_mb < _LEAST_MB:
        raise ConfigError([Problem("drive", "disk_mb", f"expected at least {_LEAST_MB} MB to write on, got {size_mb}")])

    def build(out: Path) -> None:
        make_empty(out / _SCRATCH, size_mb=size_mb, label="agentenv-scratch")

    # Named by its size: reading the holes of a large one would take minutes.
    key = key_of("scratch", _FORMAT, size_mb)
    return store.once(key, build, what="the scratch drive", report=report, digest=key) / _SCRATCH


def directory_drive(
    paths: Sequence[Path],
    store: Store,
    report: Report = LINES,
    *,
    hidden: Sequence[str] = (),
    max_mb: int = MAX_MB,
    max_files: int = MAX_FILES,
) -> tuple[Path, list[tuple[Path, str]]]:
    """A read-only drive with directories or modules of the host, without what tools leave beside code.

    What cannot be read is left out, and told in a warning: it may lie anywhere on a path, and nobody need want it.

    Args:
        paths: Directories or files, in the order of the result.
        store: Where it is kept, by its content.
        report: Whom to tell.
        hidden: Files and directories that are left out where they lie in what is copied.
        max_mb: Most MiB of all together.
        max_files: Most files of all together.

    Returns:
        The image, and for each path where it lies in it, as in ("/home/me/project", "0/project").

    Raises:
        ConfigError: One is not there, or goes beyond a limit; names it.
        RuntimeUnavailable: e2fsprogs is not installed.
    """
    for path in paths:
        if not path.exists():
            message = f"expected a directory or a file, and {path} is not there"
            raise ConfigError([Problem("directory", "sys.path", message)])
    places = [(path, f"{number}/{path.absolute().name or 'root'}") for number, path in enumerate(paths)]
    left_out = frozenset(map(os.path.realpath, (*hidden, *map(str, store.own))))

    def key(copier: Copier, found: Sequence[Path]) -> str:
        return key_of(
            "directories", _FORMAT, [(at, copier.digest(path)) for path, (_, at) in zip(found, places, strict=True)]
        )

    def copy(work: Path) -> str:
        """Copy all of it; returns the key of the copy."""
        copier = Copier("sys.path", max_mb, max_files, left_out, is_lenient=True)
        with report.task(f"copying {', '.join(str(path) for path in paths)}"):
            for path, inside in places:
                (work / inside).parent.mkdir()
                copier.copy(path, work / inside)
        for note in copier.notes:
            report.say(note)
        return key(Copier("sys.path", max_mb, max_files), [work / inside for _, inside in places])

    def make(work: Path, out: Path) -> None:
        make_ext4(work, out / _DIRECTORIES, label="agentenv-dirs", keep_times=False)

    def build(out: Path) -> None:
        with store.work() as work:
            if copy(work) != wanted:
                raise Changed
            make(work, out)

    reader = Copier("sys.path", max_mb, max_files, left_out, is_lenient=True)
    wanted = key(reader, paths)
    if reader.unread:
        more = f" and {len(reader.unread) - 1:,} more" if len(reader.unread) > 1 else ""
        _LOG.warning("sys.path: %s%s cannot be read, and machines do without", reader.unread[0], more)
    try:
        place = store.once(wanted, build, what="the same drive", report=report)
    except Changed:
        # Somebody writes to it just now, as to a log: what was copied is what it is called by.
        with store.work() as work:
            place = store.once(copy(work), lambda out: make(work, out), what="the same drive", report=report)
    return place / _DIRECTORIES, places
