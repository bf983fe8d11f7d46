"""Deeds that use up, end or block: the environment itself, its limits, the host's patience.

A deed gets the environment and may return an info dict. What it must not do is harm anybody else.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from typing import Any, NoReturn

_MIB = 1 << 20
_FOR_EVER_S = 1e6


def _die_by(number: int) -> Callable[[Any], None]:
    def die(env: Any) -> None:
        signal.signal(number, signal.SIG_DFL) if number != signal.SIGKILL else None
        os.kill(os.getpid(), number)
        _hang(env)

    return die


def _hang(env: Any) -> NoReturn:
    while True:
        time.sleep(_FOR_EVER_S)


def _spin(env: Any) -> NoReturn:
    while True:
        pass


def _ignore_everything(env: Any) -> NoReturn:
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP, 32, 33}:
        with contextlib.suppress(OSError, ValueError):
            signal.signal(number, signal.SIG_IGN)
    _hang(env)


def _stop_itself(env: Any) -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


def _crash_in_native_code(env: Any) -> None:
    ctypes.string_at(0)


def _interrupt(env: Any) -> NoReturn:
    raise KeyboardInterrupt


def _raise(env: Any) -> NoReturn:
    raise ArithmeticError("on purpose \x1b]0;title\x07\x1b[2J")


def _raise_unprintable(env: Any) -> NoReturn:
    class Spiteful(Exception):
        def __str__(self) -> str:
            raise RuntimeError("not even a message")

    raise Spiteful


def _raise_much(env: Any) -> NoReturn:
    raise ValueError("m" * (20 * _MIB))


def _recurse(env: Any) -> None:
    _recurse(env)


def _fork_bomb(env: Any) -> dict[str, Any]:
    """Children that fork as well, until nobody can; they stay."""
    made = 0
    while made < 100_000:
        try:
            pid = os.fork()
        except OSError:
            return {"refused_after": made}
        if pid == 0:
            for _ in range(3):
                with contextlib.suppress(OSError):
                    os.fork()
            _hang(env)
        made += 1
    return {"refused_after": -1}


def _many_threads(env: Any) -> dict[str, Any]:
    held = threading.Event()
    for made in range(10_000):
        try:
            threading.Thread(target=held.wait, daemon=True).start()
        except RuntimeError:
            held.set()
            return {"refused_after": made}
    return {"refused_after": -1}


def _allocate(env: Any) -> dict[str, Any]:
    blocks = []
    for _ in range(8192):
        blocks.append(bytearray(b"x") * _MIB)
    return {"allocated_mb": len(blocks)}


def _fill(directory: str) -> Callable[[Any], dict[str, Any]]:
    def fill(env: Any) -> dict[str, Any]:
        written, block = 0, bytes(_MIB)
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        for number in range(1024):
            try:
                with open(f"{directory}/fill-{number}", "wb", buffering=0) as stream:
                    while written < 4096 * _MIB:
                        done = stream.write(block)
                        if not done:
                            break
                        written += done
            except OSError as error:
                if error.errno == 28:
                    break
        return {"written_mb": written // _MIB}

    return fill


def _fill_inodes(env: Any) -> dict[str, Any]:
    for number in range(1_000_000):
        try:
            os.mknod(f"/tmp/inode-{number}")
        except OSError:
            return {"refused_after": number}
    return {"refused_after": -1}


def _flood(fd: int, size: int) -> Callable[[Any], None]:
    def flood(env: Any) -> None:
        block = (b"f" * 1023 + b"\n") * 1024
        for _ in range(size // len(block)):
            view = memoryview(block)
            while view:
                view = view[os.write(fd, view) :]

    return flood


def _use_up_descriptors(env: Any) -> dict[str, Any]:
    held: list[int] = []
    try:
        while len(held) < 1_000_000:
            held.append(os.open("/dev/null", os.O_RDONLY))
    except OSError as error:
        return {"refused_after": len(held), "errno": error.errno or 0}
    finally:
        for fd in held:
            os.close(fd)
    return {"refused_after": -1}


def _send_descriptors_to_itself(env: Any) -> dict[str, Any]:
    """Descriptors in flight in a socket that nobody reads; the kernel counts them per user."""
    pairs, sent = [], 0
    with open(os.devnull, "rb") as null, contextlib.suppress(OSError):
        for _ in range(200):
            left, right = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
            pairs += [left, right]
            left.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                while sent < 100_000:
                    socket.send_fds(left, [b"x"], [null.fileno()] * 250)
                    sent += 250
    for sock in pairs:
        sock.close()
    return {"in_flight": sent}


def _leave_orphans(env: Any) -> NoReturn:
    """Daemons by the book, deaf to SIGTERM, that hold on to every descriptor; then its own exit."""
    for _ in range(5):
        if os.fork() == 0:
            os.setsid()
            if os.fork() == 0:
                _ignore_everything(env)
            os._exit(0)
    os._exit(0)


def _outlive(env: Any) -> dict[str, Any]:
    """Daemons that stay while the environment goes on as if nothing were."""
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            _spin(env)
        os._exit(0)
    os.wait()
    return {}


def _exit(code: int) -> Callable[[Any], NoReturn]:
    def leave(env: Any) -> NoReturn:
        os._exit(code)

    return leave


def _sys_exit(env: Any) -> NoReturn:
    sys.exit(5)


def _raise_limits(env: Any) -> dict[str, Any]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard * 2, hard * 2))
    return {"raised": resource.getrlimit(resource.RLIMIT_NOFILE) != (soft, hard)}


WRECKS: dict[str, Callable[[Any], dict[str, Any] | None]] = {
    **{
        f"die_by_{signal.Signals(number).name}": _die_by(number)
        for number in (
            signal.SIGHUP, signal.SIGQUIT, signal.SIGILL, signal.SIGTRAP, signal.SIGABRT, signal.SIGBUS,
            signal.SIGFPE, signal.SIGKILL, signal.SIGUSR1, signal.SIGSEGV, signal.SIGPIPE, signal.SIGALRM,
            signal.SIGTERM, signal.SIGXCPU, signal.SIGXFSZ, signal.SIGVTALRM, signal.SIGIO, signal.SIGSYS,
        )
    },
    "exit_0": _exit(0), "exit_3": _exit(3), "sys_exit": _sys_exit, "interrupt": _interrupt,
    "raise": _raise, "raise_unprintable": _raise_unprintable, "raise_much": _raise_much, "recurse": _recurse,
    "crash_in_native_code": _crash_in_native_code,
    "hang": _hang, "spin": _spin, "ignore_everything": _ignore_everything, "stop_itself": _stop_itself,
    "fork_bomb": _fork_bomb, "many_threads": _many_threads, "allocate": _allocate,
    "fill_tmp": _fill("/tmp"), "fill_shm": _fill("/dev/shm"), "fill_inodes": _fill_inodes,
    "flood_stdout": _flood(1, 1 << 30), "flood_stderr": _flood(2, 1 << 28),
    "use_up_descriptors": _use_up_descriptors, "send_descriptors_to_itself": _send_descriptors_to_itself,
    "leave_orphans": _leave_orphans, "outlive": _outlive, "raise_limits": _raise_limits,
}  # fmt: skip
