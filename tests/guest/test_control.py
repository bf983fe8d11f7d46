"""Messages on the control socket, to peers that take them and leave."""

from __future__ import annotations

import os
import socket
from typing import Any

import pytest

from agentenv.guest.control import ControlClosed, receive_message, send_message


def test_who_reads_all_and_is_gone_was_told() -> None:
    """It may be so quick that the sender still runs: there is nothing left to send, and nobody to send it to."""
    ours, theirs = socket.socketpair()
    received: list[Any] = []

    class Sending:
        """The socket, whose peer reads and leaves before the call is over."""

        def sendmsg(self, *arguments: Any) -> int:
            sent = ours.sendmsg(*arguments)
            received.append(receive_message(theirs, max_fds=1))
            theirs.close()
            return sent

        def sendall(self, data: bytes) -> None:
            ours.sendall(data)

    with ours:
        send_message(Sending(), {"word": "last"}, [ours.fileno()])  # type: ignore[arg-type]  # as much of one as is used
        with pytest.raises(ControlClosed):
            send_message(ours, {"word": "too late"})
    ((message, fds),) = received
    os.close(fds[0])
    assert message == {"word": "last"}
