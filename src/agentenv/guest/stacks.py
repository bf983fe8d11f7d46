"""The environment's Python stack on demand, and when native code crashes: printed by ``faulthandler``.

The host asks with a signal, before it ends a process that does not answer. The dump is written by C code that needs
neither the interpreter lock nor a free main thread, so it also comes out of an endless loop, a blocked system call or
a deadlock. It goes to what is standard error now, whatever the environment later makes of descriptor 2.

The dump is the environment's own word, like everything it prints: shown to people, never believed.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import os
import signal

# A real-time signal, because libraries use the named ones; neither the C library's own (32 to 34) nor the last, which
# debuggers and profilers are fond of. Where there are none, the one that is an application's to use.
SIGNAL = int(signal.SIGRTMAX) - 5 if hasattr(signal, "SIGRTMAX") else int(signal.SIGUSR2)


def register() -> None:
    """Print the stacks of all threads on ``SIGNAL``, which also holds the process up, and on a fatal signal.

    Call in the environment's process before foreign code runs. A process that ``exec`` replaces has it no more; one
    that is forked keeps it. It never stands in the way of an environment: without it, there is only no stack.
    """
    with contextlib.suppress(OSError, ValueError, RuntimeError, AttributeError):
        stderr = os.dup(2)
        faulthandler.enable(stderr, all_threads=True)
        # The C function pause as the handler to go on with after the dump. A signal ends a sleep early; whoever was
        # given up for hanging must not come back from it with an answer, in the moment before the host ends it.
        libc = ctypes.CDLL(None)
        libc.signal.argtypes, libc.signal.restype = [ctypes.c_int, ctypes.c_void_p], ctypes.c_void_p
        libc.signal(SIGNAL, ctypes.cast(libc.pause, ctypes.c_void_p))
        faulthandler.register(SIGNAL, stderr, all_threads=True, chain=True)
