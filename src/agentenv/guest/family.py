"""Forking a running environment: copies that go on at once, and copies that are parked until somebody needs them.

A single-threaded process can be forked at any moment with everything in it: whatever Python objects, whatever native
state. The copy is made as a sibling (``CLONE_PARENT``), so that the cell's first process is everybody's parent, reaps
everybody and knows how everybody ended.

    host -> environment, on its control socket   {"park"} + [lifeline], or {"serve": attach} + [control, memory, bells]
    host -> parked copy, on its lifeline         {"serve": attach} + [control, memory, bells]

A parked copy does nothing. It can be asked to be copied again and again, and ends when the host closes its lifeline.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import random
import socket
import sys
import time
from typing import Any

from agentenv.guest import confine
from agentenv.guest.capture import shared_files, threads
from agentenv.guest.control import ControlClosed, receive_message, send_message

_CLONE_PARENT, _CLONE_CHILD_CLEARTID, _CLONE_CHILD_SETTID = 0x8000, 0x00200000, 0x01000000
_PR_GET_TID_ADDRESS = 40

_libc = ctypes.CDLL(None)


class Reborn(BaseException):
    """Raised in a copy that was just made: leave everything and serve anew with these.

    Attributes:
        attach: The attach message.
        fds: Control socket, memory file, bell to wait on, bell to ring.
    """

    def __init__(self, attach: dict[str, Any], fds: list[int]) -> None:
        self.attach = attach
        self.fds = fds
        super().__init__()


class Family:
    """What one environment's process needs in order to be copied."""

    def __init__(self, control: socket.socket, bells: tuple[int, int]) -> None:
        """Hold on to what a copy must let go of: the control socket and the bells."""
        self._control = control
        self._bells = set(bells)

    def copy(self) -> list[Any]:
        """Make the copy the host asks for on the control socket; returns ["ok", seconds] or ["no", why not].

        Raises:
            Reborn: In a copy that is to serve.
        """
        order, fds = receive_message(self._control, max_fds=4)
        began = time.perf_counter()
        try:
            pid = -1 if (reason := obstacle()) else copy_process()
            if pid == 0:
                self._control.close()
                for fd in self._bells:
                    os.close(fd)
                if "park" in order:
                    stay_parked(socket.socket(fileno=fds[0]))
                raise Reborn(order["serve"], fds)
        except OSError as error:
            reason = f"the kernel refuses to copy it: {error.strerror or error}"
        for fd in fds:
            os.close(fd)
        return ["no", reason] if reason else ["ok", time.perf_counter() - began]


def obstacle() -> str:
    """Why this process must not be copied; "" when it may be."""
    running = threads()
    if running > 1:
        return f"the environment runs {running} threads, and a copy would have only one of them"
    if (shared := shared_files()) is not None:
        return f"a copy would share the position in {shared}"
    try:
        with open(f"/proc/self/task/{os.getpid()}/children", "rb") as stream:
            children = stream.read().split()
    except OSError:
        return ""
    return f"the environment runs {len(children)} processes of its own, which a copy would not have" if children else ""


def copy_process() -> int:
    """Fork a sibling; 0 in the copy. The global random generators go on in both as they were."""
    state = random.getstate()  # forking reseeds it in the copy
    sys.stdout.flush()
    sys.stderr.flush()
    parent = os.getppid()
    pid = confine.clone(_CLONE_PARENT | _CLONE_CHILD_SETTID | _CLONE_CHILD_CLEARTID, tid_address=_tid_address())
    if pid == 0:
        random.setstate(state)
        confine.die_with_parent(parent)
    return pid


def stay_parked(lifeline: socket.socket) -> None:
    """In a copy: wait to be copied again; returns never.

    Raises:
        Reborn: In a copy of this copy.
    """
    send_message(lifeline, {"parked": os.getpid()})
    while True:
        try:
            order, fds = receive_message(lifeline, max_fds=4)
        except (ControlClosed, OSError):
            os._exit(0)
        try:
            pid = copy_process()
        except OSError as error:
            # Where the copy would have spoken: nobody listens to the lifeline, which would fill.
            with contextlib.suppress(OSError), socket.socket(fileno=os.dup(fds[0])) as control:
                send_message(control, {"refused": error.errno})
            pid = -1
        if pid == 0:
            lifeline.close()
            raise Reborn(order["serve"], fds)
        for fd in fds:
            os.close(fd)


def _tid_address() -> int:
    """Where the C library keeps this thread's id: the kernel then writes the copy's own there, as fork() has it do."""
    address = ctypes.c_void_p()
    if _libc.prctl(_PR_GET_TID_ADDRESS, ctypes.byref(address), 0, 0, 0) != 0:
        return 0
    return address.value or 0
