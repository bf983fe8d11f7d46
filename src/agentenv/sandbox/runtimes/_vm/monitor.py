"""The process of a monitor, and what it prints: whether it lives, its end, its last words.

A process is only ever signalled and waited for through its pidfd, so that a number used again is never mistaken for
it. Whoever spawned it reaps it.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from agentenv.errors import RuntimeUnavailable
from agentenv.sandbox.runtimes._vm.console import Consoles
from agentenv.sandbox.runtimes._vm.machine import Command, MachineSpec, Spawn

CONSOLE = "console.log"
_DYING_S = 2.0
_KILL_S = 30.0
_DRAIN_S = 2.0


class MonitorKilled(RuntimeUnavailable):
    """A monitor ended before it did what it was to do, and without a word: somebody killed it."""


class Monitor:
    """A monitor that was started for one machine.

    Attributes:
        name: Of the program, for messages.
        pid: Its process.
        pidfd: Becomes readable when it has ended, and all that was started with it; -1 after ``close``.
    """

    def __init__(
        self,
        name: str,
        argv: Sequence[str],
        *,
        spawn: Spawn,
        consoles: Consoles,
        home: Path,
        directory: Path | None = None,
        console_bytes: int,
        inherit: Sequence[int] = (),
        network: int = -1,
        apart: bool = False,
        explain: Callable[[str], str] = lambda text: "",
    ) -> None:
        """Start it.

        Args:
            name: Of the program.
            argv: Program and arguments.
            spawn: Starts it.
            consoles: Read what it prints.
            home: Where its console is kept.
            directory: Its working directory, where that is not ``home``.
            console_bytes: How much of its console is kept.
            inherit: Descriptors it keeps.
            network: As in ``Command``.
            apart: As in ``Command``; then ``identify`` tells which process it is.
            explain: The remedy for what it says when it ends too early, or "".

        Raises:
            RuntimeUnavailable: It cannot be started.
        """
        self.name = name
        self._explain = explain
        self._lock = threading.Lock()
        self._console, output = consoles.open(home / CONSOLE, console_bytes)
        try:
            started = spawn(
                Command(argv, directory or home, output=output, inherit=inherit, network=network, apart=apart)
            )
        except OSError as error:
            self._console.close()
            raise RuntimeUnavailable(f"{name} cannot be started: {error}", explain(str(error))) from error
        except BaseException:
            self._console.close()
            raise
        finally:
            os.close(output)
        self.pid = started.pid
        self.pidfd = started.pidfd

    def identify(self, pid: int) -> None:
        """Say which process it is, where another one was started to start it. The other one ends with it."""
        self.pid = pid

    def alive(self) -> bool:
        """Whether it runs."""
        return not self.await_end(0)

    def await_end(self, timeout_s: float) -> bool:
        """Wait for its end; returns whether it came."""
        with self._lock:
            if self.pidfd < 0:
                return True
            pidfd = os.dup(self.pidfd)
        try:
            poller = select.poll()
            poller.register(pidfd, select.POLLIN)
            return bool(poller.poll(timeout_s * 1000))
        finally:
            os.close(pidfd)

    def console(self, lines: int) -> str:
        """The last lines it printed; all of them, where it has ended."""
        if self.await_end(0):
            self._console.await_end(_DRAIN_S)
        return self._console.tail(lines)

    def kill(self) -> None:
        """End it at once, and wait until it has ended. Idempotent.

        Raises:
            RuntimeUnavailable: It is still there after half a minute; it hangs in the kernel.
        """
        with self._lock:
            if self.pidfd < 0:
                return
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self.pidfd, signal.SIGKILL)
        if not self.await_end(_KILL_S):
            raise RuntimeUnavailable(
                f"{self.name} (pid {self.pid}) has not ended {_KILL_S:.0f} s after it was killed",
                "it waits in the kernel, mostly for a disk or a network file system that does not answer: see dmesg",
            )

    def close(self) -> None:
        """End it and let go of it. Idempotent."""
        self.kill()
        self._console.await_end(_DRAIN_S)
        self._console.close()
        with self._lock:
            if self.pidfd >= 0:
                os.close(self.pidfd)
                self.pidfd = -1

    def failure(self, what: str) -> RuntimeUnavailable:
        """The error that says what failed, with its last words.

        Args:
            what: What was being done, and what came instead.
        """
        ended = self.await_end(0.2)
        text = self.console(12)
        message = f"{what}; {self.name} {'has ended' if ended else 'still runs'}"
        if text:
            message += ", its last output:\n" + "\n".join(f"    {line}" for line in text.split("\n"))
        kind = MonitorKilled if ended and not text else RuntimeUnavailable
        return kind(message, self._explain(text))


class MonitoredMachine:
    """What machines of all monitors have in common; see ``agentenv.sandbox.runtimes._vm.machine.Machine``."""

    def __init__(self, spec: MachineSpec, home: Path, monitor: Monitor) -> None:
        """Take over a monitor that was started.

        Args:
            spec: What was asked.
            home: Its directory.
            monitor: Its process.
        """
        self.spec = spec
        self.home = home
        self._monitor = monitor

    @property
    def pid(self) -> int:
        return self._monitor.pid

    @property
    def pidfd(self) -> int:
        return self._monitor.pidfd

    def alive(self) -> bool:
        """Whether its monitor runs."""
        return self._monitor.alive()

    def ballooned_mb(self) -> int:
        """What its balloon holds; see the contract."""
        return 0

    def end_reason(self) -> str:
        """Why the monitor ended, where it says so; see the contract."""
        return ""

    def console(self, lines: int = 20) -> str:
        """The last lines of its serial console, and what the monitor itself said."""
        return self._monitor.console(lines)

    def kill(self) -> None:
        """End it at once; see the contract."""
        self._monitor.kill()

    def close(self) -> None:
        """End it and free everything; see the contract."""
        self.kill()
        self._monitor.close()

    def _gone(self) -> ConnectionError:
        """The error of a call on a machine whose monitor has ended; its sockets close a moment before that is seen."""
        self._monitor.await_end(_DYING_S)
        return ConnectionError(f"machine {self.spec.id!r}: its monitor ended, its last output:\n{self.console()}")


@contextlib.contextmanager
def address_of(directory: Path, name: str) -> Iterator[str]:
    """A path to a socket that is short enough to be its address, however long the directory's is."""
    fd = os.open(directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{fd}/{name}"
    finally:
        os.close(fd)
