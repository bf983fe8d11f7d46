"""The process every environment of a run is forked from.

It has numpy and gymnasium imported, stays single-threaded, and runs no code of an environment beyond importing
installed packages. It knows nothing about the environments: each gets its settings from the host over a socket
of its own, so that no environment can find another's variables in memory it inherited.

    host --(descriptor of a cell's control socket)--> zygote --clone--> cell (first process of its namespaces)

When the host's end of the control socket closes, the zygote ends, and as first process of the outer pid namespace
takes everything with it.
"""

from __future__ import annotations

import gc
import importlib
import os
import platform
import signal
import socket
from collections.abc import Sequence
from typing import Any, NoReturn

from agentenv.guest import cell, confine, pools, seccomp
from agentenv.guest.control import ControlClosed, receive_message, send_message


def _threads() -> int:
    try:
        return len(os.listdir("/proc/self/task"))
    except OSError:
        return 1


def _preload(modules: Sequence[str]) -> list[str]:
    failed = []
    for name in modules:
        try:
            importlib.import_module(name)
        except Exception as error:  # the environment will report it again, with its own traceback
            failed.append(f"{name}: {type(error).__name__}: {error}")
    return failed


def probe_nesting() -> str:
    """Try what every cell needs, in a child; returns "" or why it does not work."""
    uid, gid = os.getuid(), os.getgid()
    reader, writer = os.pipe()
    try:
        pid = confine.clone(confine.CELL_NAMESPACES)
    except OSError as error:
        os.close(reader)
        os.close(writer)
        return str(error)
    if pid == 0:
        try:
            confine.map_ids(uid, gid)
            confine.private_mounts()
            confine.mount_proc()
            confine.mount_tmpfs("/dev/shm", 4096)
            confine.mount_private_ptys()
        except OSError as error:
            os.write(writer, str(error).encode())
        os._exit(0)
    os.close(writer)
    reason = os.read(reader, 4096).decode()
    os.close(reader)
    os.waitpid(pid, 0)
    return reason


def main(config: dict[str, Any]) -> NoReturn:
    """Serve spawn requests until the host closes its end.

    Args:
        config: ``fd`` (control socket), ``isolated`` (whether cells get namespaces), ``preload`` (modules), ``bare``
            (whether cells will run commands only, for which nothing need be imported).
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the host's to interpret
    host = socket.socket(fileno=config["fd"])
    nesting = probe_nesting() if config["isolated"] else "not asked for"
    failed = _preload(config["preload"])
    if not config.get("bare"):
        importlib.import_module("agentenv.guest.envhost")
        importlib.import_module("agentenv.guest.warming").warm_up()
    if config["isolated"]:
        for network in (False, True):
            seccomp.program(platform.machine(), allow_network=network)  # built once, not in every cell
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel reaps; nobody here needs the statuses
    if os.getpid() == 1:
        # Where cells have no pid namespaces of their own, this is an unfiltered process that they could write into.
        confine.hide_memory()
    gc.collect()
    pools.fill_pools()
    gc.freeze()
    gc.disable()
    try:
        send_message(host, {"ready": True, "nesting": nesting, "threads": _threads(), "failed": failed})
        while True:
            request, fds = receive_message(host, max_fds=1)
            _spawn(host, request, fds[0])
            os.close(fds[0])
    except ControlClosed:
        os._exit(0)


def _spawn(host: socket.socket, request: dict[str, Any], fd: int) -> None:
    namespaces = 0
    if request["nested"]:
        namespaces = confine.CELL_NAMESPACES | (0 if request["network"] else confine.CLONE_NEWNET)
    uid, gid, parent = os.getuid(), os.getgid(), os.getpid()
    try:
        pid = confine.clone(namespaces)
    except OSError as error:
        with socket.socket(fileno=os.dup(fd)) as control:
            send_message(control, {"failed": str(error)})
        return
    if pid == 0:
        status = 1
        try:
            os.closerange(3, fd)
            os.closerange(fd + 1, 65536)
            if namespaces:
                confine.show_memory()
                confine.map_ids(uid, gid)
            else:
                # In an outer pid namespace everything dies with its first process. Elsewhere the cell must be able to
                # end what its environment left behind before it goes.
                confine.die_with_parent(parent, signal.SIGKILL if parent == 1 else signal.SIGTERM)
            cell.run(socket.socket(fileno=fd), nested=bool(namespaces), network=request["network"])
            status = 0
        finally:
            os._exit(status)
