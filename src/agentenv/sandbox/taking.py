"""Where the memory of a machine lies between being written and being stored: beside the store of snapshots.

Each directory has the name of the run that writes it, which holds its lock. What a killed one leaves may be gigabytes;
whoever takes the next snapshot, collects or sweeps removes it.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

from agentenv import locks
from agentenv.disk import Remedy, data_directory, room_for
from agentenv.sandbox.runtimes._runid import is_run_id, new_run_id, run_is_alive

_WHAT = "the memory of machines in "
_REMEDY = Remedy("agentenv snapshot gc", "choose another disk with AGENTENV_DATA=DIR")


def taking_place(data: Path) -> Path:
    """The directory of all of them, in the directory of what users keep."""
    return data / "taking"


@contextlib.contextmanager
def taking_ground(data: Path) -> Iterator[Path]:
    """An empty directory that is gone after the block; those of dead processes go now.

    Raises:
        ResourceLimit: The disk is full or read-only, in the block as well.
    """
    sweep_taking(data)
    place = taking_place(data)
    directory = place / new_run_id()
    with room_for(_WHAT, place, _REMEDY):
        place.mkdir(mode=0o700, exist_ok=True)
        directory.mkdir(mode=0o700)
    fd = locks.take(directory)
    assert fd is not None
    try:
        with room_for(_WHAT, place, _REMEDY):
            yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)
        os.close(fd)


def sweep_taking(data: Path | None = None, is_alive: Callable[[str], bool] = run_is_alive) -> tuple[str, ...]:
    """Remove what runs that are dead left; returns their ids.

    Args:
        data: The directory of what users keep; None for this user's.
        is_alive: Whether a run lives, as far as this host's processes are seen from here.
    """
    place = taking_place(data or data_directory())
    removed = []
    for path in sorted(place.iterdir()) if place.is_dir() else ():
        if not is_run_id(path.name) or is_alive(path.name):
            continue
        with contextlib.suppress(OSError):
            # One that lives where its number is not seen, as in a container, has it locked all the same.
            if (fd := locks.take(path, wait=False)) is not None:
                shutil.rmtree(path, ignore_errors=True)
                os.close(fd)
        if not path.exists():
            removed.append(path.name)
    return tuple(removed)
