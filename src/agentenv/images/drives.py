"""Drives beside the image: an empty one to write on, and read-only ones with directories of the host."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from agentenv.errors import ConfigError, Problem
from agentenv.images.copying import MAX_FILES, MAX_MB, Copier
from agentenv.images.ext4 import make_empty, make_ext4
from agentenv.images.progress import LINES, Report
from agentenv.images.store import Store, key_of
from agentenv.images.trees import digest_tree

_FORMAT = 1
_SCRATCH, _DIRECTORIES = "scratch.ext4", "directories.ext4"
_LEAST_MB = 4


def scratch_template(size_mb: int, store: Store, report: Report = LINES) -> Path:
    """An empty file system, to be copied by ``files.copy_sparse`` for each machine.

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
        ConfigError: One is not there, cannot be read, or goes beyond a limit; names it.
        RuntimeUnavailable: e2fsprogs is not installed.
    """
    copier = Copier("sys.path", max_mb, max_files, frozenset(map(os.path.realpath, hidden)))
    places = []
    with store.work() as work:
        root = work / "root"
        root.mkdir()
        with report.task(f"copying {', '.join(str(path) for path in paths)}"):
            for number, path in enumerate(paths):
                if not path.exists():
                    message = f"expected a directory or a file, and {path} is not there"
                    raise ConfigError([Problem("directory", "sys.path", message)])
                inside = f"{number}/{path.absolute().name or 'root'}"
                (root / str(number)).mkdir()
                copier.copy(path, root / inside)
                places.append((path, inside))
        for note in copier.notes:
            report.say(note)

        def build(out: Path) -> None:
            make_ext4(root, out / _DIRECTORIES, label="agentenv-dirs", keep_times=False)

        key = key_of("directories", _FORMAT, digest_tree(root))
        place = store.once(key, build, what="the same drive", report=report)
    return place / _DIRECTORIES, places
