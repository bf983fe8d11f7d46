"""The first process of a cell: sets it up, starts the environment in a child, reaps, and reports how it ended.

It is pid 1 where there is a pid namespace. It runs no code of the environment, is killed only together with the
cell, and its last act is to kill whatever the environment left behind.
"""

from __future__ import annotations

import contextlib
import errno
import gc
import os
import signal
import socket
import sys
import traceback
from typing import Any

from agentenv.guest import confine, rlimits, seccomp, stacks
from agentenv.guest.control import receive_message, send_message
from agentenv.guest.keeper import Keeper


def run(control: socket.socket, *, nested: bool, network: bool) -> None:
    """Wait for the host's settings, build the cell, run the environment in it to its end."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    send_message(control, {"hello": os.getpid()})
    settings, fds = receive_message(control, max_fds=3)
    stdout, stderr = fds[:2]
    report = socket.socket(fileno=fds[2])
    try:
        if nested:
            _build_view(settings, network=network)
        else:
            confine.adopt_orphans()
    except OSError as error:
        send_message(control, {"failed": str(error)})
        return
    os.dup2(stdout, 1)
    os.dup2(stderr, 2)
    os.close(stdout)
    os.close(stderr)
    parent = os.getpid()
    if settings["isolated"]:
        # Before the fork, so that there is no moment in which the environment could look into this process.
        confine.hide_memory()
    keeper = Keeper(report)
    child = os.fork()
    if child == 0:
        keeper.leave()
        _become_environment(control, settings, parent=parent, network=network)
    if settings["isolated"]:
        confine.drop_privileges()
    else:
        signal.signal(signal.SIGTERM, lambda _number, _frame: keeper.stop())
    if not settings["command"]:
        control.close()
    keeper.keep(child)
    _kill_rest(child, everything=nested)


def _build_view(settings: dict[str, Any], *, network: bool) -> None:
    view = settings["view"]
    confine.private_mounts()
    confine.mount_proc()
    if view["out"]:
        confine.bind(view["out"], "/out")
    for path in view["hidden"]:
        confine.hide(path)
    for path, size_bytes in view["tmpfs"]:
        confine.mount_tmpfs(path, size_bytes, view["keep"])
    confine.mount_private_ptys()
    socket.sethostname(settings["id"][:63])
    if not network:
        confine.raise_loopback()


def _become_environment(control: socket.socket, settings: dict[str, Any], *, parent: int, network: bool) -> None:
    """In the child: give up what is not needed, then run the environment or the command. Never returns."""
    status = 1
    try:
        confine.show_memory()
        confine.die_with_parent(parent)
        os.setsid()
        signal.signal(signal.SIGINT, signal.default_int_handler)
        null = os.open(os.devnull, os.O_RDONLY)
        os.dup2(null, 0)
        os.close(null)
        os.environ.clear()
        os.environ.update(settings["variables"])
        os.makedirs(os.environ.get("HOME", "/tmp"), exist_ok=True)
        try:
            os.chdir(settings["directory"])
        except OSError:
            # A home directory is not shown, and may have nothing in it that is. Run from there all the same.
            os.chdir(os.environ.get("HOME", "/tmp"))
        rlimits.apply(settings["rlimits"])
        if settings["isolated"]:
            confine.drop_privileges()
            seccomp.install(allow_network=network)
        if settings["command"]:
            _execute(settings["command"])
        else:
            from agentenv.guest import envhost

            gc.enable()  # the zygote turned it off, to keep its own pages shared
            stacks.register()
            status = envhost.main(control, settings)
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else (0 if end.code is None else 1)
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
    except BaseException:
        traceback.print_exc()
    finally:
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError):
                stream.flush()
        os._exit(status & 0xFF)


def _execute(command: list[str]) -> None:
    try:
        os.execvpe(command[0], command, os.environ)
    except OSError as error:
        print(f"agentenv: cannot run {command[0]!r}: {error.strerror}", file=sys.stderr)
        os._exit(127 if error.errno == errno.ENOENT else 126)


def _kill_rest(child: int, *, everything: bool) -> None:
    """Kill and reap what the environment left behind."""
    while True:
        try:
            if everything:
                os.kill(-1, signal.SIGKILL)
            else:
                os.killpg(child, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            pass
        for pid in _children():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        try:
            os.waitpid(-1, 0)
        except ChildProcessError:
            return


def _children() -> list[int]:
    try:
        with open(f"/proc/self/task/{os.getpid()}/children", "rb") as stream:
            return [int(pid) for pid in stream.read().split()]
    except OSError:
        return []
