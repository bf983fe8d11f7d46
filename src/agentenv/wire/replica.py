"""The slots of a sandbox on both sides of a machine's wall: what must cross for them to be the same.

Where memory cannot be shared, each side has slots of its own (``wire.slot``), and a wake-up carries what one side has
written to the other: requests one way, answers the other. Whoever reads and writes the slots does not notice.
"""

from __future__ import annotations

import struct

from agentenv.wire import slot
from agentenv.wire.slot import PAYLOAD, Flag, SlotLayout

_HEAD = struct.Struct("<QH")
"""Ticket of the wake-up, number of slots that follow."""
_REQUEST = struct.Struct("<HHI4x")
"""Position of the slot, what is asked, bytes of the payload; the action and the payload follow."""
_ANSWER = struct.Struct("<HHIQQQQ")
"""Position, whether there is a final observation, bytes of the payload that follow; status, reward, digest, stated
bytes of the payload. The observation, the final one and the payload follow."""
_OP, _IN_LENGTH = slot.OP // 8, slot.IN_LENGTH // 8
_TICKET, _GROUP_TICKET, _GROUP_DONE = slot.TICKET // 8, slot.GROUP_TICKET // 8, slot.GROUP_DONE // 8
_STATUS, _REWARD, _DIGEST, _OUT_LENGTH = slot.STATUS // 8, slot.REWARD // 8, slot.DIGEST // 8, slot.OUT_LENGTH // 8


class Replica:
    """One side's slots of one sandbox."""

    def __init__(self, memory: memoryview, layout: SlotLayout, count: int) -> None:
        """Look at ``count`` slots in ``memory``."""
        self._memory = memory
        self._layout = layout
        self._count = count
        self._words = [memory[i * layout.size : i * layout.size + slot.HEADER].cast("Q") for i in range(count)]
        self._action = slice(layout.action, layout.observation)
        self._has_final = layout.final != layout.observation
        self._observation = slice(layout.observation, layout.final if self._has_final else layout.inbox)
        self._final = slice(layout.final, layout.inbox)

    @property
    def max_answer(self) -> int:
        """The most bytes an answer can have."""
        return _HEAD.size + self._count * (_ANSWER.size + self._layout.size)

    @property
    def answered(self) -> bool:
        """Whether the last wake-up was answered completely."""
        return bool(self._words[0][_GROUP_TICKET] == self._words[0][_GROUP_DONE])

    def request(self) -> bytes:
        """The host's side: what it asks now."""
        ticket = self._words[0][_GROUP_TICKET]
        parts: list[bytes | memoryview] = [b""]
        for index, words in enumerate(self._words):
            if self._count > 1 and words[_TICKET] != ticket:
                continue
            stated = words[_IN_LENGTH]
            payload = self._at(index, self._layout.inbox, stated if stated <= self._layout.inbox_size else 0)
            parts += (_REQUEST.pack(index, words[_OP], stated), self._part(index, self._action), payload)
        parts[0] = _HEAD.pack(ticket, len(parts) // 3)
        return b"".join(parts)

    def put_request(self, body: bytes) -> None:
        """The guest's side: take over what the host asks."""
        ticket, number = _HEAD.unpack_from(body)
        if ticket == self._words[0][_GROUP_TICKET]:
            return  # it may be under way already, and has its own use of the slots
        at = _HEAD.size
        for _ in range(number):
            index, op, stated = _REQUEST.unpack_from(body, at)
            at += _REQUEST.size
            words = self._words[index]
            words[_OP], words[_IN_LENGTH], words[_TICKET] = op, stated, ticket
            at = self._put(index, self._action, body, at)
            if stated <= self._layout.inbox_size:
                at = self._put(index, slice(self._layout.inbox, self._layout.inbox + stated), body, at)
        self._words[0][_GROUP_TICKET] = ticket

    def answer(self) -> bytes:
        """The guest's side: what it has answered."""
        ticket = self._words[0][_GROUP_TICKET]
        parts: list[bytes | memoryview] = [b""]
        for index, words in enumerate(self._words):
            if self._count > 1 and words[_TICKET] != ticket:
                continue
            status, stated = words[_STATUS], words[_OUT_LENGTH]
            final = self._has_final and bool(status & Flag.FINAL)
            length = stated if status & PAYLOAD and stated <= self._layout.outbox_size else 0
            parts += (
                _ANSWER.pack(index, final, length, status, words[_REWARD], words[_DIGEST], stated),
                self._part(index, self._observation),
                self._part(index, self._final) if final else b"",
                self._at(index, self._layout.outbox, length),
            )
        parts[0] = _HEAD.pack(ticket, len(parts) // 4)
        return b"".join(parts)

    def put_answer(self, body: bytes) -> bool:
        """The host's side: take over what the guest has answered; hostile.

        Returns:
            Whether it answers what was asked last; a late one is passed over.

        Raises:
            ValueError: It is not an answer.
        """
        try:
            ticket, number = _HEAD.unpack_from(body)
            at = _HEAD.size
            if ticket != self._words[0][_GROUP_TICKET]:
                return False
            for _ in range(number):
                index, final, length, status, reward, digest, stated = _ANSWER.unpack_from(body, at)
                at += _ANSWER.size
                if index >= self._count or length > self._layout.outbox_size or (final and not self._has_final):
                    raise ValueError("an answer for a slot, or with a part, that there is not")
                words = self._words[index]
                at = self._put(index, self._observation, body, at)
                if final:
                    at = self._put(index, self._final, body, at)
                at = self._put(index, slice(self._layout.outbox, self._layout.outbox + length), body, at)
                words[_STATUS], words[_REWARD], words[_DIGEST], words[_OUT_LENGTH] = status, reward, digest, stated
        except struct.error as error:
            raise ValueError(f"an answer that is cut short: {error}") from error
        if at != len(body):
            raise ValueError(f"an answer with {len(body) - at} bytes too many")
        self._words[0][_GROUP_DONE] = ticket
        return True

    def release(self) -> None:
        """Let go of the memory."""
        for words in self._words:
            words.release()
        self._memory.release()

    def _part(self, index: int, part: slice) -> memoryview:
        base = index * self._layout.size
        return self._memory[base + part.start : base + part.stop]

    def _at(self, index: int, offset: int, length: int) -> memoryview:
        return self._part(index, slice(offset, offset + length))

    def _put(self, index: int, part: slice, body: bytes, at: int) -> int:
        length = part.stop - part.start
        data = body[at : at + length]
        if len(data) != length:
            raise ValueError(f"{len(data)} bytes where {length} belong")
        base = index * self._layout.size
        self._memory[base + part.start : base + part.stop] = data
        end: int = at + length
        return end
