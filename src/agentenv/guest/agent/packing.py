"""A directory of a machine that runs, as a tar archive.

Such a directory changes while it is read, and some of it is no files but the kernel's words: what vanishes meanwhile is
not in the archive, and what the kernel makes up below the directory that was asked for is not gone through. A pipe of
its name stands for what was left out, for whoever lays the archive out tells of pipes.
"""

from __future__ import annotations

import contextlib
import errno
import io
import os
import stat
import tarfile
from collections.abc import Iterator, Sequence
from typing import IO, NamedTuple

_BLOCK = 1 << 18
# What the kernel shows as a file is short; a longer one is memory, or has no end.
_MOST_SHOWN = 1 << 18
_GONE = (errno.ENOENT, errno.ESRCH, errno.ENOTDIR)
_DAMAGED = (errno.EIO, errno.ESTALE)
_MADE_UP = frozenset(
    """
    autofs binfmt_misc bpf cgroup cgroup2 configfs debugfs devpts devtmpfs efivarfs fusectl mqueue proc pstore
    securityfs sysfs tracefs
    """.split()  # noqa: SIM905 (one a line would be a page)
)
# Of this start of the machine alone, and the tools that every machine is given.
_PASSED_BY = (b"/run", b"/.agentenv")


def pack(path: str, stdout: int) -> None:
    """Write it as an archive.

    Args:
        path: What is packed; "." in the archive.
        stdout: Descriptor of the archive.

    Raises:
        OSError: Something cannot be read; its words name the path.
        BrokenPipeError: Nobody takes the archive.
    """
    made_up, passing = _mounts()
    with _named(path):
        device = os.lstat(path).st_dev
    with os.fdopen(os.dup(stdout), "wb") as stream, tarfile.open(fileobj=stream, mode="w|") as archive:
        pending = [(path, ".", device)]
        while pending:
            here, name, above = pending.pop()
            with contextlib.ExitStack() as stack:
                try:
                    with _named(here):
                        found = _look(archive, here, name, above, made_up, passing, stack)
                except OSError as error:
                    if name == ".":
                        raise
                    if error.errno in _GONE:
                        continue
                    if error.errno not in _DAMAGED and device not in made_up:
                        raise
                    archive.addfile(_left_out(name))
                    continue
                archive.addfile(found.member, found.content)  # type: ignore[arg-type]  # of which it calls read()
            if found.is_passed_by:
                archive.addfile(_left_out(f"{name}/*"))
            pending += [(os.path.join(here, one), f"{name}/{one}", found.device) for one in reversed(found.below)]


class _Found(NamedTuple):
    """What there is at a path: its entry in the archive, and what is in it."""

    member: tarfile.TarInfo
    content: _Content | io.BytesIO | None = None
    below: Sequence[str] = ()
    device: int = 0
    is_passed_by: bool = False


def _look(
    archive: tarfile.TarFile,
    path: str,
    name: str,
    above: int,
    made_up: frozenset[int],
    passing: frozenset[int],
    stack: contextlib.ExitStack,
) -> _Found:
    """Read as much as shows that it can be read: what is in the archive cannot be taken back."""
    member = archive.gettarinfo(path, name)
    if member is None:  # a socket
        return _Found(_left_out(name))
    if member.isdir():
        device = os.lstat(path).st_dev
        if device != above and device in made_up | passing:
            return _Found(member, is_passed_by=True)
        return _Found(member, below=sorted(os.listdir(path)), device=device)
    if not member.isreg():
        return _Found(member)
    # Without waiting, and not through a link: it may have become something else meanwhile.
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    file = stack.enter_context(open(fd, "rb"))  # noqa: SIM115  # the stack closes it
    found = os.fstat(fd)
    if not stat.S_ISREG(found.st_mode):
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
    if found.st_dev in made_up:  # where sizes say nothing
        shown = file.read(_MOST_SHOWN + 1) or b""
        if len(shown) > _MOST_SHOWN:
            return _Found(_left_out(name))
        member.size = len(shown)
        return _Found(member, io.BytesIO(shown))
    member.size = found.st_size
    return _Found(member, _Content(path, file.read(min(_BLOCK, member.size)), file))


def _left_out(name: str) -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    member.type = tarfile.FIFOTYPE
    return member


class _Content:
    """A file's bytes, as many as it had."""

    def __init__(self, path: str, first: bytes, rest: IO[bytes]) -> None:
        self._path, self._first, self._rest = path, first, rest

    def read(self, size: int) -> bytes:
        taken, self._first = self._first[:size], self._first[size:]
        with _named(self._path):
            taken += self._rest.read(size - len(taken))
            if len(taken) < size:
                raise OSError(errno.EIO, "it became shorter while it was copied")
        return taken


@contextlib.contextmanager
def _named(path: str) -> Iterator[None]:
    """Have errors name the path in their words: those alone are sent."""
    try:
        yield
    except OSError as error:
        raise OSError(error.errno, f"{os.path.normpath(path)}: {error.strerror or error}") from error


def _mounts() -> tuple[frozenset[int], frozenset[int]]:
    """The devices of file systems that the kernel makes up, and of others that are not gone through."""
    made_up, passing = set(), set()
    with contextlib.suppress(OSError), open("/proc/self/mountinfo", "rb") as file:
        for line in file:
            words = line.split()
            major, _, minor = words[2].partition(b":")
            device = os.makedev(int(major), int(minor))
            if words[words.index(b"-") + 1].decode() in _MADE_UP:
                made_up.add(device)
            elif words[4] in _PASSED_BY:
                passing.add(device)
    return frozenset(made_up), frozenset(passing)
