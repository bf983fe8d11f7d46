"""Copies a project for a machine: what it is made of, not what tools leave beside it, and not without a limit."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from agentenv.errors import ConfigError, Problem, counted
from agentenv.images.files import digest_file
from agentenv.images.inodes import EPOCH
from agentenv.images.inside import DEEPEST

MAX_MB = 1024
MAX_FILES = 100_000
# Of what is removed while it is copied, as files are that a program writes and renames: it is not there.
_GONE = (FileNotFoundError, NotADirectoryError)
# What a tool makes again, or what is another machine's.
SKIPPED = frozenset(
    """
    __pycache__ .cache .direnv .eggs .git .hg .hypothesis .idea .import_linter_cache .ipynb_checkpoints .mypy_cache .nox
    .pytest_cache .ruff_cache .svn .tox .venv .vscode node_modules venv
    """.split()  # noqa: SIM905 (one a line would be a page)
)
_SKIPPED_ON_TOP = frozenset(("runs", "build", "dist", "wandb", "mlruns"))


class Changed(Exception):
    """What was to be copied is not what it was when it was looked at."""


@dataclass(slots=True)
class Copier:
    """Copies several directories under one limit.

    Attributes:
        where: What asks for it, for messages, as in "--project".
        max_mb: Most MiB in all.
        max_files: Most files in all.
        hidden: Files and directories that are never copied, as real paths.
        notes: What was left out, in sentences.
        is_lenient: Whether what cannot be read is left out, and told by ``unread``, where it is refused otherwise.
        unread: What could not be read.
    """

    where: str
    max_mb: int = MAX_MB
    max_files: int = MAX_FILES
    hidden: frozenset[str] = frozenset()
    notes: list[str] = field(default_factory=list)
    is_lenient: bool = False
    unread: list[Path] = field(default_factory=list)
    _bytes: int = 0
    _files: int = 0

    def copy(self, source: Path, destination: Path) -> None:
        """Copy a directory into one that does not exist yet, or a single file.

        Files can be read and, where they could be before, executed by everybody; their times are all the same.

        Raises:
            ConfigError: It is larger than the limit, or cannot be read.
        """
        try:
            if source.is_file():
                self._file(source, source, destination)
                return
            destination.mkdir(parents=True)
            destination.chmod(0o755)
            for path in self._walk(source, source, top=True):
                with contextlib.suppress(*_GONE):
                    self._entry(source, path, destination / path.relative_to(source))
        except PermissionError as error:
            raise self._unreadable(error) from error

    def _entry(self, source: Path, path: Path, place: Path) -> None:
        mode = path.lstat().st_mode
        if stat.S_ISDIR(mode):
            place.mkdir()
            place.chmod(0o755)
        elif stat.S_ISLNK(mode):
            os.symlink(os.readlink(path), place)
            os.utime(place, (EPOCH, EPOCH), follow_symlinks=False)
        elif stat.S_ISREG(mode):
            self._file(source, path, place)
        else:
            self.notes.append(f"{path} is neither a file nor a directory and was left out")

    def digest(self, source: Path) -> str:
        """The SHA-256 of what ``copy`` would make of it: names, kinds, contents and whether they can be executed.

        Raises:
            ConfigError: As for ``copy``.
        """
        found = hashlib.sha256()
        try:
            for path in [source] if source.is_file() else self._walk(source, source, top=True):
                with contextlib.suppress(*(() if path == source else _GONE)):
                    if (told := self._told(source, path)) is not None:
                        found.update(json.dumps([str(path.relative_to(source)), *told]).encode() + b"\n")
        except PermissionError as error:
            raise self._unreadable(error) from error
        return found.hexdigest()

    def _told(self, source: Path, path: Path) -> tuple[tuple[int, bool], str] | None:
        """Kind and content of what is copied; None of what is not."""
        status, content = path.stat() if path == source else path.lstat(), ""
        if stat.S_ISLNK(status.st_mode):
            content = os.readlink(path)
        elif stat.S_ISREG(status.st_mode):
            self._count(source, status.st_size)
            try:
                content = digest_file(path)
            except PermissionError as error:
                self._leave_out(path, error)
                return None
        elif not stat.S_ISDIR(status.st_mode):
            return None
        return (stat.S_IFMT(status.st_mode), stat.S_ISREG(status.st_mode) and bool(status.st_mode & 0o111)), content

    def _leave_out(self, path: Path, error: PermissionError) -> None:
        if not self.is_lenient:
            raise error
        self.unread.append(path)

    def _unreadable(self, error: PermissionError) -> ConfigError:
        message = f"expected a directory that can be read, and {error.filename} cannot"
        return ConfigError([Problem("command line", self.where, message)])

    def _walk(self, top_directory: Path, folder: Path, *, top: bool, depth: int = 1) -> Iterator[Path]:
        if depth > DEEPEST:
            message = f"expected directories at most {DEEPEST} deep, got more: {str(folder)[:200]!r}"
            raise ConfigError([Problem("directory", self.where, message, "name the directory of the code alone")])
        try:
            os.stat(f"{folder}/.")  # names can be read without this, and nothing else
            found = sorted(folder.iterdir())
        except PermissionError as error:
            self._leave_out(folder, error)
            return
        except _GONE:
            if top:
                raise
            return
        for path in found:
            if path.name in SKIPPED or (top and path.name in _SKIPPED_ON_TOP) or _is_environment(path):
                continue
            if self.hidden and os.path.realpath(path) in self.hidden:
                continue
            self._count(top_directory, 0)
            yield path
            if path.is_dir() and not path.is_symlink():
                yield from self._walk(top_directory, path, top=False, depth=depth + 1)

    def _file(self, source: Path, path: Path, place: Path) -> None:
        self._count(source, path.stat().st_size)
        try:
            old = open(path, "rb")  # noqa: SIM115  # closed below
        except PermissionError as error:
            self._leave_out(path, error)
            return
        with old, open(place, "xb") as new:
            while chunk := old.read(1 << 20):
                new.write(chunk)
            os.fchmod(new.fileno(), 0o755 if os.fstat(old.fileno()).st_mode & 0o111 else 0o644)
        os.utime(place, (EPOCH, EPOCH))

    def _count(self, source: Path, size: int) -> None:
        self._bytes += size
        self._files += 1
        if self._bytes > self.max_mb << 20 or self._files > self.max_files:
            limits = f"at most {self.max_mb} MB in {counted(self.max_files, 'file')}"
            raise ConfigError(
                [
                    Problem(
                        "directory",
                        self.where,
                        f"expected directories of {limits} to copy into the machine, and {source} goes beyond that",
                        "put data elsewhere, or name the directory of the code alone",
                    )
                ]
            )


def _is_environment(path: Path) -> bool:
    """Whether a directory is a virtual environment, whatever its name."""
    try:
        return (path / "pyvenv.cfg").is_file()
    except PermissionError:
        return False
