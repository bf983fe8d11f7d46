"""What every test needs: a quiet, bounded process that carries nothing over from the shell it was started in."""

from __future__ import annotations

import os

# Set before numpy is imported by anything: a process with BLAS threads cannot be forked safely, and some tests fork.
for name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[name] = "1"
# No test opens a window or plays a sound.
os.environ.setdefault("SDL_VIDEODRIVER", "dummy")
os.environ.setdefault("SDL_AUDIODRIVER", "dummy")
os.environ["PYGAME_HIDE_SUPPORT_PROMPT"] = "1"

from hypothesis import settings  # noqa: E402 (after the variables above)

# The time of one example depends on who else uses the machine; pytest-timeout bounds the whole test.
settings.register_profile("agentenv", deadline=None, print_blob=True)
settings.load_profile("agentenv")
