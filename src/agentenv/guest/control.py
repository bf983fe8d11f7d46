"""The control socket: length-prefixed JSON messages, with descriptors where the host passes some.

It carries what happens a few times in a sandbox's life (set-up, spaces, attach) and the payloads too large for
shared memory. It never carries a pickle, and the host never accepts a descriptor from a guest.
"""

from __future__ import annotations

import array
import json
import os
import socket
import struct
from collections.abc import Sequence
from typing import Any

_LENGTH = struct.Struct("<I")
MAX_MESSAGE = 1 << 20
EXIT = struct.Struct("<4sIiI")
EXIT_MAGIC = b"\x00EXT"


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
        sock.sendall(data[sent:])
    except (BrokenPipeError, ConnectionResetError) as error:
        raise ControlClosed(str(error)) from error


def receive_exactly(sock: socket.socket, count: int) -> bytes:
    """Read ``count`` bytes.

    Raises:
        ControlClosed: The other end closed before all came.
    """
    parts = bytearray()
    while len(parts) < count:
        try:
            part = sock.recv(min(count - len(parts), 1 << 20))
        except ConnectionResetError as error:
            raise ControlClosed(str(error)) from error
        if not part:
            raise ControlClosed(f"closed after {len(parts)} of {count} bytes")
        parts += part
    return bytes(parts)


def receive_message(sock: socket.socket, *, max_fds: int = 0) -> tuple[dict[str, Any], list[int]]:
    """Receive one message and the descriptors that came with it.

    Raises:
        ControlClosed: The other end is gone.
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
        head = receive_exactly(sock, _LENGTH.size)
    (length,) = _LENGTH.unpack(head)
    if length > MAX_MESSAGE:
        raise ValueError(f"a control message of {length} bytes; at most {MAX_MESSAGE} are accepted")
    message = json.loads(receive_exactly(sock, length))
    if not isinstance(message, dict):
        raise ValueError("a control message is not an object")
    return message, fds
