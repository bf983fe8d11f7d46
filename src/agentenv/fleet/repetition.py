"""Having environments do again what they did before, and comparing what comes out.

One that is alone in its process does everything in one go. Those that share a process share its global random
generators too, so they do it one request at a time, in the order in which it was done.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from agentenv.channel.contract import PeerLost
from agentenv.errors import SandboxError, counted
from agentenv.fleet.journal import Past
from agentenv.wire.slot import OUTCOME_WORDS, Op
from agentenv.wire.values import encode

if TYPE_CHECKING:
    from agentenv.fleet.fleet import Fleet


def repeat(
    fleet: Fleet, pasts: Mapping[int, Past], timeout_s: float
) -> tuple[dict[int, bytes | SandboxError | Any], dict[int, PeerLost]]:
    """Have environments do again what they did.

    Args:
        fleet: The environments, each where its past begins.
        pasts: For each position, what to do.
        timeout_s: Until when they must be done.

    Returns:
        For each position the outcomes, as bytes, or why there are none; and the groups that were lost over it.
    """
    alone = [index for index in pasts if len(fleet.groups[fleet.channel.group_of(index)]) == 1]
    losses = fleet.ask(Op.REPLAY, alone, [encode(pasts[index].segments) for index in alone], timeout_s)
    answers, lost = _collect(fleet, [index for index in alone if fleet.channel.group_of(index) not in losses])
    losses |= lost
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
        found, lost = _collect(fleet, [index for index in members if fleet.channel.group_of(index) not in losses])
        losses |= lost
        for index, answer in found.items():
            parts[index].append(answer)
    for index, found_parts in parts.items():
        bad = next((part for part in found_parts if not isinstance(part, bytes)), None)
        answers[index] = b"".join(found_parts) if bad is None else bad
    return answers, losses


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


def _collect(fleet: Fleet, members: list[int]) -> tuple[dict[int, Any], dict[int, PeerLost]]:
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
