"""What the step path promises, whatever carries it.

A channel joins the host to *n* environments that live in one or more groups (sandboxes). It moves requests and answers;
it does not know what a reset or an observation is. Everything that comes back is checked against the layout the host
planned: lengths are clamped before they are used, payloads are copied before they are parsed.

The conformance suite is ``agentenv.testing.channels``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from numpy.typing import NDArray

from agentenv.wire.slot import Op


class PeerLost(ConnectionError):
    """A group's process is gone, was ended for not answering, or broke the channel.

    Attributes:
        group: Which one.
        timed_out: It was ended for not answering.
        broken: What it did to the channel while alive, or "".
    """

    def __init__(self, group: int, *, timed_out: bool = False, broken: str = "") -> None:
        self.group = group
        self.timed_out = timed_out
        self.broken = broken
        super().__init__(f"group {group} {broken or ('did not answer in time' if timed_out else 'is gone')}")


class Channel(Protocol):
    """A synchronous, ordered exchange with ``count`` environments.

    Attributes:
        count: Number of environments.
        status: uint64 array (count,), the ``Flag`` bits of the last answers, written by the other side; 0 is a plain
            step.
        rewards: float64 array (count,), likewise; copy before keeping.
    """

    count: int
    status: NDArray[Any]
    rewards: NDArray[Any]

    def post(
        self, op: Op, members: Sequence[int] | None, payloads: Sequence[bytes] | None, *, timeout_s: float
    ) -> None:
        """Ask environments for something; returns before they answer.

        Args:
            op: What is asked.
            members: Positions asked; None asks all.
            payloads: One payload for each member, or None when the request has none.
            timeout_s: Until when they must have answered, from now.
        """

    def refuse_others(self) -> None:
        """See to it that no other thread waits here.

        Raises:
            ConcurrentUse: One does.
        """

    def wait(self) -> None:
        """Wait until everybody who was asked has answered.

        Raises:
            PeerLost: One group is gone or late. Others may still be answering; ``wait`` may be called again
                after that group was given up with ``abandon``.
        """

    def be_quiet(self, wanted: bool) -> None:
        """Whether those that look for requests instead of sleeping ring only when they are slept on.

        To be set once everybody has answered ``Op.STAND_BY``, and taken back once everybody has answered another pace:
        in between either side finds the other by its bell.
        """

    def payload(self, index: int) -> bytes:
        """A private copy of the answer's payload of one environment.

        Raises:
            ProtocolError: The length it states cannot be true.
            PeerLost: It promised more than it sent.
        """

    def abandon(self, group: int) -> None:
        """Stop expecting anything from a group; a later ``wait`` for it raises ``PeerLost`` at once."""

    def close(self) -> None:
        """Free descriptors and memory. Idempotent."""
