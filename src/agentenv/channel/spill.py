"""What does not fit into a slot: it goes over the control socket, and each message has its time."""

from __future__ import annotations

import socket
import time

from agentenv.errors import ProtocolError
from agentenv.guest.control import receive_exactly

_TRANSFER_S = 5.0
_TRANSFER_BYTES_PER_S = 4 << 20


def send(control: socket.socket, data: bytes) -> None:
    """Send a payload.

    Raises:
        OSError: The other side is gone, or did not take it in time.
    """
    control.settimeout(_timeout_s(len(data)))
    control.sendall(data)


def receive(control: socket.socket, length: int) -> bytes:
    """Receive a payload.

    Raises:
        ProtocolError: It did not come in time.
        ControlClosed, OSError: The other side is gone.
    """
    allowed_s = _timeout_s(length)
    try:
        return receive_exactly(control, length, deadline=time.monotonic() + allowed_s)
    except TimeoutError:
        raise ProtocolError(f"promised {length} bytes and did not send them within {allowed_s:.0f} s") from None


def _timeout_s(length: int) -> float:
    """How long ``length`` bytes may take: far more than they need, but not for ever."""
    return _TRANSFER_S + length / _TRANSFER_BYTES_PER_S
