"""Where everything lies in one environment's shared memory, and the numbers both sides agree on.

The host plans the layout from spaces it has rebuilt and checked itself, and tells the guest the offsets; what
the guest says about lengths is compared with these and nothing else. A slot is a whole number of pages so that
slot *i* can be mapped at ``base + i * size`` and a batch be read as one strided array. No I/O here.

    word  written by  meaning
    0     host        TICKET: number of the request; where a group has several slots, those whose ticket equals the
                      group's are served
    8     host        OP: what is asked (Op)
    16    host        IN_LENGTH: bytes of the request's payload
    24    host        GROUP_TICKET (first slot of a sandbox only): another number for every wake-up
    32    host        QUIET (first slot only): who looks is to ring no bell for an answer
    64    guest       GROUP_DONE (first slot only): the last group ticket that was served completely
    72    guest       STATUS of the answer (Flag); 0 means a plain step in the middle of an episode, without info
    80    guest       REWARD, float64
    88    guest       DIGEST of the observation and the payload (``wire.digest``)
    96    guest       OUT_LENGTH: bytes of the answer's payload
    104   guest       AWAKE (first slot only): it looks, and no bell need be rung for a request
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from enum import IntEnum, IntFlag
from typing import Any

PAGE = 4096
_ALIGN = 64

TICKET, OP, IN_LENGTH, GROUP_TICKET, QUIET = 0, 8, 16, 24, 32
GROUP_DONE, STATUS, REWARD, DIGEST, OUT_LENGTH, AWAKE = 64, 72, 80, 88, 96, 104
OUTCOME = STATUS
"""Where the three words begin that tell one answer from another: status, reward, digest."""
OUTCOME_WORDS = 3
HEADER = 128


class Op(IntEnum):
    """What the host asks of an environment."""

    STEP = 1
    RESET = 2
    RENDER = 3
    CALL = 4
    SET = 5
    CLOSE = 6
    EAGER = 7
    """Be scheduled as usual from now on."""
    PATIENT = 8
    """Be scheduled as a batch task from now on."""
    LOOK = 9
    """Say whether there is an attribute of a name: ["none"], ["callable"] or ["value", its value]."""
    CAPTURE = 10
    """Give the environment's state: ["state" or "pickle", bytes, seconds it took] or ["no", why not].

    The request is True to try out which way holds it all, the way that another of its kind has tried, or False for the
    way that it has tried itself.
    """
    LOAD = 11
    """Take on a state given before: [how, bytes, seed of new random streams or None]."""
    REPLAY = 12
    """Do again what was done before: a list of [op, count, bytes], the actions of ``count`` steps or one request's
    payload. The answer is bytes: ``OUTCOME_WORDS`` words for each, as they were in the slot."""
    COPY = 13
    """Fork as the next message on the control socket says: ["ok", seconds] or ["no", why not]."""
    CUT = 14
    """Begin anew with a seed and answer as if a step had been truncated: [seed, info]."""
    STAND_BY = 15
    """Be scheduled as a batch task, and look for requests for a while before sleeping, giving way to others."""


PACES = (Op.EAGER, Op.PATIENT, Op.STAND_BY)
"""The requests that say how to wait and be scheduled; they concern the process, not its environment."""


class Flag(IntFlag):
    """What an answer carries besides the fixed fields."""

    INFO = 1
    """The payload is the info dict alone."""
    RECORD = 2
    """The payload is a list: [info, variable leaves of the observation, None or the final step's own payload].

    That one, encoded before the reset, is [info, variable leaves, None or [the observation as it was given]].
    """
    FINAL = 4
    """The episode ended in this step and the environment was reset: the final observation is in its own area."""
    VALUE = 8
    """The payload is the result of RENDER or CALL."""
    ERROR = 16
    """The environment raised; the payload is [type name, message, traceback]."""
    SPILLED = 32
    """The payload did not fit and follows on the control socket."""
    TERMINATED = 256
    TRUNCATED = 512


PAYLOAD = int(Flag.INFO | Flag.RECORD | Flag.VALUE | Flag.ERROR)
"""The flags of which any says that there is a payload."""


def _round(n: int, to: int) -> int:
    return (n + to - 1) // to * to


@dataclass(frozen=True)
class SlotLayout:
    """Offsets and sizes, in bytes, of the areas of one slot.

    Attributes:
        action: Offset of the action's fixed leaves.
        observation: Offset of the observation's fixed leaves.
        final: Offset of the final observation's fixed leaves (equal to ``observation`` where there is none).
        inbox: Offset of the request's payload; ``inbox_size`` bytes.
        outbox: Offset of the answer's payload; ``outbox_size`` bytes.
        size: The whole slot, a multiple of the page.
    """

    action: int
    observation: int
    final: int
    inbox: int
    inbox_size: int
    outbox: int
    outbox_size: int
    size: int

    def to_json(self) -> dict[str, Any]:
        """The layout as plain numbers, for the attach message."""
        return asdict(self)


def plan_slot(
    action_bytes: int, observation_bytes: int, *, final: bool, variable: bool, outbox_bytes: int = 2048
) -> SlotLayout:
    """Lay out one slot.

    Args:
        action_bytes: Bytes of the action's fixed leaves.
        observation_bytes: Bytes of the observation's fixed leaves.
        final: Whether an answer may carry a final observation (same-step autoreset).
        variable: Whether spaces hold variable-size leaves, which travel in the payload areas.
        outbox_bytes: Least room for an answer's payload; larger ones spill to the control socket.
    """
    inbox_size = 2048 if variable else 512
    action = HEADER
    observation = _round(action + action_bytes, _ALIGN)
    final_at = _round(observation + observation_bytes, _ALIGN) if final else observation
    inbox = _round(final_at + observation_bytes, _ALIGN)
    outbox = _round(inbox + inbox_size, _ALIGN)
    size = _round(outbox + max(outbox_bytes, 16384 if variable else 0), PAGE)
    return SlotLayout(action, observation, final_at, inbox, inbox_size, outbox, size - outbox, size)
