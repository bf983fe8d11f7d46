"""What a machine can be used for by hand; see ``agentenv.sandbox.workbench``.

To stand still, a machine and its host part first: whatever was on its way has arrived, the agent waits for a host, and
so nothing is lost whether this very machine goes on or a copy of it is brought back. Who goes on shows the word they
parted with; a copy's host has none, and to it the streams of the original mean nothing.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from agentenv.errors import (
    AgentEnvError,
    Cause,
    CauseKind,
    ClosedError,
    Owner,
    RuntimeUnavailable,
    SandboxDied,
    StepTimeout,
)
from agentenv.sandbox.contract import SandboxSpec
from agentenv.sandbox.files import MachineFiles
from agentenv.sandbox.runtimes._vm.agent import Agent, AgentRefusal, greet
from agentenv.sandbox.runtimes._vm.files import clear, copy_sparsely
from agentenv.sandbox.runtimes._vm.machine import Machine
from agentenv.sandbox.runtimes._vm.origin import write_origin
from agentenv.sandbox.runtimes._vm.relay import RelayProcess
from agentenv.sandbox.runtimes._vm.templates import SCRATCH
from agentenv.sandbox.workbench import Kept, NoOrderlyEnd, Shutdown, Stdio, Task

_CALL_S = 30.0
_SETTLE_S = 120.0
_CONNECT_S = 30.0
_OUTPUT_S = 5.0
_LOOK_S = 0.02
_ENTROPY_BYTES = 32
_FIRST_STREAM, _STREAMS_EACH, _MOST_TASKS = 16, 4, 16000
_MOST_PROGRAMS = 1 << 22
_NAMES = ("stdin", "stdout", "stderr", "status")


def news() -> dict[str, Any]:
    """What a machine cannot know after standing still."""
    return {"time_ns": time.time_ns(), "entropy": os.urandom(_ENTROPY_BYTES).hex()}


class VmWorkbench:
    """See ``agentenv.sandbox.workbench.Workbench``."""

    def __init__(
        self,
        spec: SandboxSpec,
        files: MachineFiles,
        machine: Machine,
        agent: Agent,
        relay: RelayProcess,
        number: int,
        introductions: Sequence[Mapping[str, Any]],
        gone: Callable[[BaseException], SandboxDied],
        let_end: Callable[[], None],
    ) -> None:
        """Use a machine whose agent answers.

        Args:
            spec: What was asked.
            files: What it was made from.
            machine: The machine.
            agent: Its agent.
            relay: Carries its bytes.
            number: Of the machine, at the relay.
            introductions: Of its environments, as they come.
            gone: Finds out why it is gone.
            let_end: Lets go of it, and waits until it has ended by itself.
        """
        self._spec, self._files, self._machine = spec, files, machine
        self._agent, self._relay, self._number = agent, relay, number
        self._gone, self._let_end = gone, let_end
        self._introductions = introductions
        self._lock = threading.RLock()
        self._word: str | None = None
        self._ending = False
        self._tasks = 0

    @property
    def paused(self) -> bool:
        """Whether it stands still."""
        return self._word is not None

    def start(self, task: Task, stdio: Stdio) -> int:
        """Start a program or a piece of work; see the contract."""
        request: dict[str, Any] = {
            "argv": list(task.argv),
            "work": None if task.work is None else dict(task.work),
            "variables": {**dict(self._files.variables), **self._spec.variables, **task.variables},
            "directory": task.directory or self._files.workdir or "/",
            "user": task.user or self._files.user or "root",
            "terminal": None if task.terminal is None else list(task.terminal),
        }
        last = self._tasks + _MOST_TASKS
        while True:
            with self._lock:
                self._expect_no_end()
                self._expect_going()
                self._tasks += 1
                number = self._tasks
                first = _FIRST_STREAM + _STREAMS_EACH * (number % _MOST_TASKS)
                streams = dict(zip(_NAMES, range(first, first + _STREAMS_EACH), strict=True))
                try:
                    self._tie(streams, stdio)
                    self._call("task", _CALL_S, task=number, streams=streams, **request)
                    return number
                except AgentRefusal as error:
                    self._relay.untie(self._number, tuple(streams.values()))
                    # Numbers begin again, and something old still runs; but not for ever, whatever it says.
                    if error.code == errno.EEXIST and number < last:
                        continue
                    if error.code is None:
                        raise
                    raise OSError(error.code, f"{self._spec.id}: {error.text}") from error
                except RuntimeUnavailable as error:  # the relay is gone, and the machine with it
                    raise self._gone(error) from error

    def signal(self, number: int, signal: int) -> None:
        """Send a signal to a task; see the contract."""
        self._ask("signal", task=number, signal=int(signal))

    def resize(self, number: int, rows: int, columns: int) -> None:
        """Change the size of a task's terminal; see the contract."""
        self._ask("resize", task=number, rows=rows, columns=columns)

    def health(self) -> Mapping[str, Any]:
        """What it says of itself; see the contract."""
        found = self._ask("health")
        return found if isinstance(found, dict) else {}

    def pause(self) -> None:
        """Have it stand still; see the contract."""
        with self._lock:
            if self._word is not None:
                return
            self._expect_no_end()
            self._call("settle", _SETTLE_S)
            with self._told():
                self._part()
                try:
                    self._machine.pause()
                except BaseException:
                    self.resume()  # whether it stands still is not known, and nobody would have it go on
                    raise

    def resume(self) -> None:
        """Let it go on; see the contract."""
        with self._lock:
            if self._word is None:
                return
            with self._told():
                try:
                    self._go_on(self._word)
                except BaseException as error:
                    if not isinstance(error, SandboxDied):
                        self._stand_still_again(error)
                    raise
            self._word = None
            self._call("wake", _CALL_S, **news())

    def snapshot(self, directory: Path) -> None:
        """Write all of it into a directory; see the contract."""
        self._write(directory, durable=True)

    def _write(self, directory: Path, *, durable: bool) -> None:
        if not directory.is_dir() or any(directory.iterdir()):  # what is there is not ours to remove
            raise RuntimeUnavailable(f"{self._spec.id}: snapshot in {directory}: expected an existing, empty directory")
        with self._lock:
            goes_on = not self.paused
            try:
                try:
                    self.pause()
                    with self._told():
                        self._machine.snapshot(directory, durable=durable)
                    copy_sparsely(self._machine.home / SCRATCH, directory / SCRATCH)
                    write_origin(directory, self._files, self._machine.spec, self._spec.disk_mb, self._introductions)
                finally:
                    if goes_on:
                        self.resume()
            except BaseException:
                clear(directory)
                raise

    def keep(self) -> Kept:
        """The same, beside the machine; see the contract."""
        directory = Path(tempfile.mkdtemp(prefix="kept-", dir=self._machine.home.parent))
        try:
            self._write(directory, durable=False)
        except BaseException:
            shutil.rmtree(directory, ignore_errors=True)
            raise
        return Kept(directory)

    def shutdown(self, timeout_s: float) -> Shutdown:
        """End it in order; see the contract."""
        deadline = time.monotonic() + timeout_s
        with self._lock:
            self._expect_no_end()
            self.resume()
            try:
                told = self._agent.call("shutdown", _CALL_S, seconds=timeout_s)
            except AgentRefusal as error:
                said = "its agent, of another version, knows nothing of that" if error.code is None else error.text
                raise NoOrderlyEnd(
                    f"{self._spec.id}: it cannot be ended in order: {said}", "destroy it, which ends it at once"
                ) from error
            self._ending = True
        # Asked again and again, since signals and the like are to have their turn.
        while not self._read(told, "over"):
            if time.monotonic() > deadline + _SETTLE_S:
                late = f"its agent has not ended all that runs within {timeout_s + _SETTLE_S:g} s"
                cause = Cause(CauseKind.TIMEOUT, Owner.INFRASTRUCTURE, late)
                raise StepTimeout(cause.detail, env_id=self._spec.id, cause=cause)
            time.sleep(_LOOK_S)
            told = self._agent.call("shutdown", _SETTLE_S)
        done = Shutdown(self._read(told, "ended"), self._read(told, "killed"))
        patience = max(deadline, time.monotonic() + _OUTPUT_S)
        while self._relay.unwritten(self._number) and time.monotonic() < patience:
            time.sleep(_LOOK_S)
        self._let_end()
        return done

    def _read(self, told: object, name: str) -> int:
        """A number of what the agent tells of an end; hostile data."""
        number = told.get(name) if isinstance(told, dict) else None
        if not isinstance(number, int) or not 0 <= number < _MOST_PROGRAMS:
            detail = f"its agent tells of its end without saying {name!r}: {str(told)[:200]}"
            cause = Cause(CauseKind.PROTOCOL, Owner.ENVIRONMENT, detail)
            raise self._gone(SandboxDied(cause.detail, env_id=self._spec.id, cause=cause))
        return int(number)

    def _part(self) -> None:
        """Part from the agent; the machine goes on."""
        word = secrets.token_hex(16)
        self._relay.hold(self._number)
        try:
            self._agent.call("part", _CALL_S, word=word)
        except BaseException:
            self._relay.release(self._number)
            raise
        self._relay.rest(self._number)
        self._word = word

    def _go_on(self, word: str) -> None:
        """Let the machine go on, and find the agent again."""
        self._machine.resume()
        with self._machine.connect(_CONNECT_S) as stream:
            greet(stream, _CONNECT_S)
            self._relay.rejoin(self._number, stream.fileno())
        if self._agent.call("adopt", _CALL_S, word=word) is not True:
            cause = Cause(CauseKind.PROTOCOL, Owner.ENVIRONMENT, "its agent does not know who it parted from")
            raise SandboxDied(cause.detail, env_id=self._spec.id, cause=cause)
        self._relay.release(self._number)

    def _stand_still_again(self, error: BaseException) -> None:
        """A machine whose agent was not found stands still as before, so that it is what is said of it."""
        try:
            self._relay.rest(self._number)
            self._machine.pause()
        except (AgentEnvError, OSError):
            if self._machine.alive():
                ended = f"it could neither go on nor be stopped again, and was ended: {error}"
                cause = Cause(CauseKind.TIMEOUT, Owner.INFRASTRUCTURE, ended)
                self._gone(StepTimeout(ended, env_id=self._spec.id, cause=cause))

    @contextlib.contextmanager
    def _told(self) -> Iterator[None]:
        """What goes wrong while it is stopped or goes on, as a workbench says it."""
        try:
            yield
        except StepTimeout:
            raise
        except TimeoutError as error:
            if not self._machine.alive():
                raise self._gone(error) from error
            cause = Cause(CauseKind.TIMEOUT, Owner.INFRASTRUCTURE, str(error))
            raise StepTimeout(cause.detail, env_id=self._spec.id, cause=cause) from error
        except (RuntimeUnavailable, ConnectionError) as error:
            if self._machine.alive() and not isinstance(error, SandboxDied):
                raise
            raise self._gone(error) from error

    def _tie(self, streams: Mapping[str, int], stdio: Stdio) -> None:
        with contextlib.ExitStack() as stack:
            stdin = stdio.stdin
            if stdin < 0:
                stdin, writer = os.pipe2(os.O_CLOEXEC)
                os.close(writer)
                stack.callback(os.close, stdin)
            ties = [
                (streams["stdin"], stdin, "rg"),
                (streams["stdout"], stdio.stdout, "w"),
                (streams["stderr"], stdio.stderr, "w"),
                (streams["status"], stdio.status, "w"),
            ]
            self._relay.tie(self._number, *(tie for tie in ties if tie[1] >= 0))

    def _ask(self, op: str, **arguments: Any) -> Any:
        with self._lock:
            self._expect_going()
            return self._call(op, _CALL_S, **arguments)

    def _call(self, op: str, timeout_s: float, **arguments: Any) -> Any:
        """Ask the agent; one that breaks the protocol is not asked again, and ends with its machine."""
        try:
            return self._agent.call(op, timeout_s, **arguments)
        except SandboxDied as error:
            if error.cause.kind is not CauseKind.PROTOCOL:
                raise
            raise self._gone(error) from error

    def _expect_no_end(self) -> None:
        if self._ending:
            raise ClosedError(f"sandbox {self._spec.id!r} is being shut down; make another")

    def _expect_going(self) -> None:
        if self.paused and not self._machine.alive():
            raise self._gone(ConnectionError("its monitor ended"))
        if self.paused:
            raise RuntimeUnavailable(f"{self._spec.id}: it is paused", "resume it first")
