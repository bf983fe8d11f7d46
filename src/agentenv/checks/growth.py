"""How much memory grows with every step: an estimate with its uncertainty, and the verdict.

Memory is read at the ends of blocks of equal length. The increments of the blocks are averaged, with Student's
interval of 99 %: one large allocation in the middle makes the interval wide, a leak makes all increments alike.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from agentenv.checks.rows import Row, fail, ok, skip, warn
from agentenv.errors import counted

BLOCKS = 20
WARM_UP_BLOCKS = 5
_STUDENT_99 = 2.861  # two-sided, 19 degrees of freedom
_FAIL_BYTES = 1024.0
_WARN_BYTES = 64.0
_LEAST_BLOCK = 20


@dataclass(frozen=True, slots=True)
class Growth:
    """Bytes a step.

    Attributes:
        mean: The estimate.
        low, high: Between which it lies, with a confidence of 99 %.
    """

    mean: float
    low: float
    high: float


def estimate(readings: Sequence[int], block: int) -> Growth:
    """The growth from ``BLOCKS + 1`` readings, ``block`` steps apart.

    Raises:
        ValueError: Another number of readings.
    """
    if len(readings) != BLOCKS + 1:
        raise ValueError(f"expected {BLOCKS + 1} readings, got {len(readings)}")
    increments = [(after - before) / block for before, after in pairwise(readings)]
    mean = sum(increments) / BLOCKS
    variance = sum((increment - mean) ** 2 for increment in increments) / (BLOCKS - 1)
    width = _STUDENT_99 * math.sqrt(variance / BLOCKS)
    return Growth(mean, mean - width, mean + width)


def judge_memory(readings: Sequence[int], block: int, memory_mb: int) -> Row:
    """The row ``memory``, from the readings after the warm-up."""
    if len(readings) != BLOCKS + 1:
        return skip("memory", f"not judged: random play ended early, after {counted(len(readings), 'reading')}")
    if block < _LEAST_BLOCK:
        least = _LEAST_BLOCK * (BLOCKS + WARM_UP_BLOCKS)
        return skip("memory", f"not judged: fewer than {least} steps are too few to tell growth from noise")
    growth = estimate(readings, block)
    evidence = {
        "bytes_per_step": growth.mean,
        "low": growth.low,
        "high": growth.high,
        "steps": block * BLOCKS,
        "first_bytes": readings[0],
        "last_bytes": readings[-1],
    }
    size = f"{readings[-1] / 2**20:.0f} MB"
    text = f"{counted(round(growth.mean), 'byte')} a step ({growth.low:,.0f} to {growth.high:,.0f}), {size} in the end"
    if growth.low > _WARN_BYTES:
        steps = (memory_mb * 2**20 - readings[-1]) / growth.mean
        remedy = (
            f"find what is kept from step to step; at this rate memory_mb = {memory_mb} is reached after"
            f" {counted(round(max(steps, 0)), 'further step')}"
        )
        row = fail if growth.low > _FAIL_BYTES else warn
        return row("memory", f"grows by {text}", remedy, **evidence)
    return ok("memory", f"{size}, no growth to be told from noise" if growth.low <= 0 else text, **evidence)
