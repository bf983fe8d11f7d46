"""What was asked of every environment and what came back, as far back as one may have to be brought back.

Steps of all environments together are kept in blocks of arrays, one row a step: noting one costs two copies however
many environments there are. Each block is four times as long as the one before it, as long as nothing but steps is
asked, so that short episodes need little and long ones few. Everything else (resets, calls, steps with variable-size
actions) is kept as it was sent. An outcome is the three words of a slot that tell one answer from another
(``wire.slot.OUTCOME``).

A position is the number of entries before it; the entry asked for and not yet answered is the pending one. Nothing here
knows sandboxes or decides anything.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from agentenv.wire.slot import OUTCOME_WORDS, Op

_BLOCK_BYTES = 1 << 19
_LEAST_STEPS, _MOST_STEPS = 16, 1024

Segment = list[Any]
"""[op, count, bytes], as ``Op.REPLAY`` takes it."""


@dataclass(slots=True)
class _Steps:
    """Consecutive steps of all environments: ``used`` rows of actions and outcomes, the first at position ``first``."""

    first: int
    actions: NDArray[np.uint8]
    outcomes: NDArray[np.uint64]
    used: int = 0

    @property
    def end(self) -> int:
        return self.first + self.used

    @property
    def nbytes(self) -> int:
        return self.actions.nbytes + self.outcomes.nbytes


@dataclass(slots=True)
class _Request:
    """One request to some environments (None: to all), with a payload for each."""

    first: int
    op: Op
    members: tuple[int, ...] | None
    payloads: tuple[bytes, ...]
    actions: NDArray[np.uint8] | None
    outcomes: NDArray[np.uint64]
    used: int = 0

    @property
    def end(self) -> int:
        return self.first + self.used

    @property
    def nbytes(self) -> int:
        actions = 0 if self.actions is None else self.actions.nbytes
        return 64 + self.outcomes.nbytes + actions + sum(map(len, self.payloads))


@dataclass(frozen=True, slots=True)
class Past:
    """What one environment was asked since a position.

    Attributes:
        segments: As ``Op.REPLAY`` takes them.
        outcomes: What came back, uint64 of shape (k, OUTCOME_WORDS).
        binding: bool of shape (k,): whether the outcome must come again. What a call returned need not.
        positions: int64 of shape (k,): where in the journal each stands.
    """

    segments: list[Segment]
    outcomes: NDArray[np.uint64]
    binding: NDArray[np.bool_]
    positions: NDArray[np.int64]

    def singly(self) -> list[Segment]:
        """The segments, one for each request."""
        found: list[Segment] = []
        for op, count, data in self.segments:
            size = len(data) // count
            found += [[op, 1, data[number * size : (number + 1) * size]] for number in range(count)]
        return found


class Journal:
    """The history of all environments of a fleet.

    Attributes:
        position: Number of entries that were answered.
        start: The first position whose entries are still kept.
        nbytes: Bytes kept, about.
        block_bytes: Most that are added at once for a step.
    """

    def __init__(self, count: int, action_bytes: int) -> None:
        """For ``count`` environments whose actions take so many bytes each."""
        self._count, self._size = count, action_bytes
        row = max(1, count * (action_bytes + 8 * OUTCOME_WORDS))
        self._least_rows = _LEAST_STEPS
        self._most_rows = max(_LEAST_STEPS, min(_MOST_STEPS, _BLOCK_BYTES // row))
        self.block_bytes = self._most_rows * row
        self._blocks: deque[_Steps | _Request] = deque()
        self._steps: _Steps | None = None  # the block that takes the next step
        self._open: _Steps | _Request | None = None  # the block of the pending entry
        self.position = self.start = self.nbytes = 0

    def note_step(self, actions: NDArray[np.uint8]) -> None:
        """A step of all environments is about to be asked for: uint8 of shape (n, bytes of an action)."""
        block = self._steps
        if block is None or block.used == len(block.outcomes):
            rows = self._least_rows if block is None else min(4 * block.used, self._most_rows)
            block = _Steps(
                self.position,
                np.empty((rows, self._count, self._size), np.uint8),
                np.empty((rows, self._count, OUTCOME_WORDS), np.uint64),
            )
            self._append(block)
            self._steps = block
        block.actions[block.used] = actions
        self._open = block

    def note(
        self, op: Op, members: Sequence[int] | None, payloads: Sequence[bytes], actions: NDArray[np.uint8] | None = None
    ) -> None:
        """A request with payloads is about to be sent; a step has the fixed parts of all actions besides."""
        chosen = None if members is None else tuple(members)
        outcomes = np.empty((self._count if chosen is None else len(chosen), OUTCOME_WORDS), np.uint64)
        kept = None if actions is None else actions.copy()
        block = _Request(self.position, op, chosen, tuple(payloads), kept, outcomes)
        self._append(block)
        self._steps = None
        self._open = block

    def commit(self, outcomes: NDArray[np.uint64]) -> bool:
        """What was asked for is answered: uint64 of shape (n, OUTCOME_WORDS), of all; whether anything was pending."""
        block = self._open
        if block is None:
            return False
        if isinstance(block, _Steps):
            block.outcomes[block.used] = outcomes
        else:
            block.outcomes[...] = outcomes if block.members is None else outcomes[list(block.members)]
        block.used += 1
        self.position += 1
        self._open = None
        return True

    def reopen(self) -> None:
        """Make the last entry the pending one again: its answer was lost after all."""
        block = self._blocks[-1]
        block.used -= 1
        self.position -= 1
        self._open = block

    def inherit(self, other: Journal) -> None:
        """Begin with all that another of the same shape holds; from here on each goes on by itself."""
        self._blocks = deque(other._blocks)
        if self._blocks:  # the only one that is still written to
            self._blocks[-1] = replace(self._blocks[-1])
        self._steps = self._open = None
        self.position, self.start, self.nbytes = other.position, other.start, other.nbytes

    def drop(self) -> None:
        """Forget the pending entry."""
        block, self._open = self._open, None
        if block is not None and block.used == 0:  # the last one, and nothing else is in it
            self.nbytes -= self._blocks.pop().nbytes
            self._steps = None

    def action(self, index: int) -> NDArray[np.uint8] | None:
        """The fixed part of the action of environment ``index`` in the pending step; None if it is not a step."""
        block = self._open
        if block is None or block.actions is None:
            return None
        row: NDArray[np.uint8] = block.actions[block.used, index] if isinstance(block, _Steps) else block.actions[index]
        return row

    def since(self, index: int, position: int) -> Past:
        """What environment ``index`` was asked since ``position``.

        A step with a variable-size action has its payload after the fixed bytes.
        """
        segments: list[Segment] = []
        outcomes, binding = [np.empty((0, OUTCOME_WORDS), np.uint64)], [np.empty(0, np.bool_)]
        positions = [np.empty(0, np.int64)]
        for block in self._blocks:
            if block.end <= position or block.used == 0:
                continue
            if isinstance(block, _Steps):
                rows = slice(max(0, position - block.first), block.used)
                count, data, found = rows.stop - rows.start, block.actions[rows, index].tobytes(), block.outcomes
                segments.append([int(Op.STEP), count, data])
                outcomes.append(found[rows, index])
                first = block.first + rows.start
            elif (place := _place(block, index)) is not None:
                fixed = b"" if block.actions is None else block.actions[index].tobytes()
                segments.append([int(block.op), 1, fixed + block.payloads[place]])
                outcomes.append(block.outcomes[place][np.newaxis])
                first = block.first
            else:
                continue
            positions.append(np.arange(first, first + len(outcomes[-1]), dtype=np.int64))
            is_bound = isinstance(block, _Steps) or block.op in (Op.STEP, Op.RESET)
            binding.append(np.full(len(outcomes[-1]), is_bound))
        return Past(segments, np.concatenate(outcomes), np.concatenate(binding), np.concatenate(positions))

    def recent(self, index: int, count: int) -> list[dict[str, Any]]:
        """The last entries of environment ``index``, oldest first: ``op``, ``reward``, ``status``, and an ``action``.

        The action is the fixed part of a step's, uint8.
        """
        found: list[dict[str, Any]] = []
        for block in reversed(self._blocks):
            for row in reversed(range(block.used)):
                if len(found) == count:
                    return found[::-1]
                if isinstance(block, _Steps):
                    outcome, action = block.outcomes[row, index], block.actions[row, index].copy()
                    found.append({"op": "step", "action": action, **_readable(outcome)})
                elif (place := _place(block, index)) is not None:
                    entry = {"op": Op(block.op).name.lower(), **_readable(block.outcomes[place])}
                    if block.actions is not None:
                        entry["action"] = block.actions[index].copy()
                    found.append(entry)
        return found[::-1]

    def trim(self, position: int) -> None:
        """Forget what lies before ``position``, as far as whole blocks go."""
        while self._blocks and self._blocks[0].end <= position and self._blocks[0] is not self._open:
            block = self._blocks.popleft()
            self.nbytes -= block.nbytes
            if block is self._steps:
                self._steps = None
        self.start = self._blocks[0].first if self._blocks else self.position

    def _append(self, block: _Steps | _Request) -> None:
        self._blocks.append(block)
        self.nbytes += block.nbytes


def _place(block: _Request, index: int) -> int | None:
    if block.members is None:
        return index
    return block.members.index(index) if index in block.members else None


def _readable(outcome: NDArray[np.uint64]) -> dict[str, Any]:
    return {"reward": float(outcome[1:2].view(np.float64)[0]), "status": int(outcome[0])}
