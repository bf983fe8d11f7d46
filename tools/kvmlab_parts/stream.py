"""Where the output of a command ends, in a byte stream that has no end of its own.

A virtio port cannot be closed so that the other side would know that everything was read. So the machine ends each
stream with a token that was drawn at random for this run; what is not part of it is passed on as soon as it is here.
"""

from __future__ import annotations


class Stream:
    """Takes the token off a stream.

    Args:
        token: What it ends with. A prefix of it must not come up inside it again, which a first byte that is found
            nowhere else in it sees to.

    Attributes:
        ended: Whether the token was seen.
    """

    def __init__(self, token: bytes) -> None:
        if not token or token.count(token[:1]) != 1:
            raise ValueError(f"expected a token whose first byte is found nowhere else in it, got {token!r}")
        self._token = token
        self._held = b""
        self.ended = False

    def feed(self, data: bytes) -> bytes:
        """Take what came, and return what of it, or of what was held back, is the command's for certain."""
        if self.ended:
            return b""
        held = self._held + data
        content, found, _ = held.partition(self._token)
        if found:
            self.ended, self._held = True, b""
            return content
        keep = self._beginning(held)
        self._held = held[len(held) - keep :]
        return held[: len(held) - keep]

    def _beginning(self, data: bytes) -> int:
        """How many bytes at the end of this are the beginning of a token."""
        at = data.rfind(self._token[:1], max(0, len(data) - len(self._token) + 1))
        return len(data) - at if at >= 0 and self._token.startswith(data[at:]) else 0
