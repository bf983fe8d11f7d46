"""Where sandboxes that outlive their command are found: one directory of the user's, with some files for each.

    NAME.json    who keeps it: a process, named so that no other one can be taken for it
    NAME.sock    where that process answers
    NAME.log     what went wrong in that process; empty as a rule
    lock         held by whoever changes what there is

What a killed keeper leaves is removed by whoever sees it next; its log stays, if anything is in it, until ``forget``,
the next sandbox of the name, or ``sweep``. The directory is its owner's alone, and refused if not.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import socket
import stat
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from agentenv import locks
from agentenv.config.nearest import suggest_value
from agentenv.disk import Remedy, room_for
from agentenv.errors import AgentEnvError, ConfigError, Problem, RuntimeUnavailable
from agentenv.fleet.owner import Owner
from agentenv.sandbox.sweep import sweep as sweep_all

_LOG = logging.getLogger(__name__)
_MOST_BYTES = 1 << 16
_BACKLOG = 64
# Not TMPDIR: shells that differ in it see the same sandboxes.
_WITHOUT = Path("/tmp")
_TIME = struct.Struct("@ll")
_REMEDY = Remedy("make some", "choose another directory with XDG_RUNTIME_DIR=DIR")


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
        path = _WITHOUT / f"agentenv-{os.geteuid()}"
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
    with room_for("what tells where sandboxes are, in ", path, _REMEDY), locks.locked(path / "lock"):
        yield


def claim(name: str) -> Path:
    """Have a name for this process, from now until ``give_up``; returns where.

    Raises:
        ConfigError: Another process has it.
    """
    path = place()
    with _changing(path):
        _expect_nobody(name, _owner(path, name))
        lost = [name] if (path / f"{name}.json").exists() else []
        _write(path, name)
    _sweep_after(lost)
    return path


def renew(name: str, before: Path) -> tuple[Path, bool]:
    """See to it that a name of this process is still found.

    What cleans up directories for temporary files goes by times; a runtime directory goes with its user's last session.

    Args:
        name: The name.
        before: Where it was found.

    Returns:
        Where it is found now, and whether its socket is still there; if not, ``listen`` anew.

    Raises:
        ConfigError: Another process has the name by now.
    """
    me, path = Owner.current(), place()
    with _changing(path):
        owner = _owner(path, name)
        there = owner == me and (path / f"{name}.sock").exists()
        if not there:
            _expect_nobody(name, None if owner == me else owner)
            _write(path, name)
        for one in (f"{name}.json", f"{name}.sock", f"{name}.log", "lock"):
            with contextlib.suppress(FileNotFoundError):
                os.utime(path / one)
    if path != before and before.is_dir():
        _give_up(before, name, me, True)
    return path, there


def give_up(name: str, owner: Owner, *, words: bool = True) -> None:
    """Remove what belongs to a name, if that process has it. Idempotent.

    Args:
        name: The name.
        owner: The process.
        words: Whether its log goes too if something is in it.
    """
    _give_up(place(), name, owner, words)


def _give_up(path: Path, name: str, owner: Owner, words: bool) -> None:
    with _changing(path):
        if _read(path / f"{name}.json") == owner:
            _remove(path, name, words)


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


def dial(name: str, timeout_s: float | None = None) -> socket.socket:
    """A connection to a keeper.

    Args:
        name: Of its sandbox.
        timeout_s: How long to wait where others are waiting already; None for as long as it takes.

    Raises:
        BlockingIOError: So many wait there already, and it takes none of them.
        OSError: Nobody answers there.
    """
    with _reaching(name) as address:
        caller = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        try:
            if timeout_s is not None:
                # A timeout of Python's makes it non-blocking, and then a full queue is an error at once.
                waiting = _TIME.pack(int(timeout_s), max(1, int(timeout_s % 1 * 1e6)))
                caller.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, waiting)
            caller.connect(address)
        except BaseException:
            caller.close()
            raise
        return caller


def find(name: str) -> Kept:
    """The keeper of a name.

    Raises:
        ConfigError: There is none; has the nearest name, or where its last words are.
    """
    there = {one.name: one for one in find_all()}
    if name in there:
        return there[name]
    known = f"the sandboxes here are {', '.join(there)}" if there else "there are none: agentenv sandbox create"
    hint = suggest_value(name, there) or known
    if (log := last_words().get(name)) is not None:
        hint = f"it ended on a fault, which {log} tells; agentenv sandbox rm {name} removes that"
    raise ConfigError([Problem("command line", "NAME", f"expected the name of a sandbox, got {name!r}", hint)])


def find_all() -> list[Kept]:
    """All that have a living keeper, by name; what is left of the others is removed, but for their last words.

    Their machines' directories and control groups too, which only a keeper that ends in order removes itself.
    """
    path = place()
    found, lost = [], []
    with _changing(path):
        for name in sorted(one.stem for one in path.glob("*.json") if not one.is_dir()):
            owner = _owner(path, name)
            if owner is None:
                _remove(path, name, False)
                lost.append(name)
            else:
                found.append(Kept(name, owner))
    _sweep_after(lost)
    return found


def has(name: str, owner: Owner) -> bool:
    """Whether a name is a keeper's; one that ends in order gives it up, one that is killed does not."""
    return _read(place() / f"{name}.json") == owner


def log_of(name: str) -> Path:
    """Where the keeper of a name says what went wrong."""
    return place() / f"{name}.log"


def last_words() -> dict[str, Path]:
    """By the name of the sandbox, the logs of keepers that have ended on a fault."""
    path = place()
    with _changing(path):
        found = [one for one in sorted(path.glob("*.log")) if _owner(path, one.stem) is None and _holds_words(one)]
    return {one.stem: one for one in found}


def _holds_words(log: Path) -> bool:
    found = log.lstat()
    return stat.S_ISREG(found.st_mode) and found.st_size > 0


def forget(name: str) -> None:
    """Remove the last words of a keeper that is gone. Idempotent."""
    path = place()
    with _changing(path):
        if _owner(path, name) is None:
            _remove(path, name, True)


def sweep() -> tuple[str, ...]:
    """Remove what killed keepers left, with their last words; returns the names of their sandboxes."""
    path = place()
    with _changing(path):
        names = sorted({one.stem for ending in ("json", "log") for one in path.glob(f"*.{ending}")})
        stale = [name for name in names if _owner(path, name) is None]
        for name in stale:
            _remove(path, name, True)
    return tuple(stale)


def _sweep_after(lost: Sequence[str]) -> None:
    """Remove what keepers that are gone left elsewhere: directories of machines, control groups, rules of networks."""
    if not lost:
        return
    try:
        sweep_all()
    except (AgentEnvError, OSError) as error:  # nobody who lives is the worse for it
        _LOG.warning("what is left of %s cannot be removed: %s; agentenv sweep", ", ".join(lost), error)


def _expect_nobody(name: str, owner: Owner | None) -> None:
    if owner is not None:
        what = f"expected a name that no sandbox has, got {name!r}, which process {owner.pid} keeps"
        hint = f"agentenv sandbox rm {name}, or choose another"
        raise ConfigError([Problem("command line", "name", what, hint)])


def _write(path: Path, name: str) -> None:
    """A record of this process, and nothing of another one."""
    _remove(path, name, True)
    record = json.dumps({"name": name, "owner": Owner.current().as_record()})
    (path / f"{name}.json").write_text(record + "\n", encoding="utf-8")


def _owner(path: Path, name: str) -> Owner | None:
    """Who keeps it, if that process lives."""
    owner = _read(path / f"{name}.json")
    return owner if owner is not None and owner.alive() else None


def _read(record: Path) -> Owner | None:
    try:
        # Without waiting: what was put in the place of a record may be a pipe.
        fd = os.open(record, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            found = json.loads(os.read(fd, _MOST_BYTES))
        finally:
            os.close(fd)
    except (OSError, ValueError, RecursionError):
        return None
    return Owner.from_record(found.get("owner")) if isinstance(found, dict) else None


def _remove(path: Path, name: str, words: bool) -> None:
    for ending in ("json", "sock"):
        with contextlib.suppress(IsADirectoryError):  # of somebody else, and nobody's sandbox
            (path / f"{name}.{ending}").unlink(missing_ok=True)
    log = path / f"{name}.log"
    with contextlib.suppress(FileNotFoundError, IsADirectoryError):
        if words or not log.lstat().st_size:
            log.unlink()


@contextlib.contextmanager
def _reaching(name: str) -> Iterator[str]:
    """The address of a socket. Addresses have room for 107 bytes, and paths do not keep to that."""
    fd = os.open(place(), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{fd}/{name}.sock"
    finally:
        os.close(fd)
