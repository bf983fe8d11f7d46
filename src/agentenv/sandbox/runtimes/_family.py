"""The processes of one cell that carry an environment: the one that serves, copies that are parked, copies that serve.

``guest/family.py`` is the other side. All of them live and die with their cell, under its limits.
"""

from __future__ import annotations

import contextlib
import errno
import os
import select
import signal
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agentenv.errors import ResourceLimit, RuntimeUnavailable
from agentenv.guest.control import ControlClosed, receive_message, send_message
from agentenv.sandbox.runtimes._sender import ask_for_credentials, sender_pid

_HELLO_S = 10.0


@dataclass(slots=True)
class Worker:
    """A process that carries an environment.

    Attributes:
        pid: As the host numbers it.
        pidfd: Becomes readable when it ends.
        inner: As its own pid namespace numbers it.
    """

    pid: int
    pidfd: int
    inner: int

    @classmethod
    def open(cls, pid: int, parent: Callable[[], int]) -> Worker:
        """Take hold of a process that waits for us.

        Its number is that of whoever sent a message. A guest may have that done by a process that ends, and number
        upon number used up until a stranger on the host has this one. So it must be a child of the cell's first
        process, as everybody is who carries an environment, and no stranger.

        Args:
            pid: Its number, as the kernel told it with the message.
            parent: Gives the number of the cell's first process, or 0 when that has ended.

        Raises:
            OSError: It is gone, or no descriptor is left.
        """
        pidfd = os.pidfd_open(pid)
        try:
            its_parent, inner = _parent_and_inner_pid(pid)
            worker = cls(pid, pidfd, inner)
            # Only of two that live on when it was read is it certain that it was read of them.
            if its_parent != parent() or not worker.alive():
                raise ProcessLookupError(errno.ESRCH, "the process that spoke has ended")
            return worker
        except BaseException:
            os.close(pidfd)
            raise

    def alive(self) -> bool:
        """Whether it runs."""
        return self.pidfd >= 0 and not self.wait(0)

    def wait(self, timeout_s: float) -> bool:
        """Wait for its end; whether it has ended."""
        poller = select.poll()
        poller.register(self.pidfd, select.POLLIN)
        return bool(poller.poll(int(timeout_s * 1000)))

    def kill(self) -> None:
        """End it at once, unless it was let go of."""
        if self.pidfd < 0:
            return
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self.pidfd, signal.SIGKILL)

    def close(self) -> None:
        """Let go of it. Idempotent."""
        if self.pidfd >= 0:
            os.close(self.pidfd)
            self.pidfd = -1


class Parked:
    """A copy that waits to be copied.

    Attributes:
        worker: Its process.
        house: The cell it lives in, whatever that is to its owner.
    """

    def __init__(self) -> None:
        """Make the lifeline; the guest's end is passed with the order to park."""
        self._lifeline, self.theirs = socket.socketpair()
        self.worker: Worker | None = None
        self.house: object = None
        ask_for_credentials(self._lifeline)
        self._owner = os.getpid()

    def __del__(self) -> None:
        if getattr(self, "_owner", None) == os.getpid():  # in a forked child it is not ours to end
            self.drop()

    def hello(self, parent: Callable[[], int]) -> None:
        """Take hold of the copy that was made.

        Args:
            parent: See ``Worker.open``.

        Raises:
            ConnectionError, TimeoutError, OSError: It is gone.
        """
        self.theirs.close()
        self._lifeline.settimeout(_HELLO_S)
        pid = sender_pid(self._lifeline)
        receive_message(self._lifeline, deadline=time.monotonic() + _HELLO_S)
        self.worker = Worker.open(pid, parent)

    def alive(self) -> bool:
        """Whether it can be copied."""
        return self.worker is not None and self.worker.alive()

    def order(self, attach: Mapping[str, Any], fds: Sequence[int]) -> None:
        """Have it copied; the copy serves with these.

        Raises:
            ControlClosed: It is gone.
        """
        send_message(self._lifeline, {"serve": dict(attach)}, fds)

    def drop(self) -> None:
        """End it. Idempotent."""
        self._lifeline.close()
        self.theirs.close()
        if self.worker is not None:
            self.worker.kill()
            self.worker.close()


def greet(control: socket.socket, parent: Callable[[], int]) -> Worker:
    """Take hold of a copy that serves, by its first message.

    Args:
        control: Where it speaks.
        parent: See ``Worker.open``.

    Raises:
        ResourceLimit: The kernel refused to make it.
        RuntimeUnavailable: It did not come to be.
    """
    try:
        control.settimeout(_HELLO_S)
        pid = sender_pid(control)
        message, _ = receive_message(control, deadline=time.monotonic() + _HELLO_S)
        if isinstance(number := message.get("refused"), int):
            raise _refused(number)
        control.settimeout(None)
        ask_for_credentials(control, False)
        return Worker.open(pid, parent)
    except ResourceLimit:
        raise
    except (ControlClosed, ValueError, OSError) as error:
        raise RuntimeUnavailable(f"a copy of the environment did not come to life: {error}") from error


def _refused(number: int) -> ResourceLimit:
    why = os.strerror(number) if number in errno.errorcode else "for no reason that is known"
    what = f"expected room for a copy of the environment beside it in its sandbox, the kernel refused: {why}"
    return ResourceLimit(number, f"{what}; raise pids (processes and threads) or memory_mb, or make fewer copies")


def make_control() -> tuple[socket.socket, socket.socket]:
    """A control socket: the host's end, which is told who speaks, and the guest's."""
    mine, theirs = socket.socketpair()
    ask_for_credentials(mine)
    return mine, theirs


def _parent_and_inner_pid(pid: int) -> tuple[int, int]:
    parent, inner = 0, pid
    # Bytes: among them is the process's name, which is any bytes it chose.
    for line in Path(f"/proc/{pid}/status").read_bytes().split(b"\n"):
        if line.startswith(b"PPid:"):
            parent = int(line.split()[-1])
        elif line.startswith(b"NSpid:"):
            inner = int(line.split()[-1])
    return parent, inner
