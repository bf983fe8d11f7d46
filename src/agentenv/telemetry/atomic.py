"""Replacing a file as a whole: readers see the old content or the new, whatever happens in between."""

from __future__ import annotations

import contextlib
import errno
import os
import tempfile
from pathlib import Path

from agentenv.disk import UNWRITABLE, sync
from agentenv.errors import ResourceLimit


def write_atomic(path: Path, data: bytes) -> None:
    """Writes a temporary file beside it, syncs, renames, syncs the directory.

    On any error the old file is untouched and the temporary one is gone.

    Raises:
        ResourceLimit: the disk or the quota is full, or it is read-only.
        OSError: it cannot be written for another reason; names ``path``.
    """
    try:
        fd, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".new")
        try:
            with open(fd, "wb") as file:
                file.write(data)
                file.flush()
                # mkstemp's 0600 is for secrets; these files are for whoever may read the directory.
                os.fchmod(fd, 0o644)
                os.fsync(fd)
            os.replace(name, path)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(name)
            raise
        sync(path.parent)
    except OSError as error:
        if error.errno in UNWRITABLE:
            why = "its disk is read-only" if error.errno == errno.EROFS else "there is no room"
            message = f"{path} needs {len(data)} bytes of disk and {why}; the previous file is kept"
            raise ResourceLimit(error.errno, message) from error
        if error.errno is None:
            raise
        # The temporary file is nobody's concern.
        raise OSError(error.errno, error.strerror, str(path)) from error
