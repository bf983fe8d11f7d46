"""Work on the files of a machine, done by a process of its own as the user who asks for it.

A piece of work is plain data with an "op":

    read    "path", "offset" (0), "size" (to the end)        its bytes come on the standard output
    write   "path", "mode" (None: as open makes it), "append", "parents", "mtime_ns" (None: now)   its bytes are read
            from the standard input
    list    "path", "depth" (1)     one JSON object a line, sorted by name: "path" relative to it, and as ``stat`` says
    stat    "path", "follow" (true)  one JSON object: kind, size, mode, uid, gid, mtime_ns, target (of a link)
    mkdir   "path", "parents", "mode"
    remove  "path", "recursive"
    move    "path", "target"
    pack    "path"                  a tar archive of it, with names relative to it ("." is the thing itself)
    unpack  "path"                  a tar archive is read from the standard input and laid out in that directory
"""

from __future__ import annotations

import errno
import json
import os
import shutil
import stat
import tarfile
from collections.abc import Callable, Mapping
from typing import Any

from agentenv.guest.agent.packing import pack
from agentenv.wire.holes import end_sparsely, write_sparsely

_BLOCK = 1 << 18
_KINDS = {
    stat.S_IFREG: "file",
    stat.S_IFDIR: "directory",
    stat.S_IFLNK: "link",
    stat.S_IFIFO: "pipe",
    stat.S_IFSOCK: "socket",
    stat.S_IFCHR: "device",
    stat.S_IFBLK: "device",
}


def perform(work: Mapping[str, Any], stdin: int, stdout: int) -> None:
    """Do it.

    Raises:
        OSError: It cannot be done.
        ValueError: It is not a piece of work.
    """
    done = _WORKS.get(str(work.get("op")))
    if done is None or not isinstance(work.get("path"), str):
        raise ValueError(f"expected work with a path and an op of {', '.join(_WORKS)}; got {work.get('op')!r}")
    if "\0" in work["path"]:
        raise ValueError("expected a path without a zero byte")
    done(work, stdin, stdout)


def _read(work: Mapping[str, Any], _stdin: int, stdout: int) -> None:
    # Without waiting: a pipe nobody writes to would be waited for for ever.
    fd = os.open(work["path"], os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        if stat.S_ISDIR(os.fstat(fd).st_mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), work["path"])
        if offset := work.get("offset"):
            os.lseek(fd, offset, os.SEEK_SET)
        left = work.get("size")
        while left is None or left > 0:
            block = os.read(fd, _BLOCK if left is None else min(_BLOCK, left))
            if not block:
                return
            _put(stdout, block)
            left = None if left is None else left - len(block)
    finally:
        os.close(fd)


def _write(work: Mapping[str, Any], stdin: int, _stdout: int) -> None:
    path = work["path"]
    if work.get("parents"):
        os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
    how = os.O_APPEND if work.get("append") else os.O_TRUNC
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_NONBLOCK | os.O_CLOEXEC | how, 0o666)
    try:
        if work.get("append") or not stat.S_ISREG(os.fstat(fd).st_mode):
            while block := os.read(stdin, _BLOCK):
                _put(fd, block)
        else:
            while block := os.read(stdin, _BLOCK):
                write_sparsely(fd, block)
            end_sparsely(fd)
        if work.get("mode") is not None:
            os.fchmod(fd, work["mode"])
        if work.get("mtime_ns") is not None:
            os.utime(fd, ns=(work["mtime_ns"], work["mtime_ns"]))
    finally:
        os.close(fd)


def _list(work: Mapping[str, Any], _stdin: int, stdout: int) -> None:
    def walk(directory: str, prefix: str, depth: int) -> None:
        for name in sorted(os.listdir(directory)):
            path = os.path.join(directory, name)
            try:
                told = describe(path, follow=False)
            except FileNotFoundError:  # removed meanwhile
                continue
            _put(stdout, json.dumps({"path": prefix + name, **told}).encode() + b"\n")
            if told["kind"] == "directory" and depth > 1:
                walk(path, f"{prefix}{name}/", depth - 1)

    walk(work["path"], "", work.get("depth", 1))


def _stat(work: Mapping[str, Any], _stdin: int, stdout: int) -> None:
    _put(stdout, json.dumps(describe(work["path"], follow=work.get("follow", True))).encode() + b"\n")


def _mkdir(work: Mapping[str, Any], _stdin: int, _stdout: int) -> None:
    mode = work.get("mode")
    if work.get("parents"):
        os.makedirs(work["path"], exist_ok=True)
    else:
        os.mkdir(work["path"])
    if mode is not None:
        os.chmod(work["path"], mode)


def _remove(work: Mapping[str, Any], _stdin: int, _stdout: int) -> None:
    path = work["path"]
    if not stat.S_ISDIR(os.lstat(path).st_mode):
        os.unlink(path)
    elif work.get("recursive"):
        shutil.rmtree(path)
    else:
        os.rmdir(path)


def _move(work: Mapping[str, Any], _stdin: int, _stdout: int) -> None:
    try:
        os.rename(work["path"], work["target"])
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        shutil.move(work["path"], work["target"])


def _unpack(work: Mapping[str, Any], stdin: int, _stdout: int) -> None:
    os.makedirs(work["path"], exist_ok=True)
    with os.fdopen(os.dup(stdin), "rb") as stream:
        with _Archive.open(fileobj=stream, mode="r|") as archive:
            archive.extractall(work["path"], filter="tar", numeric_owner=True)
        while stream.read(_BLOCK):  # what follows the archive's end
            pass


class _Archive(tarfile.TarFile):
    """One that writes the zeros of files as holes."""

    def makefile(self, tarinfo: tarfile.TarInfo, targetpath: Any) -> None:
        """Make a file; the part of ``extract`` that classes like this are made to change."""
        source = self.extractfile(tarinfo)
        if source is None or tarinfo.issparse():
            super().makefile(tarinfo, targetpath)
            return
        with source, open(targetpath, "wb", buffering=0) as target:
            left = tarinfo.size
            while left:
                block = source.read(min(_BLOCK, left))
                if not block:
                    raise tarfile.ReadError("unexpected end of data")
                write_sparsely(target.fileno(), block)
                left -= len(block)
            end_sparsely(target.fileno())


def describe(path: str, *, follow: bool) -> dict[str, Any]:
    """What a file is, as plain data."""
    found = os.stat(path) if follow else os.lstat(path)
    kind = _KINDS.get(stat.S_IFMT(found.st_mode), "other")
    told = {
        "kind": kind,
        "size": found.st_size,
        "mode": stat.S_IMODE(found.st_mode),
        "uid": found.st_uid,
        "gid": found.st_gid,
        "mtime_ns": found.st_mtime_ns,
    }
    if kind == "link":
        told["target"] = os.readlink(path)
    return told


def _put(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


_WORKS: dict[str, Callable[[Mapping[str, Any], int, int], None]] = {
    "read": _read,
    "write": _write,
    "list": _list,
    "stat": _stat,
    "mkdir": _mkdir,
    "remove": _remove,
    "move": _move,
    "pack": lambda work, _stdin, stdout: pack(work["path"], stdout),
    "unpack": _unpack,
}
