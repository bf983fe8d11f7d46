"""What the host knows of one sandbox it asks over shared memory."""

from __future__ import annotations

import socket
from dataclasses import dataclass

from agentenv.channel.bell import Bell


@dataclass(slots=True)
class Group:
    """One sandbox's side of the channel.

    Attributes:
        first: Position of its first environment.
        ticket_at, done_at, quiet_at, awake_at: Where its four words lie, in words from the start of the arena.
        wake_fd, done_fd: The ends of the bells that the host uses at every step.
        rung: The last ticket for which it was rung.
        lost: It is dead or was ended, or nothing is expected of it, yet or any more. It is not rung, nor waited for.
        timed_out: It was ended for being late.
    """

    first: int
    control: socket.socket
    wake: Bell
    done: Bell
    ticket_at: int
    done_at: int
    quiet_at: int
    awake_at: int
    wake_fd: int
    done_fd: int
    rung: int = 0
    lost: bool = True
    timed_out: bool = False
