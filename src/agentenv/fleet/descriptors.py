"""Want of descriptors, in words: what Python says of it tells nobody what to do."""

from __future__ import annotations

import contextlib
import errno
import resource
from collections.abc import Iterator

from agentenv.errors import AgentEnvError, ResourceLimit


def in_words(error: BaseException) -> ResourceLimit | None:
    """The error for one that says that too many files are open, with what helps; None for any other."""
    if not isinstance(error, OSError) or isinstance(error, AgentEnvError):
        return None
    if error.errno == errno.ENFILE:
        remedy = "end something that has many, or as root: sysctl -w fs.file-max=NUMBER"
        return ResourceLimit(error.errno, f"as many files are open on this host as may be\n  remedy: {remedy}")
    if error.errno != errno.EMFILE:
        return None
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    remedy = "ulimit -n 4096 before this, as root where it is refused, or LimitNOFILE=4096 of its service"
    return ResourceLimit(error.errno, f"too many open files: a process may have {most} here\n  remedy: {remedy}")


@contextlib.contextmanager
def told() -> Iterator[None]:
    """Have it said in words.

    Raises:
        ResourceLimit: Too many files are open.
    """
    try:
        yield
    except OSError as error:
        if (limit := in_words(error)) is not None:
            raise limit from error
        raise
