"""Where sandboxes that outlive their command are found: one directory of the user's, a record and a socket for each.

    NAME.json    who keeps it: a process, named so that no other one can be taken for it
    NAME.sock    where that process answers
    lock         held by whoever changes what there is

What a killed keeper leaves is removed by whoever sees it next. The directory is its owner's alone, and refused if not.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import stat
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from agentenv import locks
from agentenv.config.nearest import suggest_value
from agentenv.errors import ConfigError, Problem, RuntimeUnavailable
from agentenv.fleet.owner import Owner

_MOST_BYTES = 1 << 16
_BACKLOG = 64


@dataclass(frozen=True, slots=True)
class Kept:
    """A sandbox that has a keeper.

    Attributes:
        name: What people call it.
        owner: Its keeper.
    """

    name: str
    owner: Owner


def place() -> Path:
    """The directory, made if missing.

    Raises:
        RuntimeUnavailable: It cannot be made, or is not this user's alone.
    """
    base = os.environ.get("XDG_RUNTIME_DIR", "")
    if base and os.path.isabs(base) and os.path.isdir(base):
        path = Path(base) / "agentenv"
    else:
        path = Path(tempfile.gettempdir()) / f"agentenv-{os.geteuid()}"
    try:
        with contextlib.suppress(FileExistsError):
            path.mkdir(mode=0o700)
        found = path.lstat()
    except OSError as error:
        raise RuntimeUnavailable(
            f"expected a directory for the sockets of sandboxes at {path}, got: {error.strerror}",
            "set XDG_RUNTIME_DIR to a directory of yours",
        ) from error
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o077:
        what = f"a directory of user {found.st_uid} with mode {stat.S_IMODE(found.st_mode):o}"
        got = what if stat.S_ISDIR(found.st_mode) else "something else"
        raise RuntimeUnavailable(
            f"expected {path} to be a directory of user {os.geteuid()} with mode 700, got {got}",
            f"look at who made it, and remove it; or chmod 700 {path}",
        )
    return path


@contextlib.contextmanager
def _changing(path: Path) -> Iterator[None]:
    with locks.locked(path / "lock"):
        yield


def claim(name: str) -> None:
    """Have a name for this process, from now until ``give_up``.

    Raises:
        ConfigError: Another process has it.
    """
    path = place()
    with _changing(path):
        owner = _owner(path, name)
        if owner is not None:
            what = f"expected a name that no sandbox has, got {name!r}, which process {owner.pid} keeps"
            hint = f"agentenv sandbox rm {name}, or choose another"
            raise ConfigError([Problem("command line", "name", what, hint)])
        _remove(path, name)
        record = json.dumps({"name": name, "owner": Owner.current().as_record()})
        (path / f"{name}.json").write_text(record + "\n", encoding="utf-8")


def give_up(name: str, owner: Owner) -> None:
    """Remove what belongs to a name, if that process has it. Idempotent."""
    path = place()
    with _changing(path):
        if _read(path / f"{name}.json") == owner:
            _remove(path, name)


def listen(name: str) -> socket.socket:
    """The socket at which a name of this process is answered."""
    with _reaching(name) as address:
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        try:
            listener.bind(address)
            listener.listen(_BACKLOG)
        except BaseException:
            listener.close()
            raise
        return listener


def dial(name: str) -> socket.socket:
    """A connection to a keeper.

    Raises:
        OSError: Nobody answers there.
    """
    with _reaching(name) as address:
        caller = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        try:
            caller.connect(address)
        except BaseException:
            caller.close()
            raise
        return caller


def find(name: str) -> Kept:
    """The keeper of a name.

    Raises:
        ConfigError: There is none; has the nearest name.
    """
    there = {one.name: one for one in find_all()}
    if name in there:
        return there[name]
    known = f"the sandboxes here are {', '.join(there)}" if there else "there are none: agentenv sandbox create"
    hint = suggest_value(name, there) or known
    raise ConfigError([Problem("command line", "NAME", f"expected the name of a sandbox, got {name!r}", hint)])


def find_all() -> list[Kept]:
    """All that have a living keeper, by name; what is left of the others is removed."""
    path = place()
    found = []
    with _changing(path):
        for name in sorted(one.stem for one in path.glob("*.json")):
            owner = _owner(path, name)
            if owner is None:
                _remove(path, name)
            else:
                found.append(Kept(name, owner))
    return found


def sweep() -> tuple[str, ...]:
    """Remove what killed keepers left; returns the names of their sandboxes."""
    path = place()
    with _changing(path):
        stale = [one.stem for one in sorted(path.glob("*.json")) if _owner(path, one.stem) is None]
        for name in stale:
            _remove(path, name)
    return tuple(stale)


def _owner(path: Path, name: str) -> Owner | None:
    """Who keeps it, if that process lives."""
    owner = _read(path / f"{name}.json")
    return owner if owner is not None and owner.alive() else None


def _read(record: Path) -> Owner | None:
    try:
        with open(record, "rb") as file:
            found = json.loads(file.read(_MOST_BYTES))
    except (OSError, ValueError):
        return None
    return Owner.from_record(found.get("owner")) if isinstance(found, dict) else None


def _remove(path: Path, name: str) -> None:
    for ending in ("json", "sock"):
        (path / f"{name}.{ending}").unlink(missing_ok=True)


@contextlib.contextmanager
def _reaching(name: str) -> Iterator[str]:
    """The address of a socket. Addresses have room for 107 bytes, and paths do not keep to that."""
    fd = os.open(place(), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{fd}/{name}.sock"
    finally:
        os.close(fd)
