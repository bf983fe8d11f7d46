"""What one answer of an environment comes to, in a few bytes: enough to tell whether two are the same, and in what.

The digest covers the observation, the reward, how the episode stands and the info. Beside it stand a checksum for
each part of the observation and one for the info, so that a difference can be named. Nothing in them depends on the
host, the runtime, the order in which environments answer, or on Python's hash seed: sets are put in order, and the
addresses in the description of an object are taken out.
"""

from __future__ import annotations

import logging
import re
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any
from zlib import crc32

import numpy as np
from gymnasium.spaces import GraphInstance

from agentenv.errors import ProtocolError
from agentenv.wire.opaque import Opaque
from agentenv.wire.plan import SpaceLayout, name_path
from agentenv.wire.slot import Flag
from agentenv.wire.values import MAX_DEPTH, encode
from agentenv.wire.views import Bytes

logger = logging.getLogger("agentenv.fleet")

DIGEST_BYTES = 8
ENDS = int(Flag.TERMINATED | Flag.TRUNCATED)
"""The flags that are part of a digest."""
VARIABLE = "observation, its parts of variable size"
INFO = "info"

_HEAD = struct.Struct("<dH")
# Larger observations enter the digest by their CRC-32 alone: hashing 100 kB takes longer than many a step.
_WHOLE_BYTES = 4096
_MOST_PARTS = 8
_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")
_UNORDERED = (b'["s"', b'["z"', b" at 0x")


@dataclass(frozen=True, slots=True)
class StepDigest:
    """One answer.

    Attributes:
        digest: Eight bytes over everything.
        parts: CRC-32 of each part of the observation, as ``Digester.names`` lists them.
        info: CRC-32 of the info; 0 where it is empty.
        reward: The reward; 0 for a reset.
        flags: The flags of ``ENDS`` that were set.
    """

    digest: bytes
    parts: tuple[int, ...]
    info: int
    reward: float
    flags: int


class Digester:
    """Makes digests of the answers in one slot.

    Attributes:
        names: What the parts of the observation are called, such as ``observation['position']``.
    """

    def __init__(self, layout: SpaceLayout, block: Bytes) -> None:
        """View the slot.

        Args:
            layout: The plan of the observation space.
            block: uint8, the fixed part of the observation, ``layout.nbytes`` or more.
        """
        raw = memoryview(block)  # type: ignore[arg-type]  # numpy arrays are buffers
        self._block = raw[: layout.nbytes]
        self._leaves = [raw[leaf.offset : leaf.offset + leaf.nbytes] for leaf in layout.leaves]
        self._whole = layout.nbytes <= _WHOLE_BYTES
        names = [name_path(leaf.path, "observation") for leaf in layout.leaves]
        if layout.variable:
            names.append(VARIABLE)
        self._folded = len(names) > _MOST_PARTS
        self.names = ("observation",) if self._folded else tuple(names)

    def read(self, reward: float, flags: int, info: dict[str, Any], variable: Sequence[object] = ()) -> StepDigest:
        """The digest of the answer that lies in the slot now.

        Args:
            reward: Its reward; 0 for a reset.
            flags: Its flags; those that are not of ``ENDS`` are ignored.
            info: Its info.
            variable: The parts of the observation of variable size.

        Raises:
            ProtocolError: The info or a part of variable size cannot be put in order.
        """
        ends = flags & ENDS
        parts = tuple([crc32(leaf) for leaf in self._leaves])
        whole = blake2b(_HEAD.pack(reward, ends), digest_size=DIGEST_BYTES)
        whole.update(self._block if self._whole else struct.pack(f"<{len(parts)}I", *parts))
        if variable:
            described = _describe(list(variable))
            whole.update(described)
            parts = (*parts, crc32(described))
        told = 0
        if info:
            described = _describe(info)
            whole.update(described)
            told = crc32(described)
        if self._folded:
            parts = (crc32(struct.pack(f"<{len(parts)}I", *parts)),)
        return StepDigest(whole.digest(), parts, told, reward, ends)


def canonical(value: Any) -> bytes:
    """Plain data as bytes that are the same in every process, whatever the order of its sets.

    Whatever was decoded has such bytes: a set that is put in order takes a level more than may be sent.
    """
    found = encode(value, extra_levels=MAX_DEPTH)
    if not any(sign in found for sign in _UNORDERED):
        return found
    return encode(_ordered(value), extra_levels=MAX_DEPTH)


def _describe(value: Any) -> bytes:
    try:
        return canonical(value)
    except Exception as error:
        # Whoever sent it answers for it; what is behind it may be a fault of ours all the same.
        logger.debug("an answer cannot be put in order", exc_info=True)
        raise ProtocolError(f"an answer that cannot be put in order: {type(error).__name__}: {error}"[:500]) from error


def _ordered(value: Any) -> Any:
    if isinstance(value, set | frozenset):
        return ("set", sorted(encode(_ordered(item)) for item in value))
    if isinstance(value, Opaque):
        return Opaque(value.type_name, _ADDRESS.sub("", value.text))
    if isinstance(value, dict):
        keys = [_ordered(key) for key in value]
        items = [_ordered(item) for item in value.values()]
        # Without their addresses two keys may be the same.
        return dict(zip(keys, items, strict=True)) if keys == list(value) else ("dict", keys, items)
    if isinstance(value, np.ndarray) and value.dtype == object:
        return ("array", value.shape, [_ordered(item) for item in value.ravel().tolist()])
    if isinstance(value, GraphInstance):
        return GraphInstance(*map(_ordered, value))
    if isinstance(value, list):
        return [_ordered(item) for item in value]
    if type(value) is tuple:
        return tuple(_ordered(item) for item in value)
    return value
