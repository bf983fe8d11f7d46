"""Having environments do again what they did before, and comparing what comes out.

One that is alone in its process does thousands of requests in one go, as many as have outcomes that fit into any
answer. Those that share a process share its global random generators too, so they do it one request at a time, in the
order in which it was done.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from agentenv.channel.contract import PeerLost
from agentenv.errors import SandboxError, counted
from agentenv.fleet.journal import Past, Segment
from agentenv.wire.slot import OUTCOME_WORDS, Op
from agentenv.wire.values import encode

if TYPE_CHECKING:
    from agentenv.fleet.fleet import Fleet

MOST_AT_ONCE = 32768
"""Requests that are repeated in one go: their outcomes take 768 KiB, and the smallest limit of an answer is 1 MiB."""


def repeat(
    fleet: Fleet, pasts: Mapping[int, Past], timeout_s: float
) -> tuple[dict[int, bytes | SandboxError | Any], dict[int, PeerLost]]:
    """Have environments do again what they did.

    Args:
        fleet: The environments, each where its past begins.
        pasts: For each position, what to do.
        timeout_s: Until when they must be done; those that share a process have it for each request.

    Returns:
        For each position the outcomes, as bytes, or why there are none; and the groups that were lost over it.
    """
    alone = [index for index in pasts if len(fleet.groups[fleet.channel.group_of(index)]) == 1]
    answers, losses = _repeat_alone(fleet, {index: pasts[index] for index in alone}, timeout_s)
    together = {index: past for index, past in pasts.items() if index not in alone}
    turns: dict[int, list[tuple[int, Any]]] = {}
    for index, past in together.items():
        for position, segment in zip(past.positions.tolist(), past.singly(), strict=True):
            turns.setdefault(position, []).append((index, segment))
    parts: dict[int, list[Any]] = {index: [] for index in together}
    for position in sorted(turns):
        here = [(i, segment) for i, segment in sorted(turns[position]) if fleet.channel.group_of(i) not in losses]
        members = [index for index, _ in here]
        losses |= fleet.ask(Op.REPLAY, members, [encode([segment]) for _, segment in here], timeout_s)
        found, lost = collect(fleet, [index for index in members if fleet.channel.group_of(index) not in losses])
        losses |= lost
        for index, answer in found.items():
            parts[index].append(answer)
    return answers | {index: _joined(found) for index, found in parts.items()}, losses


def in_pieces(segments: Sequence[Segment], most: int) -> Iterator[list[Segment]]:
    """The segments in order, so many requests at a time at most."""
    piece: list[Segment] = []
    room = most
    for op, count, data in segments:
        size = len(data) // count
        first = 0
        while first < count:
            taken = min(count - first, room)
            piece.append([op, taken, data[first * size : (first + taken) * size]])
            first, room = first + taken, room - taken
            if not room:
                yield piece
                piece, room = [], most
    if piece:
        yield piece


def difference(expected: NDArray[np.uint64], binding: NDArray[np.bool_], answered: Any) -> str:
    """Where repeated outcomes differ from those that were handed out; "" when nowhere.

    Args:
        expected: uint64 of shape (k, OUTCOME_WORDS).
        binding: bool of shape (k,): which of them must come again.
        answered: What the environment gave; hostile.
    """
    if not isinstance(answered, bytes) or len(answered) != expected.nbytes:
        return "what it did, done again, gave no comparable outcome"
    found = np.frombuffer(answered, np.uint64).reshape(-1, OUTCOME_WORDS)
    wrong = np.flatnonzero((found != expected).any(axis=1) & binding)
    if not len(wrong):
        return ""
    place = int(wrong[0])
    names = np.array(["flags", "reward", "observation or info"])[found[place] != expected[place]]
    return (
        f"it is not deterministic: of {counted(len(expected), 'request')} done again, number {place + 1} gave another"
        f" {', '.join(names)}"
    )


def _repeat_alone(
    fleet: Fleet, pasts: Mapping[int, Past], timeout_s: float
) -> tuple[dict[int, Any], dict[int, PeerLost]]:
    ends = time.monotonic() + timeout_s
    pieces = {index: in_pieces(past.segments, MOST_AT_ONCE) for index, past in pasts.items()}
    parts: dict[int, list[Any]] = {index: [] for index in pasts}
    losses: dict[int, PeerLost] = {}
    while pieces:
        due = {index: piece for index, rest in pieces.items() if (piece := next(rest, None)) is not None}
        left_s = max(0.0, ends - time.monotonic())
        losses |= fleet.ask(Op.REPLAY, list(due), [encode(piece) for piece in due.values()], left_s)
        found, lost = collect(fleet, [index for index in due if fleet.channel.group_of(index) not in losses])
        losses |= lost
        for index, answer in found.items():
            parts[index].append(answer)
        pieces = {index: pieces[index] for index, answer in found.items() if isinstance(answer, bytes)}
    going = {index: found for index, found in parts.items() if fleet.channel.group_of(index) not in losses}
    return {index: _joined(found) for index, found in going.items()}, losses


def _joined(parts: list[Any]) -> Any:
    """All outcomes, or the first answer that is none."""
    bad = next((part for part in parts if not isinstance(part, bytes)), None)
    return b"".join(parts) if bad is None else bad


def collect(fleet: Fleet, members: Sequence[int]) -> tuple[dict[int, Any], dict[int, PeerLost]]:
    """Read the answers of all, whatever some of them are: what is left unread would be taken for a later one's.

    Args:
        fleet: The environments, which were asked.
        members: Those to read.

    Returns:
        For each position the value, or the error there is instead; and the groups that were lost meanwhile.
    """
    answers: dict[int, Any] = {}
    losses: dict[int, PeerLost] = {}
    for index in members:
        try:
            answers[index] = fleet.value(index)
        except PeerLost as lost:
            losses[lost.group] = lost
        except SandboxError as error:
            answers[index] = error
    return answers, losses
