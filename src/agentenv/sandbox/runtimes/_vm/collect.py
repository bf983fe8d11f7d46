"""What a command left in /out, brought out of a machine as an archive and unpacked on the host; hostile data."""

from __future__ import annotations

import contextlib
import logging
import tarfile
from pathlib import Path

from agentenv.disk import UNWRITABLE

logger = logging.getLogger("agentenv.sandbox")

_MOST_FILES = 100_000


def unpack(archive: Path, target: Path, *, most_bytes: int) -> None:
    """Unpack regular files and directories below ``target``; what is anything else, or lies elsewhere, is left out.

    Args:
        archive: A tar file, perhaps cut short.
        target: An existing directory.
        most_bytes: Of all files together; the rest is left out.
    """
    left, number = most_bytes, 0
    with contextlib.suppress(tarfile.TarError, EOFError, OSError), tarfile.open(archive) as held:
        for member in held:
            number += 1
            left -= max(0, member.size)
            if number > _MOST_FILES or left < 0:
                logger.warning("%s: more than %d MiB were left in /out; the rest was dropped", target, most_bytes >> 20)
                return
            if not (member.isreg() or member.isdir()):
                continue
            try:
                held.extract(member, target, set_attrs=False, filter="data")
            except tarfile.TarError:
                continue
            except OSError as error:
                # Anything else is what a name or a place of theirs is refused for.
                if error.errno in UNWRITABLE:
                    logger.warning("%s: what was left in /out is lost from here on: %s", target, error.strerror)
                    return
