"""A sandbox that this process holds: it ends with it."""

from __future__ import annotations

import atexit
import contextlib
import errno
import os
import threading
import time
import weakref
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from agentenv.boxes.access import DESTROYED, DIED, PAUSED, RUNNING, Access, Description
from agentenv.boxes.copies import copying_ground
from agentenv.boxes.ground import Ground
from agentenv.boxes.keeping import keep
from agentenv.boxes.plans import Plan
from agentenv.boxes.status import died
from agentenv.errors import (
    Cause,
    CauseKind,
    ClosedError,
    Owner,
    ResourceLimit,
    RuntimeUnavailable,
    SandboxError,
    StepTimeout,
)
from agentenv.sandbox import contract
from agentenv.sandbox.network import write_network
from agentenv.sandbox.workbench import NoOrderlyEnd, Shutdown, Stdio, Task, Workbench
from agentenv.telemetry.text import one_line, printable

_GONE_S = 5.0
_open: weakref.WeakSet[LocalAccess] = weakref.WeakSet()


class LocalAccess:
    """See ``access.Access``."""

    kept = False

    def __init__(
        self, ground: Ground, sandbox: contract.Sandbox, *, origin: str = "", parent: str | None = None
    ) -> None:
        """Take over a sandbox and one use of its ground.

        Args:
            ground: Its runtime; released with it.
            sandbox: With a workbench.
            origin: Where it came from, for people.
            parent: Id of the stored snapshot it was brought back from.
        """
        self.id = sandbox.spec.id
        self._ground, self._sandbox = ground, sandbox
        self._origin, self._parent = origin, parent
        self._created = time.time()
        self._destroyed = False
        self._lock = threading.Lock()
        self._gone, self._ender = threading.Event(), 0
        # One at a time stands still, is copied, or ends.
        self._turn = threading.RLock()
        self._kept_open = contextlib.ExitStack()
        _open.add(self)

    def keep_open(self, held: contextlib.ExitStack) -> None:
        """Take over what is to be closed when it is destroyed, such as the snapshot it was brought back from."""
        self._kept_open.push(held)

    def start(self, task: Task, stdio: Stdio) -> int:
        """Start a program or a piece of work; see ``Access``."""
        with self._talking() as bench:
            return bench.start(task, stdio)

    def signal(self, number: int, signal: int) -> None:
        """Send a signal to a task."""
        with self._talking() as bench:
            bench.signal(number, signal)

    def resize(self, number: int, rows: int, columns: int) -> None:
        """Change the size of a task's terminal."""
        with self._talking() as bench:
            bench.resize(number, rows, columns)

    def health(self) -> Mapping[str, Any]:
        """What it says of itself."""
        with self._talking() as bench:
            return bench.health()

    def pause(self) -> None:
        """Have it stand still."""
        with self._turn, self._talking() as bench:
            bench.pause()
            self._expect_alive()

    def resume(self) -> None:
        """Let it go on."""
        with self._turn, self._talking() as bench:
            bench.resume()
            self._expect_alive()

    def usage(self) -> contract.Usage | None:
        """What it uses now."""
        return None if self._destroyed else self._sandbox.usage()

    def describe(self) -> Description:
        """What it is, and how it is."""
        state, cause = self._state()
        spec = self._sandbox.spec
        return Description(
            self.id,
            state,
            cause,
            self._ground.runtime,
            spec.image or "",
            spec.memory_mb,
            spec.vcpu_count,
            self._created,
            self._origin,
            self._sandbox.pid,
            write_network(spec.network),
            None if spec.network is None else spec.network.mbps,
        )

    def await_cause(self, timeout_s: float) -> Cause | None:
        """Why it died."""
        if self._destroyed:
            return Cause(CauseKind.CLOSED, Owner.INFRASTRUCTURE, "it was destroyed meanwhile")
        if self._sandbox.alive():
            self._sandbox.await_end(timeout_s)
        return None if self._sandbox.alive() else self._sandbox.cause()

    def snapshot(self, name: str | None, replace: bool, store: Path | None = None) -> str:
        """Keep all of it in a store of snapshots; None is this process's own."""
        with self._turn, self._talking() as bench:
            self._parent = keep(bench, self.plan, name=name, replace=replace, store=store)
            return self._parent

    def fork(self, names: Sequence[str]) -> list[Access]:
        """Copies that share its runtime."""
        with copying_ground() as directory:
            self.copy_to(directory)
            specs = [replace(self._sandbox.spec, id=name, origin=directory) for name in names]
            return list(hold(self._ground, specs, origin=self.id, parent=self._parent))

    def copy_to(self, directory: Path) -> None:
        """Write all of it into an empty directory, from which others are brought back."""
        with self._turn, self._talking() as bench:
            bench.snapshot(directory)

    @property
    def plan(self) -> Plan:
        """What a copy elsewhere must be made of as well."""
        spec = replace(self._sandbox.spec, origin=None)
        return Plan(self._ground.runtime, self._ground.settings, spec, source=self.id, parent=self._parent)

    def destroy(self) -> None:
        """End it and free everything; who comes second waits for the first."""
        me = threading.get_ident()
        with self._lock:
            first, self._destroyed = not self._destroyed, True
            if first:
                self._ender = me
        if not first:
            if self._ender != me:  # a handler of a signal may ask again in the middle of it
                self._gone.wait()
            return
        try:
            self._sandbox.destroy()
        finally:
            try:
                # Last of all: until here its machine may use it.
                with self._kept_open:
                    self._ground.release()
            finally:
                self._gone.set()

    @property
    def destroyed(self) -> bool:
        """Whether it was destroyed."""
        return self._destroyed

    def shutdown(self, timeout_s: float) -> Shutdown:
        """End it in order, and free everything."""
        with self._turn:
            try:
                with self._talking() as bench:
                    done = bench.shutdown(timeout_s)
            except RuntimeUnavailable as error:
                if not isinstance(error.__cause__, NoOrderlyEnd):  # nothing has happened
                    raise
                # Whether it is of an older version or lies: it was to end, and nobody else has a say in that.
                self.destroy()
                said = str(error.__cause__).partition("\n  remedy: ")[0].removeprefix(f"{self.id}: ")
                cause = Cause(CauseKind.PROTOCOL, Owner.ENVIRONMENT, f"{said}; it was destroyed all the same")
                raise died(self.id, cause) from error
            except ClosedError:  # somebody else sees to it
                raise
            except StepTimeout as error:
                self.destroy()
                cause = replace(error.cause, detail=f"{error.cause.detail}; it was destroyed all the same")
                raise StepTimeout(cause.detail, env_id=self.id, cause=cause, noun="sandbox") from error
            except BaseException:
                self.destroy()
                raise
            self.destroy()
            return done

    def disown(self) -> None:
        """Forget it, in a forked child: its exit must not reach the parent's sandbox."""
        self._destroyed, self._gone = True, threading.Event()
        self._gone.set()
        self._kept_open.close()

    def _expect_alive(self) -> None:
        """One that stands still already, or goes on already, is not talked to, and so is not seen to be gone."""
        if not self._sandbox.alive():
            raise died(self.id, self.await_cause(_GONE_S))

    def _state(self) -> tuple[str, str]:
        if self._destroyed:
            return DESTROYED, ""
        if not self._sandbox.alive():
            return DIED, self._sandbox.cause().detail
        bench = self._sandbox.workbench
        return (PAUSED if bench is not None and bench.paused else RUNNING), ""

    @contextlib.contextmanager
    def _talking(self) -> Iterator[Workbench]:
        """Its workbench, with what goes wrong said in words that name this sandbox."""
        bench = self._sandbox.workbench
        if self._destroyed or bench is None:
            raise ClosedError(f"sandbox {self.id!r} was destroyed; make another")
        try:
            yield bench
        except SandboxError as error:
            if isinstance(error, StepTimeout) and self._sandbox.alive():
                cause = error.cause
                raise StepTimeout(cause.detail, env_id=self.id, cause=cause, noun="sandbox") from error
            if self._destroyed:
                raise ClosedError(f"sandbox {self.id!r} was destroyed meanwhile") from error
            raise died(self.id, self.await_cause(_GONE_S)) from error
        except RuntimeUnavailable as error:
            said = printable(str(error)).partition("\n  remedy: ")[0].removeprefix(f"{self.id}: ")
            raise RuntimeUnavailable(f"sandbox {self.id!r}: {said}", error.remedy) from error
        except ResourceLimit as error:  # this host's, in our own words
            said = printable(error.strerror or str(error))
            raise ResourceLimit(error.errno or errno.ENOSPC, f"sandbox {self.id!r}: {said}") from error
        except OSError as error:
            # Where the machine refuses a program, these are its words; above likewise.
            said = one_line((error.strerror or str(error)).removeprefix(f"{self.id}: "))
            raise OSError(error.errno or errno.EIO, f"sandbox {self.id!r}: {said}") from error


def hold(
    ground: Ground, specs: Sequence[contract.SandboxSpec], *, origin: str = "", parent: str | None = None
) -> list[LocalAccess]:
    """Start sandboxes on a ground, all or none; each counts as one more user of it."""
    sandboxes = ground.create(specs)
    held = []
    for sandbox in sandboxes:
        ground.share()
        held.append(LocalAccess(ground, sandbox, origin=origin, parent=parent))
    return held


def _destroy_all() -> None:
    for access in list(_open):
        access.destroy()


def _disown_all() -> None:
    for access in list(_open):
        access.disown()


atexit.register(_destroy_all)
os.register_at_fork(after_in_child=_disown_all)
