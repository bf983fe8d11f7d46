"""Running something in the emulated machine that tools/kvmlab boots."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TRIES = 2
_LOST = 125
# QEMU 7.2 emulates SVM imperfectly: the kernel in the machine was seen to panic in an exception during KVM_RUN, that of
# a guest of it to have made no progress for so long that it said so, and one to run at an address that is none; and
# both processors to go on in guests that nothing interrupts any more.
_STALLED = re.compile(r"rcu: INFO: rcu_\w+ (self-)?detected stall|rcu: Stack dump where RCU GP kthread last ran")
# What no test of ours makes a kernel do: they ask it to panic, or end its init.
_ASTRAY = re.compile(r"Attempted to kill the idle task|Fatal exception|BUG: unable to handle|general protection fault,")


def run_in_lab(command: Sequence[str], limit_s: int, *, memory_mb: int = 4096) -> subprocess.CompletedProcess[str]:
    """What a command says in the machine; again, in another one, if it failed and the emulation is to blame for it.

    That is so where the machine's own kernel panicked or stood still, or where that of a guest of it stood still or
    faulted in its own code. What else fails is told.

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
        blamed = blame(done) if left else ""
        if not blamed:
            break
        said = f"{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
        warnings.warn(f"the emulated machine is run again: {blamed}\n{said}", stacklevel=2)
    return done


def blame(done: subprocess.CompletedProcess[str]) -> str:
    """What the emulation did wrong, where something failed; "" if nothing is known."""
    if done.returncode == _LOST and "Kernel panic" in done.stderr:
        return "its kernel panicked"
    if done.returncode == _LOST and "it stands still" in done.stderr:
        return "it stood still"
    if done.returncode and _STALLED.search(done.stdout + done.stderr):
        return "a guest's kernel stood still"
    if done.returncode and _ASTRAY.search(done.stdout + done.stderr):
        return "a guest's kernel faulted"
    return ""
