"""What a sandbox can be used for besides stepping environments: programs, files, standing still, being copied.

A driver that offers this has ``Sandbox.workbench``; in all others it is None. The rules, for every driver:

- A program gets descriptors of the caller's: what it writes comes out of them byte by byte, and its end is told on one
  of its own. Nothing is read to its end by anybody in between, so that what nobody reads holds up nobody else.
- A program that ends with another exit status than 0, or by a signal, is a result. That the sandbox is gone is none:
  the status descriptor then ends without a word, and ``Sandbox.cause`` says why.
- What was started goes on while nobody listens, across pauses, and in every copy that is brought back from a snapshot.
- While it stands still (``paused``), only ``resume``, ``snapshot`` and what ends it are accepted.
"""

from __future__ import annotations

import errno
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from agentenv.errors import RuntimeUnavailable

_REFUSALS = frozenset(
    (
        *(errno.ENOENT, errno.EACCES, errno.EPERM, errno.EEXIST, errno.ENOTDIR, errno.EISDIR, errno.ENOTEMPTY),
        *(errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EFBIG, errno.ELOOP, errno.ENAMETOOLONG, errno.EXDEV),
        *(errno.EINVAL, errno.ENOEXEC, errno.E2BIG, errno.ETXTBSY, errno.EBUSY, errno.EMFILE, errno.ENFILE),
        *(errno.ENOMEM, errno.ENODEV, errno.ENXIO, errno.EMLINK, errno.EOPNOTSUPP, errno.EIO),
    )
)


def refused_with(told: object) -> int:
    """The errno that a sandbox says it refused something with, where it is one of those that files and programs get.

    Any other is EIO: a pipe that nobody reads, a connection that is lost, a time that is over are ours to find out, and
    mean something else to whoever sees them.
    """
    return told if type(told) is int and told in _REFUSALS else errno.EIO


@dataclass(frozen=True, slots=True)
class Task:
    """A program to run in a sandbox, or a piece of work on its files.

    Attributes:
        argv: Program and arguments; looked for on the PATH of its variables. Empty for work on files.
        work: Instead of a program: a piece of work on files, as ``guest.agent.filework`` describes it.
        variables: Added to those of the sandbox.
        directory: Working directory; None for the image's own.
        user: Name or number, or "user:group"; None for the image's own.
        terminal: Rows and columns of a terminal to run it in; None for none. With one, what it writes to its standard
            error comes on its standard output.
    """

    argv: tuple[str, ...] = ()
    work: Mapping[str, Any] | None = None
    variables: Mapping[str, str] = field(default_factory=dict)
    directory: str | None = None
    user: str | None = None
    terminal: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True)
class Stdio:
    """The descriptors of a task: pipes or sockets, which become non-blocking. Copies are kept; close your own.

    Attributes:
        stdin: A read end whose bytes the program reads; -1 for nothing to read.
        stdout: A write end for what it writes.
        stderr: The same for its standard error; -1 throws it away.
        status: A write end for how it ended: one JSON object, as in ``{"exit": 0}``, ``{"signal": 9}`` or, for work on
            files, ``{"error": {"type": "FileNotFoundError", "errno": 2, "message": "..."}}``.
    """

    stdin: int
    stdout: int
    stderr: int
    status: int


@dataclass(frozen=True, slots=True)
class Kept:
    """A snapshot that is kept for a run: of all of a sandbox, in a directory of the run's own.

    Attributes:
        directory: As ``SandboxSpec.origin``.
    """

    directory: Path

    def alive(self) -> bool:
        """Whether it is there; the run's end takes it."""
        return self.directory.is_dir()

    def drop(self) -> None:
        """Remove it; what was brought back from it lives on. Idempotent."""
        shutil.rmtree(self.directory, ignore_errors=True)


@dataclass(frozen=True, slots=True)
class Shutdown:
    """How programs ended when their sandbox did. Each counts once, with all it had started.

    Attributes:
        ended: How many ended by themselves, once they were asked to.
        killed: How many had not when their time was over.
    """

    ended: int
    killed: int


class NoOrderlyEnd(RuntimeUnavailable):
    """A sandbox says that it cannot be ended in order: one of an older version, or one that lies."""


class Workbench(Protocol):
    """A part of a sandbox. May be used by several threads.

    Attributes:
        paused: Whether it stands still.
    """

    @property
    def paused(self) -> bool: ...

    def start(self, task: Task, stdio: Stdio) -> int:
        """Start a program or a piece of work; returns its number.

        Raises:
            OSError: There is no such program, directory or user, or it may not be run; has the errno.
            RuntimeUnavailable: The sandbox stands still.
            SandboxDied, StepTimeout: The sandbox is gone, or did not answer.
        """

    def signal(self, number: int, signal: int) -> None:
        """Send a signal to a task; SIGKILL ends everything it has started as well. One that has ended is left alone."""

    def resize(self, number: int, rows: int, columns: int) -> None:
        """Change the size of a task's terminal."""

    def health(self) -> Mapping[str, Any]:
        """What the sandbox says of itself; hostile data.

        "uptime_s", "load", "tasks", "memory_bytes" in use, "memory_free_bytes", "disk_free_bytes".
        """

    def pause(self) -> None:
        """Have it stand still; what it wrote to files is on its disks before. Idempotent."""

    def resume(self) -> None:
        """Let it go on, with the time of now. Idempotent."""

    def snapshot(self, directory: Path) -> None:
        """Write all of it into an existing, empty directory, from which ``SandboxSpec.origin`` brings copies back.

        It goes on, or stands still, as before.

        Raises:
            OSError: There is no room; the sandbox is as before, and the directory is empty.
            RuntimeUnavailable: It cannot be made a snapshot of; says why.
        """

    def keep(self) -> Kept:
        """The same, in a directory of the run's own."""

    def shutdown(self, timeout_s: float) -> Shutdown:
        """End it in order; what is left to do afterwards is to destroy it.

        Programs get SIGTERM, and SIGKILL where they have not ended in time. How they ended is told as ever, and what
        they wrote arrives, unless whoever it is for has not read it by the end of that time, or 5 s after their end.
        Disks are written out before the machine ends. One that stands still goes on for it. From the beginning on
        nothing is started and nothing stands still any more: ``ClosedError``.

        Args:
            timeout_s: Seconds that programs have.

        Raises:
            NoOrderlyEnd: So it says, and it is as before.
            RuntimeUnavailable: It stands still and cannot go on, and is as before; says why.
            StepTimeout: It did not answer. What has ended by then is not known, and that goes for all that follow.
            SandboxDied: It is gone.
        """
