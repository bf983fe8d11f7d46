"""A number that tells one answer of an environment from another, cheap enough for every step.

It finds what differs by accident, not by intent: both sides of a comparison come from the same environment. Small areas
take CRC-32 (ISO 3309); large ones a multilinear hash modulo 2**64 with odd weights (Carter and Wegman, "Universal
classes of hash functions", 1979), one multiplication for eight bytes.
"""

from __future__ import annotations

from collections.abc import Callable
from zlib import crc32

import numpy as np

from agentenv.wire.views import Bytes

_SMALL = 2048
_SEED = 0x5EED


def make_digest(area: Bytes) -> Callable[[int], int]:
    """A function from a start value below 2**32 to the digest of the area as it is then, below 2**64.

    Args:
        area: uint8, one axis.
    """
    if area.size <= _SMALL:
        small = memoryview(area)  # type: ignore[arg-type]  # numpy arrays are buffers
        return lambda start: crc32(small, start)
    whole = area.size // 8 * 8
    words, rest = area[:whole].view(np.uint64), memoryview(area[whole:])  # type: ignore[arg-type]  # arrays are buffers
    weights = np.random.default_rng(_SEED).integers(0, 1 << 63, words.size, np.uint64) * np.uint64(2) + np.uint64(1)
    dot = np.dot
    return lambda start: int(dot(words, weights)) ^ crc32(rest, start)
