"""The control socket: length-prefixed JSON messages, with descriptors where the host passes some.

It carries what happens a few times in a sandbox's life (set-up, spaces, attach) and the payloads too large for
shared memory. The host never accepts a descriptor from a guest.
"""

from __future__ import annotations

import array
import json
import os
import socket
import struct
import time
from collections.abc import Sequence
from typing import Any

_LENGTH = struct.Struct("<I")
MAX_MESSAGE = 1 << 20


class ControlClosed(ConnectionError):
    """The other end of the control socket is gone."""


def send_message(sock: socket.socket, message: dict[str, Any], fds: Sequence[int] = ()) -> None:
    """Send one message, with descriptors attached to its first byte.

    Raises:
        ControlClosed: The other end is gone.
    """
    body = json.dumps(message, separators=(",", ":")).encode("ascii")
    data = _LENGTH.pack(len(body)) + body
    try:
        sent = 0
        if fds:
            ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))]
            sent = sock.sendmsg([data], ancillary)
        if sent < len(data):  # to send nothing fails as well where the other end has read it all and is gone
            sock.sendall(data[sent:])
    except (BrokenPipeError, ConnectionResetError) as error:
        raise ControlClosed(str(error)) from error


def receive_exactly(sock: socket.socket, count: int, *, deadline: float | None = None) -> bytes:
    """Read ``count`` bytes.

    Args:
        sock: The socket. With a deadline its timeout is changed, and left as it then is.
        count: How many bytes.
        deadline: ``time.monotonic()`` by which all must have come. A socket's own timeout starts anew with every
            byte, so that a peer who sends one now and then is waited for for ever.

    Raises:
        ControlClosed: The other end closed before all came.
        TimeoutError: They had not come by the deadline.
    """
    parts = bytearray()
    while len(parts) < count:
        if deadline is not None:
            sock.settimeout(_remaining(deadline))
        try:
            part = sock.recv(min(count - len(parts), 1 << 20))
        except ConnectionResetError as error:
            raise ControlClosed(str(error)) from error
        if not part:
            raise ControlClosed(f"closed after {len(parts)} of {count} bytes")
        parts += part
    return bytes(parts)


def _remaining(deadline: float) -> float:
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError("the peer did not send all of its message in time")
    return left


def receive_message(
    sock: socket.socket, *, max_fds: int = 0, deadline: float | None = None
) -> tuple[dict[str, Any], list[int]]:
    """Receive one message and the descriptors that came with it.

    Args:
        sock: The socket.
        max_fds: Descriptors accepted; more are closed by the kernel.
        deadline: See ``receive_exactly``; only without descriptors.

    Raises:
        ControlClosed: The other end is gone.
        TimeoutError: The message was not complete by the deadline.
        ValueError: What came is not a message.
    """
    fds: list[int] = []
    if max_fds:
        head, ancillary, _flags, _address = sock.recvmsg(_LENGTH.size, socket.CMSG_LEN(max_fds * 4))
        for level, kind, data in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                received = array.array("i")
                received.frombytes(data[: len(data) - len(data) % received.itemsize])
                fds.extend(received)
        if not head:
            raise ControlClosed("closed")
        head += receive_exactly(sock, _LENGTH.size - len(head))
        for fd in fds:
            os.set_inheritable(fd, False)
    else:
        head = receive_exactly(sock, _LENGTH.size, deadline=deadline)
    (length,) = _LENGTH.unpack(head)
    if length > MAX_MESSAGE:
        raise ValueError(f"a control message of {length} bytes; at most {MAX_MESSAGE} are accepted")
    body = receive_exactly(sock, length, deadline=deadline)
    try:
        message = json.loads(body)
    except RecursionError:
        raise ValueError("a control message nests too deeply") from None
    if not isinstance(message, dict):
        raise ValueError("a control message is not an object")
    return message, fds
