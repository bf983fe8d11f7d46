"""What every test needs: a quiet, bounded process that carries nothing over from the shell it was started in."""

from __future__ import annotations

import fcntl
import os
import sys
from collections.abc import Iterator
from pathlib import Path

# Set before numpy is imported by anything: a process with BLAS threads cannot be forked safely, and some tests fork.
for name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[name] = "1"
# No test opens a window or plays a sound.
os.environ.setdefault("SDL_VIDEODRIVER", "dummy")
os.environ.setdefault("SDL_AUDIODRIVER", "dummy")
os.environ["PYGAME_HIDE_SUPPORT_PROMPT"] = "1"

import pytest  # noqa: E402 (after the variables above)
from hypothesis import settings  # noqa: E402 (likewise)

# The time of one example depends on who else uses the machine; pytest-timeout bounds the whole test.
settings.register_profile("agentenv", deadline=None, print_blob=True)
settings.load_profile("agentenv")


_GATE, _LOCK = Path(__file__), Path(__file__).parent


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Keep the other workers away from a test that is marked "alone", and it from theirs.

    Around the timer of pytest-timeout: waiting for one another is nobody's fault.
    """
    if "PYTEST_XDIST_WORKER" not in os.environ:
        return (yield)
    kind = fcntl.LOCK_EX if item.get_closest_marker("alone") else fcntl.LOCK_SH
    gate, lock = os.open(_GATE, os.O_RDONLY), os.open(_LOCK, os.O_RDONLY)
    try:
        # Whoever waits to be alone holds the gate, or the others would take turns before it for ever.
        fcntl.flock(gate, fcntl.LOCK_EX)
        fcntl.flock(lock, kind)
        fcntl.flock(gate, fcntl.LOCK_UN)
        return (yield)
    finally:
        os.close(gate)
        os.close(lock)


@pytest.fixture(autouse=True)
def _import_path() -> Iterator[None]:
    """What a test adds to ``sys.path`` ends with it: sandboxes are shown all of that, and run as who may read it."""
    before = [*sys.path]
    yield
    sys.path[:] = before
