"""The host's handle on a zygote: starts it, asks it for cells, ends it."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from agentenv.errors import AgentEnvError, RuntimeUnavailable
from agentenv.guest.control import ControlClosed, receive_message, send_message
from agentenv.sandbox.runtimes._sender import ask_for_credentials, sender_pid

_BOOTSTRAP = (
    "import sys, json; c = json.loads(sys.argv[1]); sys.path[:] = c['path'];"
    " from agentenv.guest.zygote import main; main(c)"
)
_START_TIMEOUT_S = 60.0
_END_TIMEOUT_S = 10.0


@dataclass(frozen=True, slots=True)
class Launch:
    """A command to start, with the descriptors it inherits and those to close afterwards."""

    argv: Sequence[str]
    fds: Sequence[int] = ()
    environment: dict[str, str] | None = None


def zygote_variables() -> dict[str, str]:
    """The environment a zygote starts with: nothing of the host's but the hash seed.

    The zygote must stay single-threaded to be forked, so the numerical libraries get no thread pools here.
    """
    return {
        "PATH": f"{sys.prefix}/bin:/usr/local/bin:/usr/bin:/bin",
        "HOME": "/tmp",
        "LANG": "C.UTF-8",
        "PYTHONHASHSEED": os.environ.get("PYTHONHASHSEED", "0"),
        "PYTHONDONTWRITEBYTECODE": "1",
        "OPENBLAS_NUM_THREADS": "1",
        "OMP_NUM_THREADS": "1",
        "MKL_NUM_THREADS": "1",
        "NUMEXPR_NUM_THREADS": "1",
        "PYGAME_HIDE_SUPPORT_PROMPT": "1",
    }


def zygote_command(paths: Sequence[str], preload: Sequence[str], fd: int, *, isolated: bool) -> list[str]:
    """The interpreter's command line; ``fd`` is the zygote's end of the control socket."""
    config = {"path": list(paths), "preload": list(preload), "fd": fd, "isolated": isolated}
    return [sys.executable, "-s", "-P", "-c", _BOOTSTRAP, json.dumps(config)]


_held: weakref.WeakSet[socket.socket] = weakref.WeakSet()


def _close_held() -> None:
    """A fork of the host must let go of the sockets, or the zygotes would outlive the host."""
    for control in list(_held):
        control.close()


os.register_at_fork(after_in_child=_close_held)


class ZygoteProcess:
    """A running zygote.

    Attributes:
        nesting: "" when cells with namespaces of their own work inside, else the reason why not.
        threads: Threads it has after its imports; more than one makes forking unsafe.
        failed: Modules that could not be imported beforehand, with the reason.
    """

    def __init__(self, prepare: Callable[[int], Launch], explain: Callable[[str], str]) -> None:
        """Start it; ``wait_ready`` must follow.

        Args:
            prepare: From the zygote's end of the control socket to the command.
            explain: From its standard error to a remedy.
        """
        self.nesting = "unknown"
        self.threads = 0
        self.failed: list[str] = []
        self._explain = explain
        self._speaking = threading.Lock()
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115  # lives as long as the process; closed in close()
        self._pidfd = -1
        self._control, theirs = socket.socketpair()
        ask_for_credentials(self._control)
        _held.add(self._control)
        with theirs:
            launch = prepare(theirs.fileno())
            try:
                self._process = subprocess.Popen(
                    launch.argv,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=self._stderr,
                    pass_fds=(theirs.fileno(), *launch.fds),
                    env=launch.environment,
                    start_new_session=True,
                )
            except OSError as error:
                self._control.close()
                self._stderr.close()
                raise RuntimeUnavailable(f"cannot start {launch.argv[0]}: {error.strerror}") from error
            finally:
                for fd in launch.fds:
                    os.close(fd)

    @property
    def pid(self) -> int:
        """Process id of the outermost process."""
        return self._process.pid

    def wait_ready(self) -> None:
        """Wait until it can fork cells.

        Raises:
            RuntimeUnavailable: It ended or stayed silent; says what it printed and the remedy.
        """
        self._control.settimeout(_START_TIMEOUT_S)
        try:
            pid = sender_pid(self._control)
            message, _ = receive_message(self._control)
            ask_for_credentials(self._control, False)
            self._pidfd = os.pidfd_open(pid)
        except (ProcessLookupError, ControlClosed, ValueError, TimeoutError) as error:
            silent = isinstance(error, TimeoutError)
            self.end()
            text = self._read_stderr()
            self.close()
            what = f"said nothing for {_START_TIMEOUT_S:.0f} s" if silent else "ended while starting"
            raise RuntimeUnavailable(f"the outer sandbox {what}:\n{text}".rstrip(), self._explain(text)) from error
        self._control.settimeout(None)
        self.nesting = str(message.get("nesting", "unknown"))
        self.threads = int(message.get("threads", 1))
        self.failed = [str(text) for text in message.get("failed", [])]

    def spawn(self, control: socket.socket, *, nested: bool, network: bool) -> None:
        """Ask for a cell that will speak on ``control`` (its end; the caller closes its own copy).

        Raises:
            RuntimeUnavailable: The zygote is gone.
        """
        try:
            with self._speaking:
                send_message(self._control, {"nested": nested, "network": network}, [control.fileno()])
        except (ControlClosed, OSError) as error:
            raise RuntimeUnavailable(f"the outer sandbox is gone:\n{self._read_stderr()}".rstrip()) from error

    def alive(self) -> bool:
        """Whether it still runs; bubblewrap's own process, which only waits for it, may have been killed.

        A process lets go of its sockets first and of its namespace last: its end can be seen on the socket before its
        cells have died of it, on the pidfd only afterwards.
        """
        if self._control.fileno() < 0:
            return False
        poller = select.poll()
        poller.register(self._control, 0)
        return not poller.poll(0)

    def end(self) -> None:
        """Kill it and, where it is the first process of a pid namespace, everything in that. Idempotent.

        The kernel reports the end of such a process only when no other is left in its namespace.
        """
        if self._pidfd >= 0 and not _ended(self._pidfd, 0):
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)
            if not _ended(self._pidfd, _END_TIMEOUT_S):
                raise AgentEnvError("the outer sandbox does not die: a process in it is stuck in the kernel")
            with contextlib.suppress(subprocess.TimeoutExpired):
                # bubblewrap's own process reaps it and ends; killed first, it would leave that to somebody else.
                self._process.wait(timeout=1.0)
        if self._process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()

    def close(self) -> None:
        """End it and free everything. Idempotent; returns when the processes are gone."""
        self.end()
        if self._pidfd >= 0:
            os.close(self._pidfd)
            self._pidfd = -1
        self._control.close()
        self._stderr.close()

    def _read_stderr(self) -> str:
        if self._stderr.closed:
            return ""
        self._stderr.seek(0, os.SEEK_END)
        self._stderr.seek(max(0, self._stderr.tell() - 4096))
        return self._stderr.read().decode(errors="replace")


def _ended(pidfd: int, timeout_s: float) -> bool:
    poller = select.poll()
    poller.register(pidfd, select.POLLIN)
    return bool(poller.poll(int(timeout_s * 1000)))
