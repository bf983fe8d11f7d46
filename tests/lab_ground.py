"""Running something in the emulated machine that tools/kvmlab boots."""

from __future__ import annotations

import os
import subprocess
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TRIES = 2
"""QEMU 7.2 emulates SVM imperfectly: the kernel in the machine was seen to panic in an exception during KVM_RUN."""
_LOST = 125


def run_in_lab(command: Sequence[str], limit_s: int, *, memory_mb: int = 4096) -> subprocess.CompletedProcess[str]:
    """What a command says in the machine; again, in another one, if the machine's own kernel panicked.

    Nothing that runs in the machine may make its kernel panic, whatever it does; what fails there without is told.

    Args:
        command: Program and arguments.
        limit_s: What one try may take, boot included; seconds.
        memory_mb: The machine's memory, MiB.
    """
    cache = [f"--env=AGENTENV_CACHE={os.environ['AGENTENV_CACHE']}"] if "AGENTENV_CACHE" in os.environ else []
    options = [f"--timeout={limit_s}", f"--memory={memory_mb}", *cache]
    for left in reversed(range(TRIES)):
        done = subprocess.run(
            [sys.executable, "tools/kvmlab", "run", *options, "--", *command],
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=limit_s + 30,
            check=False,
        )
        if done.returncode != _LOST or "Kernel panic" not in done.stderr or not left:
            break
        warnings.warn(f"the emulated machine is run again: its kernel panicked\n{done.stderr[-3000:]}", stacklevel=2)
    return done
