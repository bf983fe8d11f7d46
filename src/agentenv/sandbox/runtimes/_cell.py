"""One sandbox as the host holds it: its processes, limits, sockets and output, from hello to the last descriptor.

The birth has four steps, and many sandboxes go through each of them together: ``hello`` (its first process
reports itself; the kernel vouches for the pid), ``admit`` (limits are put on before anything else runs),
``await_ready`` (the environments are built), ``attach`` (shared memory).
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from agentenv.errors import (
    AgentEnvError,
    Cause,
    CauseKind,
    ClosedError,
    EnvError,
    Owner,
    ResourceLimit,
    RuntimeUnavailable,
    SandboxDied,
    StepTimeout,
)
from agentenv.guest.control import EXIT, EXIT_MAGIC, ControlClosed, ExitReported, receive_message, send_message
from agentenv.sandbox.cause import Exit, classify
from agentenv.sandbox.contract import Output, SandboxSpec, Usage
from agentenv.sandbox.runtimes._cgroup import Cgroup
from agentenv.sandbox.runtimes._sender import ask_for_credentials, sender_pid
from agentenv.sandbox.runtimes._usage import descendants, read_usage

_END_TIMEOUT_S = 10.0
_MAX_LEFTOVER = 4 << 20


class CellSandbox:
    """See ``agentenv.sandbox.contract.Sandbox``."""

    def __init__(self, spec: SandboxSpec, output: Output, cgroup: Cgroup | None, *, gentle: bool) -> None:
        """Make the descriptors; the process comes with ``guest_end`` being sent to a zygote.

        Args:
            spec: What was asked.
            output: Takes the pipes of stdout and stderr.
            cgroup: Limits to put it under; owned from here on.
            gentle: Ask its first process to clean up before killing it, where no pid namespace does it.
        """
        self.spec = spec
        self.pid = 0
        self.pidfd = -1
        self.introductions: list[dict[str, Any]] = []
        self.end_shell: Callable[[], None] | None = None
        self.on_destroyed: Callable[[], None] | None = None
        self._output = output
        self._cgroup = cgroup
        self._gentle = gentle
        self._reason: Cause | None = None
        self._cause: Cause | None = None
        self._destroyed = False
        self._left = b""  # what came in place of a message
        self._lock = threading.Lock()
        try:
            self.control, self.guest_end = socket.socketpair()
            ask_for_credentials(self.control)
        except OSError as error:
            raise ResourceLimit(error.errno, f"cannot make a socket for {spec.id!r}: {error.strerror}") from error

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
        ask_for_credentials(self.control, False)
        if "failed" in message:
            raise RuntimeUnavailable(
                f"sandbox {self.spec.id!r} cannot be made: {message['failed']}",
                "see `agentenv runtimes`; user or network namespaces may be limited (sysctl user.max_user_namespaces,"
                " user.max_net_namespaces)",
            )
        try:
            self.pidfd = os.pidfd_open(self.pid)
        except ProcessLookupError:
            raise self._lost_at_birth() from None
        except OSError as error:
            raise ResourceLimit(error.errno, f"cannot watch sandbox {self.spec.id!r}: {error.strerror}") from error

    def admit(self, settings: Mapping[str, Any]) -> None:
        """Put the limits on, then let it go on with its settings."""
        try:
            if self._cgroup is not None:
                self._cgroup.add(self.pid)
            out_reader, out_writer = os.pipe()
            self._output.take(self.spec.id, "stdout", out_reader)
            err_reader, err_writer = os.pipe()
            self._output.take(self.spec.id, "stderr", err_reader)
        except OSError as error:
            raise ResourceLimit(error.errno, f"cannot set up sandbox {self.spec.id!r}: {error}") from error
        try:
            self.control.settimeout(self.spec.start_timeout_s)
            send_message(self.control, dict(settings), [out_writer, err_writer])
        except (ControlClosed, OSError) as error:
            raise SandboxDied(
                "ended while starting", env_id=self.spec.id, cause=self.cause(), output=self._tail()
            ) from error
        finally:
            os.close(out_writer)
            os.close(err_writer)

    def await_ready(self, deadline: float) -> None:
        """Wait until its environments are built; a command is ready at once."""
        if self.spec.command:
            return
        try:
            message, _ = receive_message(self.control, deadline=deadline)
        except TimeoutError:
            raise self._late("building its environment") from None
        except ControlClosed as error:
            self._left = error.record if isinstance(error, ExitReported) else b""
            self.kill()
            cause = self.cause()
            raise SandboxDied(
                f"ended while building: {cause.detail}", env_id=self.spec.id, cause=cause, output=self._tail()
            ) from error
        except ValueError as error:
            cause = Cause(CauseKind.PROTOCOL, Owner.ENVIRONMENT, f"sent something that is not the protocol: {error}")
            self.kill(cause)
            raise SandboxDied(cause.detail, env_id=self.spec.id, cause=cause, output=self._tail()) from error
        self.control.settimeout(None)
        if "failed" in message:
            raise RuntimeUnavailable(f"sandbox {self.spec.id!r} cannot be made: {message['failed']}")
        error_texts = message.get("error")
        if isinstance(error_texts, list) and len(error_texts) == 3:
            name, text, trace = (str(part) for part in error_texts)
            raise EnvError(
                env_id=self.spec.id,
                cause=Cause(CauseKind.START_FAILED, Owner.ENVIRONMENT, f"its constructor raised {name}"),
                type_name=name,
                message=text,
                traceback_text=trace,
                output=self._tail(),
            )
        introductions = message.get("ready")
        if (
            not isinstance(introductions, list)
            or len(introductions) != len(self.spec.envs)
            or not all(isinstance(introduction, dict) for introduction in introductions)
        ):
            cause = Cause(CauseKind.PROTOCOL, Owner.ENVIRONMENT, "introduced itself in a form that is not the protocol")
            self.kill(cause)
            raise SandboxDied(cause.detail, env_id=self.spec.id, cause=cause, output=self._tail())
        self.introductions = introductions

    def attach(self, message: Mapping[str, Any], fds: Sequence[int]) -> None:
        """Hand over shared memory and bells; see the contract."""
        try:
            send_message(self.control, dict(message), fds)
        except (ControlClosed, OSError) as error:
            self.kill()
            cause = self.cause()
            raise SandboxDied(cause.detail, env_id=self.spec.id, cause=cause, output=self._tail()) from error

    def alive(self) -> bool:
        """Whether its first process still runs."""
        return self.pidfd >= 0 and not _ended(self.pidfd, 0)

    def kill(self, reason: Cause | None = None) -> None:
        """End it at once; see the contract. Idempotent, from any thread."""
        if reason is not None and self._reason is None and self.alive():
            self._reason = reason
        with self._lock:
            if self.pidfd < 0:
                return
            if self._gentle and self.alive():
                _signal(self.pidfd, signal.SIGTERM)
                _ended(self.pidfd, 2.0)
            _signal(self.pidfd, signal.SIGKILL)
            if not _ended(self.pidfd, _END_TIMEOUT_S):
                raise AgentEnvError(f"sandbox {self.spec.id!r} (pid {self.pid}) does not die: stuck in the kernel")
            if self._gentle and self._cgroup is not None:
                self._cgroup.kill()
            if self.end_shell is not None:
                # What shares its pid namespace with the first process outlives it, until the namespace ends.
                self.end_shell()

    def cause(self) -> Cause:
        """Why it ended; see the contract."""
        if self._cause is None:
            stats = self._cgroup.stats() if self._cgroup is not None else None
            reported = self._read_exit()
            self._output.drain(self.spec.id)
            found = classify(
                reported,
                oom_kills=stats.oom_kills if stats is not None else 0,
                memory_mb=self.spec.memory_mb,
                output=self._tail(),
            )
            # A reason was given while it lived: an exit reported all the same was forged before.
            if self._reason is not None and found.kind is not CauseKind.OUT_OF_MEMORY:
                found = self._reason
            self._cause = found
        return self._cause

    def usage(self) -> Usage | None:
        """What it uses now, or None when it is gone."""
        if not self.alive():
            return None
        try:
            if self._cgroup is not None:
                return read_usage(self._cgroup.stats())
            return read_usage([self.pid, *descendants(self.pid)])
        except ClosedError:  # destroyed by another thread meanwhile
            return None

    @property
    def destroyed(self) -> bool:
        """Whether ``destroy`` was called."""
        return self._destroyed

    def destroy(self) -> None:
        """End it and free everything; see the contract."""
        if self._destroyed:
            return
        self._destroyed = True
        self.kill()
        if self.pidfd >= 0 and self._cause is None:
            self.cause()
        if self._cgroup is not None:
            self._cgroup.destroy()
        with self._lock:
            if self.pidfd >= 0:
                os.close(self.pidfd)
                self.pidfd = -1
        self.control.close()
        self.guest_end.close()
        self._output.release(self.spec.id)
        if self.on_destroyed is not None:
            self.on_destroyed()

    def _tail(self) -> str:
        self._output.drain(self.spec.id)
        return self._output.tail(self.spec.id)

    def _lost_at_birth(self) -> SandboxDied:
        cause = Cause(CauseKind.SANDBOX_LOST, Owner.INFRASTRUCTURE, "was killed from outside before it could report")
        return SandboxDied(cause.detail, env_id=self.spec.id, cause=cause)

    def _late(self, doing: str) -> StepTimeout:
        limit = self.spec.start_timeout_s
        cause = Cause(CauseKind.TIMEOUT, Owner.ENVIRONMENT, f"was still {doing} after {limit:g} s")
        self.kill(cause)
        return StepTimeout(
            f"{cause.detail}; raise start_timeout_s if it needs longer",
            env_id=self.spec.id,
            cause=cause,
            output=self._tail(),
        )

    def _read_exit(self) -> Exit | None:
        """The last bytes on the control socket: written when nothing else was alive to write."""
        data = bytearray(self._left)
        try:
            self.control.setblocking(False)
            while len(data) < _MAX_LEFTOVER:
                part = self.control.recv(1 << 16)
                if not part:
                    break
                data += part
        except OSError:
            pass
        magic, kind, value, _ = EXIT.unpack(bytes(data[-EXIT.size :]).rjust(EXIT.size, b"\0"))
        if magic != EXIT_MAGIC:
            # Whatever fills the socket keeps the report out; only what runs inside writes there.
            return Exit() if data else None
        return Exit(signal=value) if kind == 2 else Exit(code=value)


def _ended(pidfd: int, timeout_s: float) -> bool:
    poller = select.poll()
    poller.register(pidfd, select.POLLIN)
    return bool(poller.poll(int(timeout_s * 1000)))


def _signal(pidfd: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        signal.pidfd_send_signal(pidfd, number)
