"""How the host is reached from inside: a vsock port it connects to, one that we connect to, or a virtio serial port.

Whatever carries it, the host comes and goes (with every snapshot brought back), and each time says hello anew; what was
on its way before that belongs to nobody.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import select
import socket
import struct
from collections.abc import Callable
from pathlib import Path

from agentenv.guest.pumping import HANGUP, READ, Loop, close_quietly
from agentenv.wire.frames import HELLO, NONCE_BYTES

PORT = 1024
PORT_NAME = "agentenv.0"
CALLS = "agentenv.port=call"
"""A word of the kernel's command line, where the agent is to connect to its host and not the other way round."""
KNOCK = b"?"
"""What the host sends on a stream on which it was called, and is sent back: so that it knows that somebody is there."""
MOST_RESERVED = 1023
"""The last port that only root may bind; LAST_RESERVED_PORT, net/vmw_vsock/af_vsock.c."""
_MOST_BEFORE_HELLO = 1 << 20
_GET_LOCAL_CID = 0x7B9  # IOCTL_VM_SOCKETS_GET_LOCAL_CID, linux/vm_sockets.h
_CALL_AGAIN_S = 0.01

Welcome = Callable[[int], None]
"""Takes over a descriptor on which the host has said hello."""


class VsockPort:
    """Listens for the host, and for nobody else.

    Every user of the machine may connect to its own ports where the kernel has a loopback for vsock, and whoever says
    hello is obeyed. The kernel tells who has connected; a program cannot choose its CID.
    """

    patience_s = -1.0

    def __init__(self, loop: Loop, welcome: Welcome) -> None:
        """Listen.

        Raises:
            OSError: There is no vsock device.
        """
        self._loop, self._welcome = loop, welcome
        self._listener = socket.socket(socket.AF_VSOCK, socket.SOCK_STREAM)
        self._listener.bind((socket.VMADDR_CID_ANY, PORT))
        self._listener.listen()
        loop.watch(self._listener.fileno(), READ, self._accept)

    def look(self) -> None:
        """Nothing to do: the kernel tells."""

    def _accept(self, _events: int) -> None:
        with contextlib.suppress(OSError):
            connection, (cid, _) = self._listener.accept()
            if cid == socket.VMADDR_CID_HOST:
                Greeter(self._loop, connection.detach(), self._welcome)
            else:
                connection.close()


class CallingPort:
    """Connects to the host, again and again until it is there, and listens to nobody.

    Where every user of the host may connect to a machine, whoever came first would be obeyed. But the port of the host
    whose number is the machine's CID belongs to whoever started the machine (``sandbox.runtimes.qemu.vsock``). A copy
    of a machine has another CID, of which it hears only when it runs: streams made before that are reset then, and
    those in the making are given up here.
    """

    def __init__(self, loop: Loop, welcome: Welcome) -> None:
        """Call nobody yet.

        Raises:
            OSError: There is no vsock device.
        """
        self._loop, self._welcome = loop, welcome
        self._device = os.open("/dev/vsock", os.O_RDONLY | os.O_CLOEXEC)
        self._call: socket.socket | None = None
        self._called = 0
        self._taken = False
        self.patience_s = _CALL_AGAIN_S

    def look(self) -> None:
        """Call, or see what has become of a call."""
        if self._taken:
            return
        cid = self._own_cid()
        if self._call is not None and self._called != cid:
            self._hang_up()
        if self._call is None:
            self._begin(cid)
        if self._call is not None:
            self._see(self._call)

    def free(self) -> None:
        """The host is gone, and the descriptor closed."""
        self._taken, self.patience_s = False, _CALL_AGAIN_S

    def _begin(self, cid: int) -> None:
        self._call, self._called = socket.socket(socket.AF_VSOCK, socket.SOCK_STREAM | socket.SOCK_NONBLOCK), cid
        try:
            _bind_reserved(self._call)
            self._call.connect((socket.VMADDR_CID_HOST, cid))
        except BlockingIOError:
            return
        except OSError:
            self._hang_up()

    def _see(self, call: socket.socket) -> None:
        poller = select.poll()
        poller.register(call, select.POLLOUT)
        found = poller.poll(0)
        if not found:
            return
        # Only now is it certain that the port called is still this machine's: the CID may have changed in between.
        if found[0][1] & ~select.POLLOUT or self._called != self._own_cid():
            self._hang_up()
            return
        self._call, self._taken, self.patience_s = None, True, -1.0
        fd = call.detach()
        self._loop.watch(fd, READ, lambda _events: self._knocked(fd))

    def _knocked(self, fd: int) -> None:
        try:
            word = os.read(fd, len(KNOCK))
            if word == KNOCK:
                os.write(fd, word)
        except BlockingIOError:
            return
        except OSError:
            word = b""
        self._loop.forget(fd)
        if word == KNOCK:
            Greeter(self._loop, fd, self._welcome, self.free)
            return
        close_quietly(fd)
        self.free()

    def _hang_up(self) -> None:
        if self._call is not None:
            self._call.close()
            self._call = None

    def _own_cid(self) -> int:
        return int(struct.unpack("=I", fcntl.ioctl(self._device, _GET_LOCAL_CID, bytes(4)))[0])


class SerialPort:
    """Opens the port again and again until the host is there: its coming is not told to somebody who waits."""

    def __init__(self, loop: Loop, welcome: Welcome) -> None:
        """Find the port.

        Raises:
            FileNotFoundError: There is none.
        """
        self._loop, self._welcome = loop, welcome
        self._path = _find_serial()
        self._fd = -1
        self._taken = False
        self.patience_s = 0.01

    def look(self) -> None:
        """See whether the host is there."""
        if self._taken:
            return
        if self._fd < 0:
            with contextlib.suppress(OSError):
                self._fd = os.open(self._path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        if self._fd < 0:
            return
        poller = select.poll()
        poller.register(self._fd, select.POLLIN)
        found = poller.poll(0)
        if found and not found[0][1] & select.POLLHUP:
            self._taken, self.patience_s = True, -1.0
            Greeter(self._loop, self._fd, self._welcome, self.free)

    def free(self) -> None:
        """The host is gone, and the descriptor closed."""
        self._fd, self._taken, self.patience_s = -1, False, 0.01


Port = VsockPort | CallingPort | SerialPort


def open_port(loop: Loop, welcome: Welcome) -> Port:
    """The way to the host that this machine has.

    Raises:
        OSError: There is none.
    """
    if CALLS in Path("/proc/cmdline").read_text(encoding="utf-8", errors="replace").split():
        return CallingPort(loop, welcome)
    with contextlib.suppress(FileNotFoundError):
        return SerialPort(loop, welcome)
    return VsockPort(loop, welcome)


class Greeter:
    """Waits for hello on a new stream, and answers it."""

    def __init__(self, loop: Loop, fd: int, welcome: Welcome, on_lost: Callable[[], None] | None = None) -> None:
        """Take over a descriptor."""
        self._loop, self._fd, self._welcome, self._on_lost = loop, fd, welcome, on_lost
        self._data = b""
        os.set_blocking(fd, False)
        loop.watch(fd, READ, self._ready)

    def _ready(self, events: int) -> None:
        try:
            part = os.read(self._fd, 4096)
        except BlockingIOError:
            return
        except OSError:
            part = b""
        if not part or (events & HANGUP and not events & READ):
            self._lose()
            return
        self._data += part
        at = self._data.find(HELLO)
        if at < 0:
            self._data = self._data[-len(HELLO) :]
            return
        whole = self._data[at : at + len(HELLO) + NONCE_BYTES]
        if len(whole) < len(HELLO) + NONCE_BYTES:
            return
        self._loop.forget(self._fd)
        os.set_blocking(self._fd, True)
        try:
            os.write(self._fd, whole)
        except OSError:
            self._lose()
            return
        self._welcome(self._fd)

    def _lose(self) -> None:
        self._loop.forget(self._fd)
        close_quietly(self._fd)
        if self._on_lost is not None:
            self._on_lost()


def _find_serial() -> str:
    for name in Path("/sys/class/virtio-ports").glob("*/name"):
        if name.read_text().strip() == PORT_NAME:
            return f"/dev/{name.parent.name}"
    raise FileNotFoundError("no virtio serial port")


def _bind_reserved(call: socket.socket) -> None:
    """Take a port that only root may have, which tells the host who calls; one closed just now may still be taken."""
    for port in range(MOST_RESERVED, 0, -1):
        try:
            call.bind((socket.VMADDR_CID_ANY, port))
            return
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise
    raise OSError(errno.EADDRINUSE, "every reserved port is taken")
