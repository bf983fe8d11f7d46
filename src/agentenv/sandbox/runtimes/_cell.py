"""One sandbox as the host holds it: its processes, limits, sockets and output, from hello to the last descriptor.

The birth has four steps, and many sandboxes go through each of them together: ``hello`` (its first process
reports itself; the kernel vouches for the pid), ``admit`` (limits are put on before anything else runs),
``await_ready`` (the environments are built), ``attach`` (shared memory).
"""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from agentenv.errors import (
    AgentEnvError,
    Cause,
    CauseKind,
    ClosedError,
    Owner,
    ProtocolError,
    ResourceLimit,
    RuntimeUnavailable,
    SandboxDied,
    StepTimeout,
)
from agentenv.guest.control import ControlClosed, receive_message, send_message
from agentenv.sandbox.contract import Order, Output, SandboxSpec, Usage
from agentenv.sandbox.runtimes._branch import Branch
from agentenv.sandbox.runtimes._cgroup import Cgroup
from agentenv.sandbox.runtimes._family import Worker
from agentenv.sandbox.runtimes._introduction import read_introductions
from agentenv.sandbox.runtimes._report import Report
from agentenv.sandbox.runtimes._sender import ask_for_credentials, sender_pid
from agentenv.sandbox.runtimes._tenant import REPORT_S, Household, Tenant, ended
from agentenv.sandbox.runtimes._usage import descendants, read_usage

_END_TIMEOUT_S = 10.0


class CellSandbox(Tenant):
    """See ``agentenv.sandbox.contract.Sandbox``."""

    def __init__(self, spec: SandboxSpec, output: Output, cgroup: Cgroup | None, *, gentle: bool) -> None:
        """Make the descriptors; the process comes with ``guest_end`` being sent to a zygote.

        Args:
            spec: What was asked.
            output: Takes the pipes of stdout and stderr.
            cgroup: Limits to put it under; owned from here on.
            gentle: Ask its first process to clean up before killing it, where no pid namespace does it.
        """
        try:
            super().__init__(spec, Household(spec.id, output, Report(), cgroup))
        except OSError as error:
            raise ResourceLimit(error.errno, f"cannot make a socket for {spec.id!r}: {error.strerror}") from error
        self.pid = 0
        self.end_shell: Callable[[], None] | None = None
        self.on_destroyed: Callable[[], None] | None = None
        self._gentle = gentle
        self._destroyed = False
        self._vacated = False
        self._lock = threading.Lock()

    def set_shell(self, alive: Callable[[], bool]) -> None:
        """Tell how to see whether the outer sandbox still runs."""
        self._house.shell_alive = alive

    def hello(self, deadline: float) -> None:
        """Wait for the first process and take hold of it."""
        self.guest_end.close()
        self.control.settimeout(max(0.01, deadline - time.monotonic()))
        try:
            self.pid = sender_pid(self.control)
            message, _ = receive_message(self.control, deadline=deadline)
        except TimeoutError:
            raise self._late("starting") from None
        except (ControlClosed, ValueError, OSError) as error:
            raise self._lost_at_birth() from error
        if "failed" in message:
            raise self._unmade(message["failed"])
        try:
            self._first = os.pidfd_open(self.pid)
        except ProcessLookupError:
            raise self._lost_at_birth() from None
        except OSError as error:
            raise ResourceLimit(error.errno, f"cannot watch sandbox {self.spec.id!r}: {error.strerror}") from error

    def admit(self, settings: Mapping[str, Any]) -> None:
        """Put the limits on, then let it go on with its settings."""
        try:
            if self._house.cgroup is not None:
                self._house.cgroup.add(self.pid)
            out_reader, out_writer = os.pipe()
            self._house.output.take(self.spec.id, "stdout", out_reader)
            err_reader, err_writer = os.pipe()
            self._house.output.take(self.spec.id, "stderr", err_reader)
        except OSError as error:
            if error.errno == errno.ESRCH:
                raise self._lost_at_birth() from error
            raise ResourceLimit(error.errno, f"cannot set up sandbox {self.spec.id!r}: {error}") from error
        try:
            self.control.settimeout(self.spec.start_timeout_s)
            send_message(self.control, dict(settings), [out_writer, err_writer, self._house.report.theirs.fileno()])
        except (ControlClosed, OSError) as error:
            cause = self.cause()
            raise SandboxDied(
                f"ended while starting: {cause.detail}", env_id=self.spec.id, cause=cause, output=self._house.tail()
            ) from error
        finally:
            os.close(out_writer)
            os.close(err_writer)
            self._house.report.theirs.close()

    def await_ready(self, deadline: float) -> None:
        """Wait until its environments are built; a command is ready at once."""
        if self.spec.command:
            return
        try:
            self.control.settimeout(max(0.01, deadline - time.monotonic()))
            pid = sender_pid(self.control)
            message, _ = receive_message(self.control, deadline=deadline)
        except TimeoutError:
            raise self._late("building its environment") from None
        except ControlClosed as error:
            self._await_own_end()
            self.kill()
            cause = self.cause()
            raise SandboxDied(
                f"ended while building: {cause.detail}", env_id=self.spec.id, cause=cause, output=self._house.tail()
            ) from error
        except ValueError as error:
            cause = Cause(CauseKind.PROTOCOL, Owner.ENVIRONMENT, f"sent something that is not the protocol: {error}")
            self.kill(cause)
            raise SandboxDied(cause.detail, env_id=self.spec.id, cause=cause, output=self._house.tail()) from error
        if "failed" in message and pid == self.pid and self.end_shell is None:
            # Its first process says so, and nothing of the environment has run. In a shell of its own, where the
            # environment could end that process and take its number, it does nothing that could fail.
            raise self._unmade(message["failed"])
        self.control.settimeout(None)
        ask_for_credentials(self.control, False)
        try:
            self.introductions = read_introductions(message, self.spec, self._house.tail)
        except ProtocolError as error:
            cause = Cause(CauseKind.PROTOCOL, Owner.ENVIRONMENT, str(error))
            self.kill(cause)
            raise SandboxDied(cause.detail, env_id=self.spec.id, cause=cause, output=self._house.tail()) from error
        try:
            self._worker = Worker.open(pid, self.first)
        except OSError as error:
            self._await_own_end()
            lied = isinstance(error, ProcessLookupError | FileNotFoundError) and not self._house.report.exit_of(None)
            detail = "was introduced by a process that has ended"
            self.kill(Cause(CauseKind.PROTOCOL, Owner.ENVIRONMENT, detail) if lied else None)
            cause = self.cause()
            raise SandboxDied(cause.detail, env_id=self.spec.id, cause=cause, output=self._house.tail()) from None

    def attach(self, message: Mapping[str, Any], fds: Sequence[int]) -> None:
        """Hand over shared memory and bells; see the contract."""
        try:
            send_message(self.control, dict(message), fds)
        except (ControlClosed, OSError) as error:
            self.kill()
            cause = self.cause()
            raise SandboxDied(cause.detail, env_id=self.spec.id, cause=cause, output=self._house.tail()) from error

    def alive(self) -> bool:
        """Whether it serves: its environment's process runs, and the first one."""
        first = self._first >= 0 and not ended(self._first, 0)
        return first and (self._worker is None or self._worker.alive())

    def first(self) -> int:
        """The number of its first process; 0 when that has ended."""
        with self._lock:
            return self.pid if self._first >= 0 and not ended(self._first, 0) else 0

    def kill(self, reason: Cause | None = None) -> None:
        """End it at once; see the contract. Idempotent, from any thread."""
        if reason is not None and self._reason is None:
            if self.alive():
                self._reason = reason
            else:  # its environment's process has ended by itself just now, and the first one is about to say how
                self.await_end(REPORT_S)
        with self._lock:
            if self._first < 0:
                return
            if self._gentle and not ended(self._first, 0):
                _signal(self._first, signal.SIGTERM)
                ended(self._first, 2.0)
            _signal(self._first, signal.SIGKILL)
            if not ended(self._first, _END_TIMEOUT_S):
                raise AgentEnvError(f"sandbox {self.spec.id!r} (pid {self.pid}) does not die: stuck in the kernel")
            if self._gentle and self._house.cgroup is not None:
                self._house.cgroup.kill()
            if self.end_shell is not None:
                # What shares its pid namespace with the first process outlives it, until the namespace ends.
                self.end_shell()

    def usage(self) -> Usage | None:
        """What it uses now, or None when it is gone."""
        if not self.alive():
            return None
        try:
            if self._house.cgroup is not None:
                return read_usage(self._house.cgroup.stats())
            return read_usage([self.pid, *descendants(self.pid)])
        except ClosedError:  # destroyed by another thread meanwhile
            return None

    def branch(self, spec: SandboxSpec, order: Order) -> Branch:
        """A further tenant of the cell, whose process is copied from this one's; see the contract."""
        return Branch(spec, self, self._house, self, order)

    def leave(self) -> None:
        """A branch is gone; the last one takes the cell with it where its first tenant is gone too."""
        self._house.branches -= 1
        if self._vacated and not self._house.branches:
            self._free()

    @property
    def destroyed(self) -> bool:
        """Whether ``destroy`` was called, and no branch is left."""
        return self._destroyed

    def destroy(self) -> None:
        """End it and free everything; while branches live, only the process of the environment it was made for."""
        if self._house.branches and not self._vacated:
            self._vacated = True
            if self._worker is not None:
                self._worker.kill()
        elif not self._house.branches:
            self._free()

    def disband(self) -> None:
        """End it with everything in it; branches see that they died."""
        self._house.branches = 0
        self._free()

    def _free(self) -> None:
        if self._destroyed:
            return
        self._destroyed = True
        self.kill()
        if self._first >= 0 and self._cause is None:
            self.cause()
        if self._house.cgroup is not None:
            self._house.cgroup.destroy()
        with self._lock:
            if self._first >= 0:
                os.close(self._first)
                self._first = -1
        if self._worker is not None:
            self._worker.close()
        self.control.close()
        self.guest_end.close()
        self._house.report.close()
        self._house.output.release(self.spec.id)
        if self.on_destroyed is not None:
            self.on_destroyed()

    def _await_own_end(self) -> None:
        """Its environment's process is gone: the first one ends by itself, when it has said how."""
        ended(self._first, 1.0)

    def _lost_at_birth(self) -> SandboxDied:
        cause = Cause(CauseKind.SANDBOX_LOST, Owner.INFRASTRUCTURE, "was killed from outside before it could report")
        return SandboxDied(cause.detail, env_id=self.spec.id, cause=cause)

    def _unmade(self, reason: object) -> RuntimeUnavailable:
        return RuntimeUnavailable(
            f"sandbox {self.spec.id!r} cannot be made: {reason}",
            "see `agentenv runtimes`; user or network namespaces may be limited (sysctl user.max_user_namespaces,"
            " user.max_net_namespaces)",
        )

    def _late(self, doing: str) -> StepTimeout:
        limit = self.spec.start_timeout_s
        # Until its first word nothing of the environment has run.
        owner = Owner.ENVIRONMENT if self.pid else Owner.INFRASTRUCTURE
        cause = Cause(CauseKind.TIMEOUT, owner, f"was still {doing} after {limit:g} s")
        self.kill(cause)
        return StepTimeout(
            f"{cause.detail}; raise start_timeout_s if it needs longer",
            env_id=self.spec.id,
            cause=cause,
            output=self._house.tail(),
        )


def _signal(pidfd: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        signal.pidfd_send_signal(pidfd, number)
