"""Files of a sandbox: the part of ``Sandbox`` that reads, writes, lists and copies them.

Each piece of work is done inside by a process of its own, as the user who is asked for: what it may not do there fails
as it would fail that user. Errors come as the builtins that ``open`` and ``os`` raise here, and name the sandbox.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import stat as modes
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from agentenv.boxes.access import Access
from agentenv.boxes.arguments import (
    Location,
    read_content,
    read_copied,
    read_depth,
    read_flag,
    read_length,
    read_max_mb,
    read_mode,
    read_offset,
    read_path,
    read_user,
)
from agentenv.boxes.landing import landing, temporary_beside
from agentenv.boxes.process import Process
from agentenv.boxes.results import Copied, Entry, read_entry
from agentenv.boxes.trees import lay_out, pack
from agentenv.errors import AgentEnvError, ProtocolError
from agentenv.sandbox.workbench import Task

# In the class below, ``list`` is what lists a directory.
Entries = list[Entry]
Names = list[str]
_BLOCK = 1 << 20
_LISTING_MB = 64
_WHY_S = 10.0
# What may follow the end of an archive.
_REST = 1 << 16


class FileWork:
    """See the module. In all of it ``user`` is a name or number, or "user:group"; None is the image's own user.

    A value that cannot be is a ConfigError, before anything is sent.
    """

    _access: Access

    def read(
        self,
        path: Location,
        *,
        offset: int = 0,
        size: int | None = None,
        user: str | int | None = None,
        max_mb: int = 256,
    ) -> bytes:
        """The content of a file.

        Args:
            path: In the sandbox.
            offset: Byte to begin at.
            size: Bytes to read at most; None for all.
            user: As whom.
            max_mb: Refuse to hold more than so many MiB in memory.

        Raises:
            FileNotFoundError, IsADirectoryError, PermissionError, OSError: It cannot be read.
        """
        work = {"op": "read", "path": read_path(path), "offset": read_offset(offset), "size": read_length(size)}
        return self._gather(work, user, max_mb)

    def read_text(self, path: Location, *, user: str | int | None = None, max_mb: int = 256) -> str:
        """The content of a file as UTF-8.

        Raises:
            UnicodeDecodeError: It is not.
        """
        return self.read(path, user=user, max_mb=max_mb).decode()

    def write(
        self,
        path: Location,
        data: bytes | str,
        *,
        mode: int | None = None,
        append: bool = False,
        parents: bool = False,
        user: str | int | None = None,
    ) -> None:
        """Write a file.

        Args:
            path: In the sandbox.
            data: Its content; a text is written as UTF-8.
            mode: Permission bits; None for those of an ordinary new file.
            append: Whether to keep what it holds.
            parents: Whether missing directories are made.
            user: As whom.

        Raises:
            FileNotFoundError, IsADirectoryError, PermissionError, OSError: It cannot be written.
        """
        content, flags = read_content(data, "data"), _flags(append=append, parents=parents)
        work = {"op": "write", "path": read_path(path), "mode": read_mode(mode), **flags}
        with self._feeding(work, user) as stream:
            stream.write(content)

    def list(self, path: Location, *, depth: int = 1, user: str | int | None = None) -> Entries:
        """What is in a directory, sorted by name.

        Args:
            path: In the sandbox.
            depth: How many levels; 1 for what is directly in it.
            user: As whom.

        Raises:
            FileNotFoundError, NotADirectoryError, PermissionError: It cannot be listed.
        """
        told = self._gather({"op": "list", "path": read_path(path), "depth": read_depth(depth)}, user, _LISTING_MB)
        return [read_entry(line, None, self._access.id) for line in told.split(b"\n") if line]

    def stat(self, path: Location, *, follow: bool = True, user: str | int | None = None) -> Entry:
        """What a file is.

        Args:
            path: In the sandbox.
            follow: Whether a link stands for what it leads to.
            user: As whom.

        Raises:
            FileNotFoundError, PermissionError: It cannot be told.
        """
        path = read_path(path)
        told = self._gather({"op": "stat", "path": path, **_flags(follow=follow)}, user, 1)
        return read_entry(told, path, self._access.id)

    def exists(self, path: Location, *, user: str | int | None = None) -> bool:
        """Whether there is such a file, directory or anything else; a link that leads nowhere is nothing."""
        try:
            self.stat(path, user=user)
        except (FileNotFoundError, NotADirectoryError):
            return False
        return True

    def mkdir(
        self, path: Location, *, parents: bool = False, mode: int | None = None, user: str | int | None = None
    ) -> None:
        """Make a directory.

        Args:
            path: In the sandbox.
            parents: Whether missing ones above it are made as well, and one that is there already is no error.
            mode: Permission bits.
            user: As whom.

        Raises:
            FileExistsError, FileNotFoundError, PermissionError: It cannot be made.
        """
        work = {"op": "mkdir", "path": read_path(path), "mode": read_mode(mode), **_flags(parents=parents)}
        self._gather(work, user, 1)

    def remove(self, path: Location, *, recursive: bool = False, user: str | int | None = None) -> None:
        """Remove a file, an empty directory, or with ``recursive`` a directory with all that is in it.

        Raises:
            FileNotFoundError, PermissionError, OSError: It cannot be removed.
        """
        self._gather({"op": "remove", "path": read_path(path), **_flags(recursive=recursive)}, user, 1)

    def move(self, path: Location, target: Location, *, user: str | int | None = None) -> None:
        """Give something in the sandbox another path; a file that is there is replaced.

        Raises:
            FileNotFoundError, PermissionError, OSError: It cannot be moved.
        """
        self._gather({"op": "move", "path": read_path(path), "target": read_path(target, "target")}, user, 1)

    def copy_in(
        self,
        source: Location,
        path: Location,
        *,
        user: str | int | None = None,
        copied: Copied | None = None,
    ) -> None:
        """Copy a file or a directory of this host into the sandbox.

        Modes, times and links are kept; all of it belongs to the user who wrote it. As with ``cp -r``, it is put into
        a directory that is there already, and into one whose path ends with "/".

        Args:
            source: On this host.
            path: In the sandbox.
            user: As whom.
            copied: Is told what is copied, and what is left out: devices, sockets, pipes.

        Raises:
            FileNotFoundError, PermissionError, OSError: One cannot be read, or the other not written.
        """
        host, path, copied = Path(read_path(source, "source")), read_path(path), read_copied(copied)
        user = read_user(user)
        directory = host.is_dir()  # a link stands for what it leads to
        if path.endswith("/") or self._is_directory(path, user):
            path = f"{path.rstrip('/')}/{host.resolve().name}"
        if directory:
            with self._feeding({"op": "unpack", "path": path}, user) as stream:
                pack(host, stream, copied)
            return
        found = host.stat()
        if not modes.S_ISREG(found.st_mode):
            raise OSError(errno.EINVAL, "expected a file or a directory to copy", str(host))
        with open(host, "rb") as file:
            work = {"op": "write", "path": path, "mode": modes.S_IMODE(found.st_mode) & 0o777}
            with self._feeding({**work, "mtime_ns": found.st_mtime_ns}, user) as stream:
                shutil.copyfileobj(file, stream, _BLOCK)
            if copied is not None:
                copied.count(file.tell())

    def copy_out(
        self,
        path: Location,
        target: Location,
        *,
        user: str | int | None = None,
        max_mb: int = 4096,
        copied: Copied | None = None,
    ) -> Names:
        """Copy a file or a directory of the sandbox to this host.

        Only files, directories and links that stay within the copy are made; nothing is written outside of the target,
        whatever the sandbox sends. As with ``cp -r``, it is put into a directory that is there already.

        Args:
            path: In the sandbox.
            target: On this host.
            user: As whom it is read.
            max_mb: Take no more than so many MiB of this host's disk; in a directory names and directories count too.
            copied: Is told what is copied, and what is left out.

        Returns:
            What was left out: devices, sockets, pipes, links that lead elsewhere; after some thousand how many more.

        Raises:
            FileNotFoundError, PermissionError, OSError: One cannot be read, or the other not written.
        """
        path, there, copied, user = read_path(path), read_path(target, "target"), read_copied(copied), read_user(user)
        host, most_bytes = Path(there), read_max_mb(max_mb) << 20
        entry = self.stat(path, user=user)
        if host.is_dir() or there.endswith("/"):
            name = os.path.basename(path.rstrip("/"))
            host = host / ("." if name == ".." else name or self._access.id)  # as cp has it
        if entry.kind == "directory":
            with self._reading({"op": "pack", "path": path.rstrip("/") + "/."}, user) as stream:
                left_out = lay_out(stream, host, most_bytes=most_bytes, sandbox=self._access.id, copied=copied)
            if copied is not None:
                copied.left_out += left_out
            return left_out
        if entry.kind != "file":
            what = f"sandbox {self._access.id!r}: expected a file or a directory to copy, got a {entry.kind}"
            raise OSError(errno.EINVAL, what, path)
        if entry.size > most_bytes:  # what it says may be a lie, but is reason enough
            raise _too_large(self._access.id, path, max_mb)
        # Of this call alone: others may copy to the same place now, or have died at it.
        temporary, fd = temporary_beside(host)
        try:
            with landing(host, fd) as land, self._reading({"op": "read", "path": path}, user) as stream:
                left = most_bytes
                while block := stream.read(min(_BLOCK, left + 1)):
                    left -= len(block)
                    if left < 0:
                        raise _too_large(self._access.id, path, max_mb)
                    land(block)
                if copied is not None:
                    copied.count(most_bytes - left)
            os.chmod(temporary, entry.mode & 0o777)
            os.replace(temporary, host)
        except BaseException:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(temporary)
            raise
        return []

    def _is_directory(self, path: str, user: str | int | None) -> bool:
        try:
            return self.stat(path, user=user).kind == "directory"
        except (FileNotFoundError, NotADirectoryError):
            return False

    def _gather(self, work: Mapping[str, Any], user: str | int | None, max_mb: int) -> bytes:
        """Do work, and return what it writes."""
        most_bytes = read_max_mb(max_mb) << 20
        with self._reading(work, user) as stream:
            data = stream.read(most_bytes + 1)
            if len(data) > most_bytes:
                raise _too_large(self._access.id, work["path"], max_mb)
            return data

    @contextmanager
    def _reading(self, work: Mapping[str, Any], user: str | int | None) -> Iterator[IO[bytes]]:
        with self._working(work, user, stdin=False) as process:
            assert process.stdout is not None
            try:
                yield process.stdout
            except ProtocolError:
                process.wait(_WHY_S)  # an archive that is cut off has a reason
                raise
            process.stdout.read(_REST)
            self._conclude(process)

    @contextmanager
    def _feeding(self, work: Mapping[str, Any], user: str | int | None) -> Iterator[IO[bytes]]:
        with self._working(work, user, stdin=True) as process:
            assert process.stdin is not None
            try:
                yield process.stdin
                process.stdin.close()
            except BrokenPipeError:
                pass  # it has failed; why is what it says at its end
            except BaseException:
                process.kill()
                raise
            self._conclude(process)

    @contextmanager
    def _working(self, work: Mapping[str, Any], user: str | int | None, *, stdin: bool) -> Iterator[Process]:
        try:
            with Process(self._access, Task(work=work, user=read_user(user)), stdin=stdin, stderr=False) as process:
                yield process
        except OSError as error:
            # A SandboxDied is one too, and is about more than this file.
            if not isinstance(error, AgentEnvError) and error.filename is None and error.errno is not None:
                error.filename = work["path"]
            raise

    def _conclude(self, process: Process) -> None:
        ending = process.wait()
        if ending.exit_code != 0:
            raise OSError(errno.EIO, f"sandbox {self._access.id!r}: the work was cut off by {ending}")


def _flags(**flags: Any) -> dict[str, bool]:
    return {key: read_flag(flag, key) for key, flag in flags.items()}


def _too_large(sandbox: str, path: str, max_mb: int) -> OSError:
    what = f"sandbox {sandbox!r}: expected at most {max_mb} MiB, got more; raise max_mb, or copy a part of it"
    return OSError(errno.EFBIG, what, path)
