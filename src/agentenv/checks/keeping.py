"""Whether the state of an environment can be kept: by pickling it, by forking its process. And what memory it has.

Runs inside the sandbox. A copy counts when it goes on exactly as the original does.
"""

from __future__ import annotations

import contextlib
import gc
import os
import pickle
import select
import signal
from collections.abc import Callable
from typing import Any

import cloudpickle

from agentenv.guest.failure import failure

_CHILD_S = 20.0


def pickled(env: Any, follow: Callable[[Any], bytes]) -> dict[str, Any]:
    """Pickle, restore, and let the copy and the original do the same.

    Args:
        env: The environment.
        follow: Goes on with an environment and digests what it sees.

    Returns:
        ``by`` ("pickle", "cloudpickle" or "" where neither can), ``error`` (three texts or None: of pickling or of the
        copy), ``same`` (whether the copy went on as the original) and ``nbytes``.
    """
    refusals = []
    data, by = b"", ""
    for name, dumps in (("pickle", pickle.dumps), ("cloudpickle", cloudpickle.dumps)):
        try:
            data = dumps(env)
        except Exception as error:  # whatever a __reduce__ of somebody else's raises
            refusals.append(failure(error))
        else:
            by = name
            break
    if not by:
        return {"by": "", "error": refusals[0], "same": False, "nbytes": 0}
    result: dict[str, Any] = {"by": by, "error": None, "same": False, "nbytes": len(data)}
    try:
        copy = pickle.loads(data)
        there = follow(copy)
    except Exception as error:
        result["error"] = failure(error)
        return result
    result["same"] = there == follow(env)
    return result


def forked(follow: Callable[[], bytes]) -> dict[str, Any]:
    """Fork, where that is safe, and let child and parent do the same.

    Returns:
        ``threads`` (of this process), ``forked`` (whether it was done: not with more than one), ``same`` and ``error``
        (a text).
    """
    threads = len(os.listdir("/proc/self/task"))
    if threads > 1:
        return {"threads": threads, "forked": False, "same": False, "error": f"{threads} threads"}
    reader, writer = os.pipe()
    try:
        child = os.fork()
    except OSError as error:
        os.close(reader)
        os.close(writer)
        return {"threads": threads, "forked": False, "same": False, "error": f"fork: {os.strerror(error.errno or 0)}"}
    if child == 0:
        try:
            os.write(writer, b"=" + follow())
        except BaseException as error:
            with contextlib.suppress(OSError):
                os.write(writer, f"!{type(error).__name__}: {error}"[:400].encode("utf-8", "replace"))
        finally:
            os._exit(0)
    os.close(writer)
    poller = select.poll()
    poller.register(reader, select.POLLIN | select.POLLHUP)
    answered = poller.poll(int(_CHILD_S * 1000))
    there = os.read(reader, 4096) if answered else b"!it did not answer"
    os.close(reader)
    with contextlib.suppress(ProcessLookupError):
        os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    if not there.startswith(b"="):
        text = there[1:].decode("utf-8", "replace") or "it ended without an answer"
        return {"threads": threads, "forked": True, "same": False, "error": f"in the child: {text}"}
    return {"threads": threads, "forked": True, "same": there[1:] == follow(), "error": ""}


def resident_bytes() -> int:
    """Resident memory of this process, after a collection."""
    gc.collect()
    with open("/proc/self/statm", "rb") as stream:
        return int(stream.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
