"""``Sandbox``: a machine of its own to run programs in, read and write files of, freeze, keep and copy."""

from __future__ import annotations

import os
import threading
import time
import warnings
import weakref
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, NoReturn, Self

from agentenv.boxes.access import Access, Description
from agentenv.boxes.arguments import (
    Location,
    read_content,
    read_count,
    read_flag,
    read_limit,
    read_output_bytes,
    read_patience,
    wrong,
)
from agentenv.boxes.commands import make_spec, make_task, new_name, new_names, read_name
from agentenv.boxes.exchange import converse
from agentenv.boxes.files import FileWork
from agentenv.boxes.pipes import Pipes
from agentenv.boxes.process import Process
from agentenv.boxes.reach import Setting
from agentenv.boxes.results import Completed, Ending
from agentenv.boxes.status import died, read_ending
from agentenv.errors import Cause, CauseKind, Owner, StepTimeout
from agentenv.images.progress import LINES, Report
from agentenv.sandbox.contract import Usage
from agentenv.sandbox.network import NONE
from agentenv.sandbox.workbench import Shutdown

if TYPE_CHECKING:
    from agentenv.snapshots.manifest import Snapshot

_GONE_S = 5.0
_SIGKILL = 9


class Sandbox(FileWork):
    """A virtual machine to work in by hand.

    It ends with the process that made it, however that ends. As a context manager it is destroyed at the end of the
    block; one that a keeper holds (``connect``) is only let go of. May be used by several threads.

    A program that fails is a result. That the sandbox is gone is an error: ``SandboxDied``, with the cause.
    """

    def __init__(self, access: Access) -> None:
        """Use ``create``, ``from_snapshot`` or ``connect`` instead."""
        self._access = access
        self._finalizer = weakref.finalize(self, _abandon, access, os.getpid())
        self._finalizer.atexit = False  # whoever holds it in this process has a handler of its own

    # -- birth

    @classmethod
    def create(
        cls,
        image: str | None = None,
        *,
        name: str | None = None,
        runtime: str | None = None,
        memory_mb: int = 512,
        vcpu_count: float = 1.0,
        disk_mb: int = 1024,
        kernel: str | None = None,
        env: Mapping[str, str] | None = None,
        network: Setting = NONE,
        network_mbps: float | None = None,
        settings: Mapping[str, Any] | None = None,
        start_timeout_s: float = 120.0,
        report: Report = LINES,
    ) -> Self:
        """Start one.

        Args:
            image: The root file system: a file, or a name as ``agentenv image ls`` shows it; None for "gymnasium".
            name: What to call it; also its host name. None for one that nobody has.
            runtime: "firecracker" or "qemu"; None for the first of them that works here.
            memory_mb: RAM, MiB.
            vcpu_count: CPUs' worth of time; fractions allowed.
            disk_mb: Room for what is written, MiB.
            kernel: A file or a name; None for the one that was fetched last.
            env: Environment variables for all its programs, beside those of the image.
            network: What it reaches: "none", "internet" (everything public), or ``{"allow": [...], "deny": [...]}`` of
                which one may be missing, as in a configuration (docs/networks.md). Anything but "none" needs root.
            network_mbps: Most megabits (10^6 bits) a second in each direction; None for no limit.
            settings: The runtime's own table of a configuration; needs ``runtime``, as in ``runtime="qemu",
                settings={"accelerator": "tcg"}``.
            start_timeout_s: Seconds until it counts as failed.
            report: Told of what takes long.

        Raises:
            ConfigError: A value cannot be used.
            RuntimeUnavailable: This machine cannot; says what helps.
            SandboxDied, StepTimeout: It did not come up.
        """
        spec = make_spec(
            image=image,
            name=name,
            memory_mb=memory_mb,
            vcpu_count=vcpu_count,
            disk_mb=disk_mb,
            kernel=kernel,
            env=env,
            network=network,
            network_mbps=network_mbps,
            start_timeout_s=start_timeout_s,
        )
        from agentenv.boxes.birth import create
        from agentenv.boxes.plans import Plan

        return cls(create([Plan(runtime, settings or {}, spec)], report)[0])

    @classmethod
    def create_many(cls, count: int, image: str | None = None, **keywords: Any) -> list[Self]:
        """Start several at once, all or none, on one runtime; ``keywords`` as for ``create``, ``name`` is a prefix."""
        from agentenv.boxes.birth import create
        from agentenv.boxes.plans import Plan

        runtime, settings = keywords.pop("runtime", None), keywords.pop("settings", None) or {}
        report, stem = keywords.pop("report", LINES), keywords.pop("name", None)
        names = new_names(read_count(count), stem, "box")
        plans = [Plan(runtime, settings, make_spec(image=image, name=name, **keywords)) for name in names]
        return [cls(access) for access in create(plans, report)]

    @classmethod
    def from_snapshot(cls, snapshot: Snapshot | str, *, name: str | None = None, report: Report = LINES) -> Self:
        """Bring back what ``snapshot`` kept: memory, programs that ran, files, and what it reaches of the network.

        Args:
            snapshot: What ``snapshot`` returned, its name or its id.
            name: What to call it; None for one that nobody has.
            report: Told of what takes long.

        Raises:
            RuntimeUnavailable: It cannot be brought back here; says everything that differs.
            SnapshotError: There is no such snapshot, or it is damaged.
        """
        from agentenv.boxes.birth import bring_back
        from agentenv.snapshots.manifest import Snapshot

        if not isinstance(snapshot, str | Snapshot):
            raise wrong("snapshot", "what snapshot() returned, its name or its id", snapshot)
        return cls(bring_back(snapshot, read_name(name) if name is not None else new_name(), report))

    @classmethod
    def connect(cls, name: str) -> Self:
        """One that ``agentenv sandbox create`` has made, and that goes on without this process.

        Raises:
            ConfigError: There is none of this name; has the nearest one.
        """
        from agentenv.boxes.remote import connect

        return cls(connect(name))

    @classmethod
    def running(cls) -> list[Self]:
        """All that ``agentenv sandbox create`` has made and that were not removed, by name."""
        from agentenv.boxes.remote import connect_all

        return [cls(access) for access in connect_all()]

    # -- programs

    def exec(
        self,
        command: str | Sequence[str],
        *,
        stdin: bytes | str = b"",
        timeout_s: float | None = None,
        env: Mapping[str, str] | None = None,
        cwd: Location | None = None,
        user: str | int | None = None,
        max_output_mb: float = 16.0,
        check: bool = False,
    ) -> Completed:
        """Run a program to its end.

        What it has left running when it ends goes on, and what that writes from then on is lost: have it write to a
        file. At the end of its time it is killed with all it has started.

        Args:
            command: Program and arguments, or a text for ``/bin/sh -c``.
            stdin: What it may read.
            timeout_s: Seconds until it is killed, above 0; None for as long as it takes.
            env: Further environment variables.
            cwd: Working directory; None for the image's own.
            user: Name or number, or "user:group"; None for the image's own.
            max_output_mb: Of each of its outputs the first so many MiB are kept.
            check: Whether another end than with status 0 is an error.

        Raises:
            ConfigError: A value cannot be used; nothing was sent.
            FileNotFoundError, PermissionError, OSError: There is no such program, directory or user, or it may not run.
            ProgramFailed: With ``check``: it did not end with status 0.
            SandboxDied: The sandbox is gone, with the cause.
            RuntimeUnavailable: It stands still.
        """
        task = make_task(command, env, cwd, user)
        given, limit_s, most_bytes = (
            read_content(stdin, "stdin"),
            read_limit(timeout_s),
            read_output_bytes(max_output_mb),
        )
        read_flag(check, "check")
        began = time.monotonic()
        pipes = Pipes(stdin=bool(given))
        try:
            number = self._access.start(task, pipes.theirs)
            pipes.send_off()
            try:
                came = converse(
                    pipes,
                    given,
                    deadline=None if limit_s is None else began + limit_s,
                    most_bytes=most_bytes,
                    kill=lambda: self._access.signal(number, _SIGKILL),
                )
            except KeyboardInterrupt:
                self._access.signal(number, _SIGKILL)
                raise
        finally:
            pipes.close()
        if came.deaf:
            cause = Cause(CauseKind.TIMEOUT, Owner.INFRASTRUCTURE, "a program did not end though it was killed")
            raise StepTimeout(cause.detail, env_id=self.id, cause=cause, noun="sandbox")
        if not came.status:
            raise died(self.id, self._access.await_cause(_GONE_S))
        ending: Ending = read_ending(bytes(came.status), self.id)
        done = Completed(
            task.argv,
            ending.exit_code,
            ending.signal,
            bytes(came.stdout),
            bytes(came.stderr),
            came.timed_out,
            came.truncated,
            time.monotonic() - began,
            ending.oom_kills,
        )
        return done.check() if check else done

    def start(
        self,
        command: str | Sequence[str],
        *,
        terminal: tuple[int, int] | None = None,
        stdin: bool = True,
        env: Mapping[str, str] | None = None,
        cwd: Location | None = None,
        user: str | int | None = None,
    ) -> Process:
        """Start a program and talk to it while it runs.

        Args:
            command: Program and arguments, or a text for ``/bin/sh -c``.
            terminal: Rows and columns of a terminal to run it in; None for none.
            stdin: Whether it is given anything to read.
            env: Further environment variables.
            cwd: Working directory; None for the image's own.
            user: Name or number, or "user:group"; None for the image's own.

        Raises:
            As ``exec``.
        """
        task = make_task(command, env, cwd, user, terminal)
        return Process(self._access, task, stdin=read_flag(stdin, "stdin", "what it reads is written to Process.stdin"))

    # -- the whole of it

    @property
    def id(self) -> str:
        """Its name."""
        return self._access.id

    @property
    def state(self) -> str:
        """ "running", "paused", "died" or "destroyed"; see ``Description``."""
        return self._access.describe().state

    def describe(self) -> Description:
        """What it is, and how it is."""
        return self._access.describe()

    def health(self) -> Mapping[str, Any]:
        """What it says of itself: "uptime_s", "tasks", "memory_bytes", "memory_free_bytes", "disk_free_bytes", "load".

        Raises:
            StepTimeout: It does not answer.
            SandboxDied: It is gone.
        """
        return self._access.health()

    def usage(self) -> Usage | None:
        """What it uses on this host, or None when it is gone."""
        return self._access.usage()

    def pause(self) -> None:
        """Have it stand still; it then uses no processor, and keeps its memory. Idempotent."""
        self._access.pause()

    def resume(self) -> None:
        """Let it go on, with the time of now. Idempotent."""
        self._access.resume()

    def snapshot(self, name: str | None = None, *, replace: bool = False) -> Snapshot:
        """Keep all of it - memory, programs that run, files - on disk, durably. It goes on as before.

        A second snapshot keeps only what differs from the one before it.

        Args:
            name: What to call it; None for no name: ``agentenv snapshot gc`` then removes it some time after its use.
            replace: Whether an older one of this name loses it; else that is refused.

        Raises:
            ResourceLimit, OSError: There is no room.
            RuntimeUnavailable: It cannot be made a snapshot of; says why.
        """
        from agentenv.boxes.keeping import find

        return find(self._access.snapshot(name, read_flag(replace, "replace")))

    def fork(self, count: int = 1, *, name: str | None = None) -> list[Self]:
        """Copies of it as it is now, with its memory, its programs and its files; each then goes its own way.

        Copies share what none of them changes. They have a host name, a machine id and randomness of their own, and
        the streams of programs that ran stay with the original.

        Args:
            count: How many.
            name: Prefix of their names; None for this one's.

        Raises:
            ResourceLimit, OSError: There is no room.
            RuntimeUnavailable: It cannot be copied; says why.
        """
        return [type(self)(access) for access in self._access.fork(new_names(read_count(count), name, self.id))]

    def shutdown(self, timeout_s: float = 10.0) -> Shutdown:
        """End it in order and free everything, also one that a keeper holds; a paused one goes on for it.

        Programs get SIGTERM, and SIGKILL where they have not ended in time. What they write arrives.

        Args:
            timeout_s: Seconds that they have.

        Raises:
            StepTimeout, SandboxDied: It did not answer, refused, or is gone; it is destroyed all the same.
            RuntimeUnavailable: It is paused and cannot go on, or its keeper knows nothing of this; it is as before.
        """
        return self._access.shutdown(read_patience(timeout_s))

    def destroy(self) -> None:
        """End it and free everything, also one that a keeper holds. Idempotent."""
        self._finalizer.detach()
        self._access.destroy()

    def close(self) -> None:
        """Let go of it: destroys it, unless a keeper holds it. Idempotent."""
        if self._access.kept:
            self._finalizer.detach()
        else:
            self.destroy()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Sandbox {self.id!r}>"

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        raise TypeError("a Sandbox is a living machine and can be neither pickled nor copied: use fork or snapshot")


def _abandon(access: Access, owner: int) -> None:
    """Nobody refers to it any more. Not in this thread: the collector may run while it holds what ending one needs."""
    if access.kept or access.destroyed or os.getpid() != owner:
        return
    warnings.warn(f"sandbox {access.id!r} was not destroyed", ResourceWarning, stacklevel=2)
    threading.Thread(target=access.destroy, name="agentenv-destroy").start()
