"""The directories of machines: one for each run, which whoever outlives the run removes."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

from agentenv.disk import Remedy
from agentenv.sandbox.runtimes._runid import is_run_id, run_is_alive
from agentenv.sandbox.runtimes._vm.files import room_in

REMEDY = Remedy("free some of the disk", "choose another directory for what is temporary with TMPDIR=DIR")
_PREFIX = "agentenv."


def make_homes(run_id: str) -> Path:
    """The directory of a run's machines.

    Raises:
        ResourceLimit: There is no room, or it may not be made.
    """
    homes = Path(tempfile.gettempdir()) / f"{_PREFIX}{run_id}"
    with room_in(homes.parent, "keep the machines' own files", REMEDY):
        homes.mkdir(mode=0o700)
    return homes


def memory_of_files_mb(directory: Path) -> int:
    """How much of a monitor's memory its files in a directory may be, MiB: 0 where they are on a disk.

    What is written to a file system in memory is charged to the control group of whoever writes it, and stays so: a
    machine that fills its drive there would have its monitor killed. How much that may be is the file system's to say.
    """
    device = os.stat(directory).st_dev
    number = f"{os.major(device)}:{os.minor(device)}"
    with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as mounts:
        for line in mounts:
            place, _, kind = line.partition(" - ")
            if place.split()[2] == number and kind.split()[0] == "tmpfs":
                found = os.statvfs(directory)
                return found.f_blocks * found.f_frsize >> 20
    return 0


def sweep_homes(is_alive: Callable[[str], bool] = run_is_alive) -> tuple[str, ...]:
    """Remove the directories of runs that are dead; returns their ids."""
    removed = []
    for path in sorted(Path(tempfile.gettempdir()).glob(f"{_PREFIX}*")):
        run_id = path.name.removeprefix(_PREFIX)
        if is_run_id(run_id) and path.is_dir() and not path.is_symlink() and not is_alive(run_id):
            shutil.rmtree(path, ignore_errors=True)
            if not path.exists():
                removed.append(run_id)
    return tuple(removed)
