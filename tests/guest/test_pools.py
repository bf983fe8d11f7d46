"""Whether free blocks in pages that are shared are taken, so that whoever is forked does not write there."""

from __future__ import annotations

import subprocess
import sys

_PROGRAM = """
import sys
import numpy
from agentenv.guest.pools import POOL_BYTES, fill_pools

def pools(objects):
    return {id(one) // POOL_BYTES for one in objects}

source = memoryview(bytes(range(256)) * 2)
sizes = [48, 96, 240, 512]
kept = {size: [bytes(source[: size - 33]) for _ in range(2000)] for size in sizes}
for size in sizes:
    del kept[size][::2]
if "fill" in sys.argv:
    taken = fill_pools()
    assert 0 < taken < 16 << 20, taken
print(sum(bool(pools(kept[size]) & pools([bytes(source[: size - 33]) for _ in range(40)])) for size in sizes))
"""


def _shared_sizes(*arguments: str) -> int:
    run = [sys.executable, "-c", _PROGRAM, *arguments]
    return int(subprocess.run(run, check=True, capture_output=True, text=True, timeout=60).stdout)


def test_what_is_new_is_not_among_what_was_there() -> None:
    assert _shared_sizes() == 4
    assert _shared_sizes("fill") == 0
