"""Where a Firecracker runs: in a directory of the machine's home, or jailed in one by its own jailer.

Either way it sees its files under the same short names, relative to its working directory. So a snapshot made in one
place is found right in any other, jailed or not.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from agentenv.errors import RuntimeUnavailable

API_SOCKET, VSOCK_SOCKET = "api.sock", "v.sock"
_STAGE = Path(__file__).with_name("_jailed.py")


@dataclass(frozen=True, slots=True)
class JailOptions:
    """How machines are jailed.

    Attributes:
        jailer: Path of the jailer.
        uid: User its Firecracker runs as.
        gid: Group it runs as.
    """

    jailer: str
    uid: int
    gid: int


class Place(Protocol):
    """A directory for one Firecracker.

    Attributes:
        root: What it takes for its working directory, as seen from here.
    """

    root: Path

    def show(self, path: Path, name: str, *, writable: bool = False) -> None:
        """Have it see a file under a name. Before ``argv``."""

    def argv(self, binary: str, id: str) -> list[str]:
        """The program to start, and its arguments."""

    def clear(self) -> None:
        """Remove it. Idempotent; never while it is used."""


class Plain:
    """A directory of the home, with links to the files."""

    def __init__(self, home: Path, level: str = "Warn") -> None:
        """Make it; ``level`` is what Firecracker logs."""
        self._level = level
        self.root = home / "monitor"
        self.root.mkdir(mode=0o700)

    def show(self, path: Path, name: str, *, writable: bool = False) -> None:
        (self.root / name).symlink_to(path.absolute())

    def argv(self, binary: str, id: str) -> list[str]:
        return [binary, *_arguments(self._level), "--id", id]

    def clear(self) -> None:
        shutil.rmtree(self.root, ignore_errors=True)


class Jail:
    """A root directory of its own, under a user of its own, made by the jailer when it starts."""

    def __init__(self, home: Path, id: str, binary: str, options: JailOptions, level: str = "Warn") -> None:
        """Plan it; ``_jailed.py`` and the jailer make it."""
        self._options = options
        self._level = level
        self._home = home.resolve()
        self._top = self._home / os.path.basename(os.path.realpath(binary))
        self.root = self._top / id / "root"
        self._binds: list[tuple[str, str, bool]] = []

    def show(self, path: Path, name: str, *, writable: bool = False) -> None:
        path = path.resolve()
        found = path.stat()
        if writable:
            os.chown(path, self._options.uid, self._options.gid)
        elif not self._readable(found):
            raise RuntimeUnavailable(
                f"{path}: the jailed user {self._options.uid}:{self._options.gid} may not read it",
                f"chgrp {self._options.gid} {path} && chmod g+r {path}",
            )
        self._binds.append((str(path), name, writable))

    def argv(self, binary: str, id: str) -> list[str]:
        jailer = [
            self._options.jailer,
            *("--id", id, "--exec-file", os.path.realpath(binary), "--chroot-base-dir", str(self._home)),
            *("--uid", str(self._options.uid), "--gid", str(self._options.gid)),
            *("--", *_arguments(self._level)),
        ]
        plan = {"home": str(self._home), "root": str(self.root), "binds": self._binds, "argv": jailer}
        return [sys.executable, "-I", "-S", str(_STAGE), json.dumps(plan)]

    def clear(self) -> None:
        shutil.rmtree(self._top, ignore_errors=True)

    def _readable(self, found: os.stat_result) -> bool:
        if found.st_uid == self._options.uid:
            return bool(found.st_mode & 0o400)
        if found.st_gid == self._options.gid:
            return bool(found.st_mode & 0o040)
        return bool(found.st_mode & 0o004)


def _arguments(level: str) -> list[str]:
    # What it logs goes where the console goes; from "Info" on, a line for every request.
    return ["--api-sock", API_SOCKET, "--level", level]
