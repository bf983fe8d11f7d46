"""A machine's line to its host over vhost-vsock: a CID of its own, and a port of the host's that belongs to it.

Any user of a host may connect to any port of any machine there, and an agent that listened would have to obey whoever
came first. So it is the machine that calls, and it calls the port of the host whose number is the machine's CID. That
port is ours before the machine has the CID, the kernel gives it to nobody else, and the monitor holds it as long as it
lives. We in turn hear only callers whose CID is the machine's, which the kernel vouches for, and whose own port is one
that only root may use there.

What this cannot do: a machine with vsock reaches every vsock port on which anybody listens on its host. That is why
it has to be asked for.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import logging
import os
import secrets
import select
import socket
import struct
import time
from collections.abc import Callable

from agentenv.errors import RuntimeUnavailable
from agentenv.guest.agent.ports import KNOCK, MOST_RESERVED

logger = logging.getLogger("agentenv.sandbox")

DEVICE = "/dev/vhost-vsock"
_SET_GUEST_CID = 0x4008AF60  # VHOST_VSOCK_SET_GUEST_CID, linux/vhost.h
# Small numbers are what people give to machines they start by hand; the last one stands for "any".
_FIRST_CID, _LAST_CID = 1 << 16, (1 << 32) - 2
_TRIES = 32
_BACKLOG = 16
_LOOK_S = 0.1
_ANSWER_S = 10.0
_OTHERWISE = 'or agent_port = "serial"'


class Line:
    """A CID that is claimed, and the port that goes with it.

    Attributes:
        cid: The machine's.
        device: Descriptor of the vhost device that has it; -1 after ``hand_over``.
        listener: The port.
    """

    def __init__(self, cid: int, device: int, listener: socket.socket) -> None:
        """Take over both."""
        self.cid, self.device, self.listener = cid, device, listener

    @classmethod
    def claim(cls, device: str | None = None, draw: Callable[[], int] | None = None) -> Line:
        """Get one that nobody has on this host.

        Args:
            device: The vhost device; None for the usual one.
            draw: Draws CIDs; None for a random one each time.

        Raises:
            RuntimeUnavailable: This host has no vhost-vsock for us; says why and what helps.
        """
        draw = draw or _draw
        for _ in range(_TRIES):
            line = _try(draw(), device or DEVICE)
            if line is not None:
                return line
        raise RuntimeUnavailable(
            f"vsock: {_TRIES} CIDs were tried, and all were taken on this host", f"end machines, {_OTHERWISE}"
        )

    def hand_over(self) -> None:
        """The monitor has the device: the CID is free again when that ends."""
        if self.device >= 0:
            os.close(self.device)
            self.device = -1

    def answer(self, deadline: float, ended: Callable[[float], bool]) -> socket.socket | None:
        """The stream to an agent that calls, or is calling already; None where the machine ends before that.

        Calls that nobody is behind any more are passed over: an agent that has heard of a new CID calls anew.

        Args:
            deadline: As ``time.monotonic`` counts.
            ended: Waits for the machine's end so many seconds; returns whether it came.

        Raises:
            TimeoutError: None called in time.
        """
        while (left := deadline - time.monotonic()) > 0:
            stream = self._accept(min(left, _LOOK_S))
            if stream is None:
                if ended(0):
                    return None
                continue
            try:
                if _is_there(stream, min(deadline, time.monotonic() + _ANSWER_S)):
                    return stream
            except BaseException:
                stream.close()
                raise
            stream.close()
        raise TimeoutError(f"no agent called port {self.cid} in time")

    def close(self) -> None:
        """Give up both. Idempotent."""
        self.hand_over()
        self.listener.close()

    def _accept(self, timeout_s: float) -> socket.socket | None:
        poller = select.poll()
        try:
            poller.register(self.listener, select.POLLIN)
            if not poller.poll(timeout_s * 1000):
                return None
            stream, (cid, port) = self.listener.accept()
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE):
                raise
            return None  # the caller is gone again
        except ValueError:
            return None  # closed meanwhile: the machine was ended
        if cid == self.cid and port <= MOST_RESERVED:
            return stream
        stream.close()
        return None


def choose(wanted: str, device: str | None = None) -> str:
    """How agents are reached: "vsock" or "serial".

    Args:
        wanted: One of these, or "auto" for vsock where this host has it.
        device: The vhost device; None for the usual one.

    Raises:
        RuntimeUnavailable: vsock was asked for, and cannot be used here.
    """
    if wanted == "serial":
        return wanted
    try:
        Line.claim(device).close()
    except RuntimeUnavailable as error:
        if wanted == "vsock":
            raise
        logger.info("agents of machines are reached over a serial port: %s", str(error).partition("\n")[0])
        return "serial"
    return "vsock"


def _draw() -> int:
    return _FIRST_CID + secrets.randbelow(_LAST_CID - _FIRST_CID + 1)


def _try(cid: int, path: str) -> Line | None:
    """Claim a CID with its port; None where somebody else has one of them."""
    with contextlib.ExitStack() as undo:
        try:
            device = os.open(path, os.O_RDWR | os.O_CLOEXEC)
            undo.callback(os.close, device)
            listener = undo.enter_context(socket.socket(socket.AF_VSOCK, socket.SOCK_STREAM))
            # Before the machine has the CID: so that nobody can be there in our place when it calls.
            listener.bind((socket.VMADDR_CID_ANY, cid))
            listener.listen(_BACKLOG)
            listener.setblocking(False)
            fcntl.ioctl(device, _SET_GUEST_CID, struct.pack("<Q", cid))
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                return None
            raise _unusable(path, error) from error
        undo.pop_all()
    return Line(cid, device, listener)


def _unusable(path: str, error: OSError) -> RuntimeUnavailable:
    if error.errno in (errno.EACCES, errno.EPERM):
        remedy = f"sudo usermod -aG kvm $USER where it belongs to that group (see ls -l {path}), then log in anew"
    elif error.errno in (errno.ENOENT, errno.ENODEV, errno.ENXIO):
        remedy = "sudo modprobe vhost_vsock; in a container --device /dev/vhost-vsock"
    else:
        remedy = f"sudo modprobe vhost_vsock, and look at what {path} is"
    return RuntimeUnavailable(
        f"vsock: expected to open {path}, to listen on a port, and to claim a CID, got: {error.strerror}",
        f"{remedy}, {_OTHERWISE}",
    )


def _is_there(stream: socket.socket, deadline: float) -> bool:
    """Whether an agent answers on a stream."""
    try:
        stream.settimeout(max(0.01, deadline - time.monotonic()))
        stream.sendall(KNOCK)
        if stream.recv(len(KNOCK)) != KNOCK:
            return False
        stream.settimeout(None)
        return True
    except OSError:
        return False
