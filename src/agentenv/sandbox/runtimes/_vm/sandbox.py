"""One machine as the host holds it: a sandbox like any other, whose memory, bells and pipes the relay carries."""

from __future__ import annotations

import contextlib
import errno
import os
import select
import shutil
import socket
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from agentenv.errors import (
    Cause,
    CauseKind,
    ClosedError,
    Owner,
    ProtocolError,
    ResourceLimit,
    SandboxDied,
    SandboxError,
    StepTimeout,
)
from agentenv.guest.control import ControlClosed, receive_message
from agentenv.sandbox.contract import Output, SandboxSpec, Usage
from agentenv.sandbox.files import MachineFiles
from agentenv.sandbox.runtimes._cgroup import Cgroup
from agentenv.sandbox.runtimes._introduction import read_introductions
from agentenv.sandbox.runtimes._net.link import NetworkLink
from agentenv.sandbox.runtimes._report import Report
from agentenv.sandbox.runtimes._usage import host_oom_kills, read_usage
from agentenv.sandbox.runtimes._vm.agent import Agent, AgentRefusal, greet
from agentenv.sandbox.runtimes._vm.cause import Evidence, find_cause
from agentenv.sandbox.runtimes._vm.collect import unpack
from agentenv.sandbox.runtimes._vm.console import printable
from agentenv.sandbox.runtimes._vm.machine import Machine
from agentenv.sandbox.runtimes._vm.relay import RelayProcess
from agentenv.sandbox.runtimes._vm.workbench import VmWorkbench

CONTROL, STDOUT, STDERR, REPORT, OUT = 1, 2, 3, 4, 5
"""The streams of a sandbox."""
_STREAMS = {"control": CONTROL, "stdout": STDOUT, "stderr": STDERR, "report": REPORT, "out": OUT}
_END_S = 5.0
_OFF_S = 10.0
_MOST_OF_ARCHIVE = 256 << 20
_CALL_S = 30.0
_OUTPUT_S = 2.0
_LOOK_S = 0.005
_CONSOLE_LINES = 200


class VmSandbox:
    """See ``agentenv.sandbox.contract.Sandbox``."""

    copying = None

    def __init__(
        self,
        spec: SandboxSpec,
        output: Output,
        relay: RelayProcess,
        number: int,
        home: Path,
        cgroup: Cgroup | None,
        limit_mb: int = 0,
    ) -> None:
        """Make the descriptors; ``board`` brings the machine.

        Args:
            spec: What was asked.
            output: Takes the pipes of stdout and stderr.
            relay: Carries the bytes.
            number: Of the machine, at the relay.
            home: The machine's directory; removed with the sandbox.
            cgroup: Limits of the monitor; owned from here on.
            limit_mb: Of them, that of memory, MiB; for words.
        """
        self.spec = spec
        self.introductions: list[dict[str, Any]] = []
        self.last_usage: Usage | None = None
        self.home = home
        self.agent = Agent(spec.id)
        self.workbench: VmWorkbench | None = None
        self.link: NetworkLink | None = None
        self._relay, self._number, self._output, self._cgroup = relay, number, output, cgroup
        self._limit_mb, self._host_oom_kills = limit_mb, host_oom_kills()
        self._machine: Machine | None = None
        self.pid = 0
        self._report = Report()
        self._reason: Cause | None = None
        self._cause: Cause | None = None
        self._destroyed = False
        self._lock = threading.Lock()
        self._archive: Path | None = None
        self.control, self._control_theirs = socket.socketpair()

    # -- birth

    def board(self, machine: Machine, deadline: float, *, booted: bool = False) -> None:
        """Take over a machine, let it go on where it is paused, and reach its agent.

        Raises:
            StepTimeout: The agent was not there in time.
            SandboxDied: The machine ended.
        """
        self._machine, self.pid = machine, machine.pid
        try:
            if self._cgroup is not None:
                self._cgroup.add(machine.pid)
            if not booted:
                machine.resume()
            with machine.connect(max(0.1, deadline - time.monotonic())) as stream:
                greet(stream, max(0.1, deadline - time.monotonic()))
                self._relay.join(self._number, stream.fileno(), self.agent.theirs.fileno(), machine.pidfd)
        except TimeoutError:
            raise self._late("booting") from None
        except (ConnectionError, OSError) as error:
            self._expect_room(error)
            self.kill()
            cause = self.cause()
            raise SandboxDied(
                f"ended while booting: {cause.detail}", env_id=self.spec.id, cause=cause, output=machine.console()
            ) from error
        finally:
            self.agent.theirs.close()

    def equip(self, files: MachineFiles) -> None:
        """Let it be used by hand."""
        if self._machine is not None:
            self.workbench = VmWorkbench(
                self.spec,
                files,
                self._machine,
                self.agent,
                self._relay,
                self._number,
                self.introductions,
                self._gone,
                self._let_end,
            )

    def part(self) -> None:
        """Have the agent wait for another host, and let go of it; the machine goes on."""
        self._relay.hold(self._number)
        self.agent.call("part", _CALL_S)
        self._relay.leave(self._number)

    def take_on(self, introductions: Sequence[dict[str, Any]]) -> None:
        """Take over the cell that is there, in a machine brought back with its environments."""
        self._tie_all()
        self.ask("join", streams=_STREAMS)
        self.introductions += introductions

    def start(self, settings: Mapping[str, Any], *, nested: bool) -> None:
        """Have the cell made."""
        self._tie_all()
        self.agent.call(
            "start",
            _CALL_S,
            settings=dict(settings),
            nested=nested,
            network=self.spec.network is not None,
            streams=_STREAMS,
            out=self.spec.out is not None,
            disk_mb=self.spec.disk_mb,
            pids=self.spec.pids,
        )

    def ask(self, op: str, **arguments: Any) -> Any:
        """Ask its agent for something without which it is of no use: where that fails it ends, and nobody else.

        Raises:
            SandboxDied: The agent refuses, or the machine is gone.
            StepTimeout: The agent did not answer.
        """
        try:
            return self.agent.call(op, _CALL_S, **arguments)
        except AgentRefusal as error:
            said = f"its machine cannot be used: asked to {op!r}, its agent says: {printable(error.text)}"
            cause = Cause(CauseKind.START_FAILED, Owner.INFRASTRUCTURE, said)
            self.kill(cause)
            raise SandboxDied(cause.detail, env_id=self.spec.id, cause=cause, output=self._tail()) from error
        except StepTimeout as error:
            self.kill(error.cause)
            raise
        except SandboxDied as error:
            raise self._gone(error) from error

    def _tie_all(self) -> None:
        try:
            self._tie_output("stdout", STDOUT)
            self._tie_output("stderr", STDERR)
            self._tie(CONTROL, self._control_theirs, "rw")
            self._tie(REPORT, self._report.theirs, "rw")
            if self.spec.out is not None:
                self._archive = self.home / "out.tar"
                with open(self._archive, "wb") as file:
                    # An archive takes more than its files: half a KiB each, and where they end.
                    most = 2 * (self.spec.disk_mb << 20) + _MOST_OF_ARCHIVE
                    self._relay.tie(self._number, (OUT, file.fileno(), "w"), most_bytes=most)
        except OSError as error:
            self._expect_room(error)
            raise self._gone(error) from error

    def await_ready(self, deadline: float) -> None:
        """Wait until its environments are built; anything else is ready at once."""
        if not self.spec.envs or self.introductions:
            return
        try:
            message, _ = receive_message(self.control, deadline=deadline)
            self.control.settimeout(None)
            self.introductions += read_introductions(message, self.spec, self._tail)
        except TimeoutError:
            raise self._late("building its environment") from None
        except ControlClosed as error:
            raise self._gone(error, "ended while building: ") from error
        except (ValueError, OSError) as error:
            said = (
                str(error) if isinstance(error, ProtocolError) else f"sent something that is not the protocol: {error}"
            )
            cause = Cause(CauseKind.PROTOCOL, Owner.ENVIRONMENT, said)
            self.kill(cause)
            raise SandboxDied(cause.detail, env_id=self.spec.id, cause=cause, output=self._tail()) from error

    # -- the contract

    @property
    def pidfd(self) -> int:
        """Becomes readable when the monitor ends; see the contract."""
        return -1 if self._machine is None else self._machine.pidfd

    @property
    def log_id(self) -> str:
        """Under which its output is kept."""
        return self.spec.id

    @property
    def destroyed(self) -> bool:
        """Whether ``destroy`` was called."""
        return self._destroyed

    def attach(self, message: Mapping[str, Any], fds: Sequence[int]) -> None:
        """Hand over shared memory and bells; see the contract."""
        try:
            self._relay.attach(self._number, message["layout"], len(self.spec.envs), fds)
        except OSError as error:
            self._expect_room(error)
            raise self._gone(error) from error
        self.ask("attach", message=dict(message), count=len(self.spec.envs))

    def alive(self) -> bool:
        """Whether the machine runs."""
        return self._machine is not None and self._machine.alive()

    def kill(self, reason: Cause | None = None) -> None:
        """End it at once; see the contract. Idempotent, from any thread."""
        if reason is not None and self._reason is None and self.alive():
            self._reason = reason
        with self._lock:
            if self._machine is not None:
                self._machine.kill()

    def await_end(self, timeout_s: float) -> None:
        """Wait until it has ended; see the contract."""
        if self.pidfd >= 0:
            poller = select.poll()
            poller.register(self.pidfd, select.POLLIN)
            poller.poll(int(timeout_s * 1000))

    def cause(self) -> Cause:
        """Why it ended; see the contract."""
        if self._cause is None:
            self.await_end(1.0)
            self._cause = self._find_cause()
        return self._cause

    def usage(self) -> Usage | None:
        """What its monitor uses now, or None when it is gone."""
        if not self.alive():
            return None
        try:
            return read_usage([self.pid] if self._cgroup is None else self._cgroup.stats())
        except ClosedError:  # destroyed by another thread meanwhile
            return None

    def destroy(self) -> None:
        """End it and free everything; see the contract."""
        if self._destroyed:
            return
        self._destroyed = True
        self.kill()
        if self._machine is not None and self._cause is None:
            self.cause()
        self._relay.leave(self._number)
        if self._archive is not None and self.spec.out is not None:
            unpack(self._archive, self.spec.out, most_bytes=self.spec.disk_mb << 20)
        if self._cgroup is not None:
            self._cgroup.destroy()
        # A disk that became read-only keeps a machine's files; nothing else of it may stay.
        with self._lock, contextlib.suppress(OSError):
            if self._machine is not None:
                self._machine.close()
        for held in (self.control, self._control_theirs, self.agent, self._report, self.link):
            if held is not None:
                held.close()
        self._output.release(self.spec.id)
        shutil.rmtree(self.home, ignore_errors=True)

    # -- parts

    def _expect_room(self, error: BaseException) -> None:
        """See that a failure is not for want of descriptors, here or in the relay, which says nothing of the machine.

        Raises:
            ResourceLimit: It is.
        """
        if isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE):
            raise ResourceLimit(error.errno, f"cannot set up sandbox {self.spec.id!r}: {error.strerror}") from error

    def _tie_output(self, name: str, stream: int) -> None:
        reader, writer = os.pipe()
        try:
            self._output.take(self.spec.id, name, reader)
            self._relay.tie(self._number, (stream, writer, "w"))
        finally:
            os.close(writer)

    def _tie(self, stream: int, end: socket.socket, ways: str) -> None:
        with end:
            self._relay.tie(self._number, (stream, end.fileno(), ways))

    def _await_output(self) -> None:
        """Read what it has printed to its end, where that is still on its way."""
        deadline = time.monotonic() + _OUTPUT_S
        while self._relay.unwritten(self._number, STDOUT, STDERR) and time.monotonic() < deadline:
            self._output.drain(self.spec.id)
            time.sleep(_LOOK_S)

    def _find_cause(self) -> Cause:
        self._await_output()
        stats = self._cgroup.stats() if self._cgroup is not None else None
        self.last_usage = None if stats is None else read_usage(stats)
        counted = stats is not None and bool(stats.memory_peak_bytes or stats.charged_bytes)
        return find_cause(
            Evidence(
                asked=self._reason,
                monitor_oom_kills=0 if stats is None else stats.oom_kills,
                monitor_limit_mb=self._limit_mb,
                monitor_peak_bytes=0 if stats is None else stats.memory_peak_bytes,
                host_oom_kills=0 if counted else host_oom_kills() - self._host_oom_kills,
                broken=self._relay.broken(self._number),
                relay_lives=self._relay.alive(),
                told=self.agent.events(),
                exit=self._report.exit_of(None),
                console="" if self._machine is None else self._machine.console(_CONSOLE_LINES),
                end_reason="" if self._machine is None else self._machine.end_reason(),
                output=self._tail(),
                memory_mb=self.spec.memory_mb,
            )
        )

    def _gone(self, error: BaseException, what: str = "") -> SandboxDied:
        if isinstance(error, SandboxError) and error.cause.kind in (CauseKind.PROTOCOL, CauseKind.TIMEOUT):
            self.kill(error.cause)  # it would live on
        self.await_end(_END_S)
        self.kill()
        cause = self.cause()
        return SandboxDied(what + cause.detail, env_id=self.spec.id, cause=cause, output=self._tail())

    def _let_end(self) -> None:
        """Let go of a machine that then ends by itself, as asked; what does not is killed."""
        if self._reason is None and self.alive():
            self._reason = Cause(CauseKind.CLOSED, Owner.INFRASTRUCTURE, "it was shut down")
        self._relay.leave(self._number)
        self.await_end(_OFF_S)
        self.kill()

    def _late(self, doing: str) -> StepTimeout:
        owner = Owner.ENVIRONMENT if "environment" in doing else Owner.INFRASTRUCTURE
        cause = Cause(CauseKind.TIMEOUT, owner, f"was still {doing} after {self.spec.start_timeout_s:g} s")
        console = "" if self._machine is None else self._machine.console()
        self.kill(cause)
        return StepTimeout(
            f"{cause.detail}; raise start_timeout_s if it needs longer",
            env_id=self.spec.id,
            cause=cause,
            output=self._tail() or console,
        )

    def _tail(self) -> str:
        self._output.drain(self.spec.id)
        return self._output.tail(self.spec.id)
