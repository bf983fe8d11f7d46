"""What came of trying something on this host, kept in the cache until what it depends on changes.

A success is believed as long as its key is the same, a failure for an hour: it may have been load.
"""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

WORKS = "works"
_DOUBT_S = 3600.0


class Trial:
    """The memory of one kind of trial."""

    def __init__(self, memory: Path, key: Sequence[str]) -> None:
        """Look into a file.

        Args:
            memory: The file.
            key: All that the outcome depends on.
        """
        self._memory = memory
        self._key = list(key)

    def recall(self) -> str | None:
        """The outcome, or None where it has to be tried (again)."""
        try:
            found = json.loads(self._memory.read_text(encoding="utf-8"))
            if found["key"] != self._key:
                return None
            outcome = str(found["outcome"])
            return outcome if outcome == WORKS or 0 <= time.time() - found["time"] < _DOUBT_S else None
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            return None

    def keep(self, outcome: str) -> None:
        """Keep it; a cache that cannot be written is no failure."""
        with contextlib.suppress(OSError):
            self._memory.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.NamedTemporaryFile("w", dir=self._memory.parent, prefix=".trial-", delete=False) as file:
                json.dump({"key": self._key, "outcome": outcome, "time": time.time()}, file)
            os.replace(file.name, self._memory)


def boot_id() -> str:
    """What tells one boot of this host from another; "" where there is nothing."""
    with contextlib.suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    return ""


def identity(path: str | Path) -> str:
    """What tells a file from what may be put in its place.

    Raises:
        OSError: There is none.
    """
    real = os.path.realpath(path)
    found = os.stat(real)
    return f"{real} {found.st_ino} {found.st_size} {found.st_mtime_ns}"
