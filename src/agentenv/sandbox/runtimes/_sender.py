"""Who sent what comes next on a socket: the kernel's word for it, as the reader's pid namespace numbers it.

What a process says of its own pid is worth nothing across a pid namespace; the kernel translates.
"""

from __future__ import annotations

import socket
import struct

_CREDENTIALS = struct.Struct("3i")


def ask_for_credentials(sock: socket.socket, wanted: bool = True) -> None:
    """Have the kernel attach the sender's identity to what is sent from here on."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, int(wanted))


def sender_pid(sock: socket.socket) -> int:
    """The process that sent the next byte, which stays unread; 0 where the other end is closed.

    Raises:
        TimeoutError: Nothing came within the socket's timeout.
    """
    try:
        _data, ancillary, _flags, _address = sock.recvmsg(1, socket.CMSG_SPACE(_CREDENTIALS.size), socket.MSG_PEEK)
    except ConnectionResetError:
        return 0
    for level, kind, data in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_CREDENTIALS:
            return int(_CREDENTIALS.unpack(data[: _CREDENTIALS.size])[0])
    return 0
