"""Removing what builds leave, also where it belongs to numbers of other users that were given to this one."""

from __future__ import annotations

import contextlib
import os
import subprocess
from pathlib import Path

from agentenv.images.files import remove_tree
from agentenv.images.programs import find_program

_DEADLINE_S = 600


def remove_all(path: Path) -> bool:
    """Remove a file or a tree; whether it is gone. There is no error."""
    remove_tree(path)
    if not os.path.lexists(path):
        return True
    # For a user who is not root, buildah makes files of all users of an image by numbers of his own, and only as root
    # of a namespace that has these can he remove them.
    buildah = find_program("buildah") if os.geteuid() != 0 else None
    if buildah is not None:
        # What it keeps itself meanwhile lies there, too.
        argv = [
            buildah,
            "--root",
            f"{path}/storage",
            "--runroot",
            f"{path}/run",
            "unshare",
            "rm",
            "-rf",
            "--",
            str(path),
        ]
        variables = {**os.environ, "XDG_RUNTIME_DIR": str(path), "TMPDIR": str(path)}
        with contextlib.suppress(OSError, subprocess.SubprocessError):
            subprocess.run(
                argv,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=_DEADLINE_S,
                check=False,
                env=variables,
            )
    return not os.path.lexists(path)
