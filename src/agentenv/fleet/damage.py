"""Files of a run that cannot be read, told by name and with what to do, instead of in the operating system's words."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from agentenv.errors import RunDamaged

REMEDY = "put back a copy of it; what it held is lost otherwise"
_AWAY = "move it away, or put back a copy of what was there; the rest of the run can be read"


@contextmanager
def reading(path: Path, what: str) -> Iterator[None]:
    """Around the reading of a file or folder of a run.

    Args:
        path: The file or folder.
        what: What it holds, for "expected ...".

    Raises:
        RunDamaged: In place of every OSError.
    """
    try:
        yield
    except RunDamaged:
        raise
    except OSError as error:
        named = path if error.filename is None else Path(os.fsdecode(error.filename))
        said = f"{named}: expected {what}, got: {error.strerror or error}"
        raise RunDamaged(misplaced(named, what) or said) from error


def misplaced(path: Path, what: str, *, folder: bool = False) -> str | None:
    """In a sentence, that a file stands where a folder should be, or something else than a file where one should be.

    Args:
        path: What should be a file; what is missing is none of this.
        what: What it holds, for "expected ...".
        folder: It should be a folder.

    Returns:
        The sentence; None where what is there is what should be, or nothing is.
    """
    for above in reversed(path.parents):
        if os.path.lexists(above) and not os.path.isdir(above):
            return f"{above}: expected the folder of {path.name}, found a file ({_AWAY})"
    if os.path.lexists(path) and os.path.isdir(path) != folder:
        return f"{path}: expected {what}, found a {'file' if folder else 'folder'} ({_AWAY})"
    if not folder and os.path.exists(path) and not os.path.isfile(path):
        return f"{path}: expected {what}, found a pipe, a socket or a device ({_AWAY})"
    return None
