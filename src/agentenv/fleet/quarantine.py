"""Environments that are out for good, and the answers the host gives in their place."""

from __future__ import annotations

import copy
import weakref
from collections.abc import Sequence
from typing import TYPE_CHECKING

from agentenv.errors import Cause, CauseKind, Owner, SandboxDied
from agentenv.fleet.smallest import smallest
from agentenv.wire.slot import Flag, Op
from agentenv.wire.values import encode

if TYPE_CHECKING:
    from agentenv.fleet.fleet import Fleet


class Quarantined:
    """Those of one fleet.

    Attributes:
        reasons: For each, why.
    """

    def __init__(self, fleet: Fleet) -> None:
        """Nobody is out yet."""
        self._fleet: Fleet = weakref.proxy(fleet)
        self._leaves: dict[int, list[object]] = {}
        self.reasons: dict[int, str] = {}

    def retire(self, number: int, reason: str) -> None:
        """Take the environments of a sandbox out; what was asked last they answer already."""
        fleet, group = self._fleet, self._fleet.groups[number]
        fleet.context.watch.remove(fleet.sandboxes[number])
        fleet.sandboxes[number].destroy()
        fleet.channel.retire(number)
        self.reasons.update(dict.fromkeys(group, reason))
        space = copy.deepcopy(fleet.single_observation_space)
        space.seed(0)
        observation = smallest(space)
        self._leaves.update({index: fleet.put_observation(index, observation) for index in group})
        self.answer(fleet.current[0], fleet.current[1])

    def answer(self, op: Op, members: Sequence[int] | None) -> None:
        """Answer in their place: a step is truncated with reward 0, anything else is done.

        In the mode SameStep such a step has a last observation and info as well, as every other that ends an episode.
        """
        fleet, channel = self._fleet, self._fleet.channel
        for index, reason in self.reasons.items():
            if members is not None and index not in members:
                continue
            info = {"agentenv": {"quarantined": True, "reason": reason}}
            flags = int(Flag.TRUNCATED) if op is Op.STEP else 0
            if op is Op.STEP and fleet.autoreset == "SameStep":
                fleet.final_bytes[index] = fleet.observation_bytes[index]
                final = encode([info, self._leaves[index], None])
                record = encode([info, self._leaves[index], final])
                channel.put_answer(index, flags | Flag.RECORD | Flag.FINAL, record)
            elif fleet.observation_layout.variable:
                channel.put_answer(index, flags | Flag.RECORD, encode([info, self._leaves[index], None]))
            else:
                channel.put_answer(index, flags | Flag.INFO, encode(info))

    def refuse(self, members: Sequence[int]) -> None:
        """Raise where one of them is asked for more than steps.

        Raises:
            SandboxDied: It is quarantined.
        """
        for index in members:
            if index in self.reasons:
                cause = Cause(CauseKind.CLOSED, Owner.ENVIRONMENT, f"is quarantined: {self.reasons[index]}")
                raise SandboxDied(cause.detail, env_id=self._fleet.members[index].id, cause=cause, index=index)
