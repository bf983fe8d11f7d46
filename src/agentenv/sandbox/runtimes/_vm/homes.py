"""The directories of machines: one for each run, which whoever outlives the run removes."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

from agentenv.sandbox.runtimes._runid import is_run_id, run_is_alive
from agentenv.sandbox.runtimes._vm.files import room_in

REMEDY = "free some of the disk, or choose another directory for what is temporary with TMPDIR=DIR"
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
