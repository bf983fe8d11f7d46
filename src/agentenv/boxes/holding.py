"""Keepers as processes. Numbers of processes come again: who is to be signalled is held first, and then looked at."""

from __future__ import annotations

import contextlib
import errno
import os
import select
from collections.abc import Iterator

from agentenv.fleet.owner import Owner

# There is none; or it is a thread of somebody that has the number, in the words of older and newer kernels.
_NOBODY = (errno.ESRCH, errno.EINVAL, errno.ENOENT)


@contextlib.contextmanager
def holding(owner: Owner) -> Iterator[int | None]:
    """A descriptor of this very process for a block; None where it is gone, whoever has its number now."""
    try:
        pidfd = os.pidfd_open(owner.pid)
    except OSError as error:
        if error.errno not in _NOBODY:
            raise
        yield None
        return
    try:
        yield pidfd if owner.alive() else None
    finally:
        os.close(pidfd)


def has_ended(pidfd: int, timeout_s: float) -> bool:
    """Whether a process that is held has ended; waits so long for that."""
    poller = select.poll()
    poller.register(pidfd, select.POLLIN)
    return bool(poller.poll(timeout_s * 1000))
