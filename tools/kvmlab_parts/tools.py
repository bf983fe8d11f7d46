"""Programs of this machine that are called, and how to get the ones that are missing."""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

from .errors import LabError

PACKAGES = {
    "qemu-system-x86_64": "qemu-system-x86",
    "busybox": "busybox-static",
    "depmod": "kmod",
    "apt-get": "apt",
    "apt-cache": "apt",
    "dpkg-deb": "dpkg",
}
"""The Debian package of each program."""

_SET_PDEATHSIG = 1  # prctl(2)


def find(*programs: str) -> list[str]:
    """The paths of these programs.

    Raises:
        LabError: Some are missing; names all of them and the command that installs them.
    """
    # Users' PATH often lacks the directories in which depmod is.
    path = os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/local/sbin", "/usr/sbin", "/sbin"])
    found = {program: shutil.which(program, path=path) for program in programs}
    missing = [program for program, where in found.items() if where is None]
    if missing:
        packages = " ".join(sorted({PACKAGES[program] for program in missing}))
        raise LabError(
            f"expected {', '.join(programs)} on PATH, {', '.join(missing)} not found there; install with"
            f"\n  apt-get install --no-install-recommends {packages}"
        )
    return [where for where in found.values() if where is not None]


def dies_with_us() -> Callable[[], None]:
    """For ``preexec_fn``: the child is killed when the thread that starts it ends, by whatever means."""
    prctl = ctypes.CDLL(None).prctl  # loaded here: after a fork as little as possible should happen
    us = os.getpid()

    def prepare() -> None:
        prctl(_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != us:  # we were killed before that
            os._exit(1)

    return prepare


def call(command: Sequence[str | Path], what: str, directory: Path | None = None) -> str:
    """What a program writes to its standard output.

    Args:
        command: The program and its arguments.
        what: For the message where it fails, as in "could not download the kernel".
        directory: Where it is started.

    Raises:
        LabError: It failed; with the end of its output.
    """
    done = subprocess.run(
        command,
        cwd=directory,
        env={**os.environ, "LC_ALL": "C"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        encoding="utf-8",
        errors="replace",
        preexec_fn=dies_with_us(),
    )
    if done.returncode:
        shown = " ".join(str(part) for part in command)
        raise LabError(f"{what}: {shown}\n  exited with {done.returncode}:", done.stdout[-2000:] + done.stderr)
    return done.stdout
