"""What one rung of the ladder is that environments are brought back by; see ``agentenv.fleet.bases``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from agentenv.sandbox.contract import ParkedCopy
from agentenv.sandbox.workbench import Kept


@dataclass(frozen=True, slots=True)
class State:
    """A saved state of one environment.

    Attributes:
        position: Where in the journal it was made.
        how: "state" or "pickle", as the guest calls it.
        data: What the guest gave; opaque.
        seed: Of random streams that take the place of the state's; None keeps those.
    """

    position: int
    how: str
    data: bytes
    seed: int | None = None


@dataclass(frozen=True, slots=True)
class Copy:
    """A parked copy of one sandbox's process, or a snapshot of all of it.

    Attributes:
        position: Where in the journal it was made, or gone back to.
        parked: What was kept.
        seed: Of random streams that take the place of its own; None keeps those.
        borrowed: It is part of a snapshot, or the base of what was forked; its owner ends it.
    """

    position: int
    parked: ParkedCopy | Kept
    seed: int | None = None
    borrowed: bool = False


def copy_refusal(value: Any) -> str | None:
    """Why an environment did not copy itself, or None when it did."""
    match value:
        case ["ok", float()]:
            return None
        case ["no", str() as reason]:
            return reason
        case _:
            return "it answered something that is not the protocol"
