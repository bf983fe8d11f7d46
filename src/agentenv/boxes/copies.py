"""Where a copy of a machine lies between being written and being brought back.

Machines that were brought back hold the memory they came from, wherever its name is gone: so nothing need stay. What a
killed process leaves is found by its name, which carries that process.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from agentenv.sandbox.runtimes._runid import new_run_id
from agentenv.sandbox.runtimes._vm.homes import make_homes, remove_homes


@contextlib.contextmanager
def copying_ground() -> Iterator[Path]:
    """An empty directory that is gone after the block."""
    directory = make_homes(new_run_id())
    try:
        yield directory
    finally:
        remove_homes(directory)
