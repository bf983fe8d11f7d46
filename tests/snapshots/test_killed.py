"""Killed at any moment: a snapshot is there as a whole or not at all, and what was half done goes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from snapshots import killed


@pytest.mark.parametrize("action", ["add", "full", "replace", "open", "remove", "gc"])
def test_killed_at_every_step(fast_path: Path, action: str) -> None:
    tests = Path(killed.__file__).resolve().parents[1]
    done = subprocess.run(
        [sys.executable, "-m", "snapshots.killed", action, str(fast_path)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(tests), *filter(None, sys.path)])},
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert int(done.stdout) > 10
