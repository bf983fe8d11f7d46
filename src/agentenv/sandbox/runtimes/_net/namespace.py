"""Network namespaces without names: they last as long as somebody holds a descriptor of one, or runs or routes in it.

So the kernel removes them, and the devices and rules in them, when the last of those is gone, however that ended.
A thread of ours that enters one ends there; no other thread of the process notices.
"""

from __future__ import annotations

import ctypes
import os
import threading
import weakref
from collections.abc import Callable
from typing import TypeVar

_CLONE_NEWNET = 0x40000000
_OWN = "/proc/thread-self/ns/net"
T = TypeVar("T")

_libc = ctypes.CDLL(None, use_errno=True)
_held: weakref.WeakSet[Namespace] = weakref.WeakSet()


class Namespace:
    """One of them, empty at first but for a loopback that is down."""

    def __init__(self) -> None:
        """Make it.

        Raises:
            OSError: The kernel refuses.
        """
        self._fd = _in_thread(_make)
        _held.add(self)

    def fileno(self) -> int:
        """The descriptor it is held by; -1 after ``close``."""
        return self._fd

    def run(self, work: Callable[[], T]) -> T:
        """Do something in it, programs started meanwhile included; returns what that returned.

        Raises:
            OSError: It cannot be entered.
        """

        def inside() -> T:
            enter(self._fd)
            return work()

        return _in_thread(inside)

    def close(self) -> None:
        """Hold it no longer. Idempotent."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def enter(fd: int) -> None:
    """Have the calling thread, and what it starts, be in a network namespace for good.

    Raises:
        OSError: The kernel refuses.
    """
    if _libc.setns(fd, _CLONE_NEWNET) != 0:
        _fail("entering a network namespace")


def open_own() -> int:
    """A descriptor of the calling thread's network namespace."""
    return os.open(_OWN, os.O_RDONLY | os.O_CLOEXEC)


def _make() -> int:
    if _libc.unshare(_CLONE_NEWNET) != 0:
        _fail("making a network namespace")
    return open_own()


def _fail(what: str) -> None:
    code = ctypes.get_errno()
    raise OSError(code, f"{what}: {os.strerror(code)}")


def _in_thread(work: Callable[[], T]) -> T:
    results: list[T] = []
    failures: list[BaseException] = []

    def run() -> None:
        try:
            results.append(work())
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=run, name="agentenv-network", daemon=True)
    thread.start()
    thread.join()
    if failures:
        raise failures[0]
    return results[0]


def _close_held() -> None:
    """A fork of the host must not keep its machines' networks alive."""
    for namespace in list(_held):
        namespace.close()


os.register_at_fork(after_in_child=_close_held)
