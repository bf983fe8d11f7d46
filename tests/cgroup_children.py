"""What the tests of control groups share: whether this machine has any, and children that wait to be put in one."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from agentenv.sandbox.runtimes._cgroup import ROOT, detect

SUPPORT = detect()
MIB = 1024 * 1024


def needs(*controllers: str) -> pytest.MarkDecorator:
    missing = set(controllers) - SUPPORT.controllers
    return pytest.mark.skipif(
        SUPPORT.version == "none" or bool(missing), reason=f"{SUPPORT.reason or missing}; {SUPPORT.remedy}"
    )


@contextmanager
def child(code: str) -> Iterator[subprocess.Popen[str]]:
    """A Python process that waits for a line before it runs the code."""
    process = subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", "import sys; sys.stdin.readline()\n" + code],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        # Not communicate(): a descendant that outlived its group would keep the output open for ever.
        for stream in (process.stdin, process.stdout):
            if stream is not None:
                stream.close()


def go(process: subprocess.Popen[str]) -> str:
    """Lets the child run its code and returns what it printed."""
    return process.communicate("\n", timeout=60)[0]


def start(process: subprocess.Popen[str]) -> None:
    """Lets the child run its code, and leaves its input open."""
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.flush()


def is_dead(pid: int) -> bool:
    """Whether a process runs no more, waited for or not."""
    state = Path(f"/proc/{pid}/stat")
    return not state.exists() or state.read_text().rpartition(")")[2].split()[0] in "ZX"


def ours() -> set[str]:
    """Every group of ours anywhere on this machine; others' runs come and go meanwhile."""
    found = set()
    for directory, names, _ in os.walk(ROOT):  # passes over what is gone when it gets there
        found |= {f"{directory}/{name}" for name in names if name.startswith("agentenv.")}
        if len(Path(directory).relative_to(ROOT).parts) >= 4:
            names.clear()
    return found
