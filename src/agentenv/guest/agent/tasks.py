"""Programs in a machine that are run by hand, and work on its files; see ``agentenv.sandbox.workbench``.

Each is a process of its own in a session and a control group of its own, so that it can be ended with everything it has
started. Its descriptors are joined to streams of the link; how it ended is told on one of them. One that goes on when
the host is gone finds its output taken and thrown away, not a broken pipe.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import pty
import signal
import struct
import termios
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from agentenv.guest.agent.filework import perform
from agentenv.guest.agent.identity import Identity, become, find_identity
from agentenv.guest.agent.limits import TaskGroup
from agentenv.guest.link import Link
from agentenv.guest.pumping import READ, Loop, close_quietly
from agentenv.wire.frames import CREDIT, WINDOW, Kind

_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_FAILED = 125
_MOST_FAILURE = 4096
_DEFAULTED = (signal.SIGCHLD, signal.SIGPIPE, signal.SIGINT, signal.SIGTERM, signal.SIGXFSZ)


@dataclass(slots=True)
class _Task:
    """One of them.

    Attributes:
        pid: Its first process.
        streams: "stdin", "stdout", "stderr" and "status" to the numbers of streams.
        group: Its control group, where there is one.
        failure: A file in which work on files says why it could not be done; -1 for programs.
        terminal: Its terminal's end on this side, or -1.
    """

    pid: int
    streams: dict[str, int]
    group: TaskGroup
    failure: int
    terminal: int


@dataclass(frozen=True, slots=True)
class _Plan:
    """What the child needs."""

    request: dict[str, Any]
    identity: Identity
    group: TaskGroup
    variables: dict[str, str]
    failure: int
    terminal: int


class Tasks:
    """All that run."""

    def __init__(self, loop: Loop, link: Callable[[], Link | None]) -> None:
        """Run nothing yet.

        Args:
            loop: Where the output of orphans is read.
            link: The way to the host, as it is now.
        """
        self._loop, self._link = loop, link
        self._tasks: dict[int, _Task] = {}

    def __len__(self) -> int:
        """How many run."""
        return len(self._tasks)

    def start(self, request: dict[str, Any]) -> int:
        """Start one; see ``_Task`` and ``workbench.Task`` for what is asked.

        Raises:
            OSError: It cannot be run.
        """
        link = self._link()
        number, streams = request["task"], request["streams"]
        if link is None:
            raise ConnectionError("nobody is there to hear of it")
        if number in self._tasks or any(link.joined(stream) for stream in streams.values()):
            raise FileExistsError(errno.EEXIST, f"task {number} has not ended")
        identity = find_identity(request["user"])
        variables = {"PATH": _PATH, "HOME": identity.home, "USER": identity.name, "LOGNAME": identity.name}
        terminal = request["terminal"]
        if terminal is not None:
            variables["TERM"] = "xterm-256color"
        variables |= request["variables"]
        group = TaskGroup.make(number)
        failure = os.memfd_create("failure") if request["work"] is not None else -1
        ours, theirs = _descriptors(terminal)
        told, tell = os.pipe2(os.O_CLOEXEC)
        plan = _Plan(request, identity, group, variables, failure, -1 if terminal is None else theirs[0])
        pid = os.fork()
        if pid == 0:
            _be(plan, theirs, tell)
        os.close(tell)
        for fd in set(theirs):
            os.close(fd)
        with os.fdopen(told, "rb") as file:
            answer = file.read(_MOST_FAILURE)
        if answer:
            for fd in {*ours, failure} - {-1}:
                os.close(fd)
            os.waitpid(pid, 0)
            group.remove()
            code, _, text = answer.decode(errors="replace").partition(" ")
            raise OSError(int(code), text)
        stdin, stdout, stderr = ours
        self._tasks[number] = _Task(pid, streams, group, failure, os.dup(stdout) if terminal is not None else -1)
        link.join(streams["stdin"], writer=stdin)
        # The host reads nothing for it before: what came before there is a task would be for nobody, an end too.
        link.send(Kind.CREDIT, streams["stdin"], CREDIT.pack(WINDOW))
        link.join(streams["stdout"], reader=stdout, on_orphan=self._drain)
        if stderr >= 0:
            link.join(streams["stderr"], reader=stderr, on_orphan=self._drain)
        else:
            link.send(Kind.END, streams["stderr"])
        return pid

    def signal(self, number: int, which: int) -> None:
        """Send a signal; SIGKILL to everything it has started."""
        task = self._tasks.get(number)
        if task is None:
            return
        if which == signal.SIGKILL and task.group.kill():
            return
        with contextlib.suppress(ProcessLookupError):
            os.killpg(task.pid, which)

    def resize(self, number: int, rows: int, columns: int) -> None:
        """Change the size of a terminal."""
        task = self._tasks.get(number)
        if task is not None and task.terminal >= 0:
            _set_size(task.terminal, rows, columns)

    def ended(self, pid: int, status: int) -> None:
        """A child of the agent has ended, perhaps one of these."""
        number = next((number for number, task in self._tasks.items() if task.pid == pid), None)
        if number is None:
            return
        task = self._tasks.pop(number)
        link = self._link()
        code = os.waitstatus_to_exitcode(status)
        told: dict[str, Any] = {"exit": code} if code >= 0 else {"signal": -code}
        if task.failure >= 0:
            text = os.pread(task.failure, _MOST_FAILURE, 0)
            os.close(task.failure)
            if text:
                told = {"error": json.loads(text)}
        if kills := task.group.oom_kills():
            told["oom_kills"] = kills
        if task.terminal >= 0:
            os.close(task.terminal)
        if link is not None:
            link.put(task.streams["status"], json.dumps(told).encode())
            link.send(Kind.END, task.streams["status"])
            # What it left running has its input still; who writes to it is told that nobody reads.
            link.cut(task.streams["stdin"])
        task.group.remove()

    def _drain(self, fd: int) -> None:
        """Read what nobody wants, until its end."""

        def read(_events: int) -> None:
            try:
                data = os.read(fd, 1 << 16)
            except BlockingIOError:
                return
            except OSError:
                data = b""
            if not data:
                self._loop.forget(fd)
                close_quietly(fd)

        self._loop.watch(fd, READ, read)


def _descriptors(terminal: list[int] | None) -> tuple[tuple[int, int, int], tuple[int, int, int]]:
    """Our ends and the program's: of its input, output and error output; ours of the last is -1 in a terminal."""
    if terminal is not None:
        master, slave = pty.openpty()
        os.set_inheritable(master, False)
        _set_size(slave, *terminal)
        return (os.dup(master), master, -1), (slave, slave, slave)
    (in_reader, in_writer), (out_reader, out_writer), (err_reader, err_writer) = (
        os.pipe2(os.O_CLOEXEC) for _ in range(3)
    )
    return (in_writer, out_reader, err_reader), (in_reader, out_writer, err_writer)


def _set_size(fd: int, rows: int, columns: int) -> None:
    fcntl.ioctl(fd, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))


def _be(plan: _Plan, descriptors: tuple[int, int, int], tell: int) -> None:
    """Be the program. Never returns."""
    doing = "the program"
    try:
        signal.set_wakeup_fd(-1)
        for which in _DEFAULTED:
            signal.signal(which, signal.SIG_DFL)
        os.setsid()
        if plan.terminal >= 0:
            fcntl.ioctl(plan.terminal, termios.TIOCSCTTY, 0)
        plan.group.enter()
        with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w", encoding="ascii") as stream:
            stream.write("0")
        os.umask(0o022)
        for number, fd in enumerate(_moved(descriptors)):
            os.dup2(fd, number)
        failure, tell = _keep(plan.failure, tell)
        become(plan.identity)
        doing = f"directory {plan.request['directory']!r}"
        os.chdir(plan.request["directory"])
        if plan.request["work"] is not None:
            os.close(tell)
            _work(plan.request["work"], failure)
        argv = plan.request["argv"]
        doing = f"program {argv[0]!r}"
        os.execvpe(argv[0], argv, plan.variables)
    except OSError as error:
        os.write(tell, f"{error.errno or errno.EIO} {doing}: {error.strerror}".encode())
    except (ValueError, IndexError) as error:
        os.write(tell, f"{errno.EINVAL} {doing}: {error}".encode())
    finally:
        os._exit(_FAILED)


def _moved(descriptors: tuple[int, int, int]) -> list[int]:
    """Copies above the numbers they are to have."""
    return [fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 10) for fd in descriptors]


def _keep(*descriptors: int) -> tuple[int, ...]:
    """Close everything from 3 on but these; they may have other numbers afterwards."""
    high = [fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 64) if fd >= 0 else -1 for fd in descriptors]
    at = 3
    for fd in sorted(fd for fd in high if fd >= 0):
        os.closerange(at, fd)
        at = fd + 1
    os.closerange(at, 1 << 16)
    return tuple(high)


def _work(work: dict[str, Any], failure: int) -> None:
    """Do work on files and exit."""
    code = 0
    try:
        perform(work, 0, 1)
    except BrokenPipeError:  # nobody wants the rest
        pass
    except (OSError, ValueError) as error:
        code = 1
        told = {
            "type": type(error).__name__,
            "errno": getattr(error, "errno", None),
            "message": getattr(error, "strerror", None) or str(error),
        }
        os.pwrite(failure, json.dumps(told).encode()[:_MOST_FAILURE], 0)
    finally:
        os._exit(code)
