"""Many byte streams, and the requests of the step path, over one stream into a machine.

Each frame is a header and a body. A stream is numbered by the host; each side may send as many bytes on it as the other
has granted, so that one that nobody reads holds up no other.

    HELLO    either way at the beginning: a nonce, which the other side repeats; what came before it is left over from
             somebody else, and more of them are of no meaning
    DATA     bytes of a stream
    END      no more of them in this direction
    CREDIT   so many bytes more may be sent on a stream
    STEP     host -> guest: the requests of one wake-up (``wire.replica``)
    ANSWER   guest -> host: its answers
    BYE      guest -> host: nothing follows; the machine can be ended
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from enum import IntEnum

HEADER = struct.Struct("<IHBx")
"""Bytes of the body, stream, kind."""
CREDIT = struct.Struct("<I")
WINDOW = 1 << 18
"""Bytes that may be sent on a new stream."""
CHUNK = 1 << 16
"""Most bytes in one DATA frame."""
NONCE_BYTES = 16
_MAGIC = b"agentenv-1"
HELLO = HEADER.pack(len(_MAGIC) + NONCE_BYTES, 0, 1) + _MAGIC
"""A whole HELLO but for its nonce."""
RPC = 0
"""The stream of requests to the agent: messages as ``guest.control`` frames them."""


class Kind(IntEnum):
    """What a frame is."""

    HELLO = 1
    DATA = 2
    END = 3
    CREDIT = 4
    STEP = 5
    ANSWER = 6
    BYE = 7


_KINDS = frozenset(Kind)


def frame(kind: Kind, stream: int = 0, body: bytes | bytearray | memoryview = b"") -> bytes:
    """One frame as bytes."""
    return b"".join((HEADER.pack(len(body), stream, kind), body))


class Splitter:
    """Cuts what comes in into frames."""

    def __init__(self, max_body: int) -> None:
        """Refuse bodies of more than ``max_body`` bytes."""
        self.max_body = max_body
        self._data = bytearray()

    @property
    def missing(self) -> int:
        """Bytes that are still to come of a frame that has begun; 0 where that is not known."""
        if len(self._data) < HEADER.size:
            return 0
        (length, _stream, _kind) = HEADER.unpack_from(self._data)
        return max(0, HEADER.size + int(length) - len(self._data))

    def feed(self, data: bytes) -> Iterator[tuple[Kind, int, bytes]]:
        """The frames that are complete now: kind, stream, body.

        Raises:
            ValueError: What comes is not the protocol.
        """
        held = self._data
        held += data
        at, end = 0, len(held)
        try:
            while end - at >= HEADER.size:
                length, stream, kind = HEADER.unpack_from(held, at)
                if kind not in _KINDS or length > self.max_body:
                    raise ValueError(
                        f"a frame of kind {kind} with {length} bytes; at most {self.max_body} are accepted"
                    )
                if end - at - HEADER.size < length:
                    break
                start = at + HEADER.size
                at = start + length
                yield Kind(kind), stream, bytes(held[start:at])
        finally:
            del held[:at]
