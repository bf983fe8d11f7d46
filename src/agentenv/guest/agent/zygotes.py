"""Zygotes inside a machine: the image's own Python for environments, the agent itself for commands."""

from __future__ import annotations

import json
import os
import signal
import socket
from collections.abc import Callable
from typing import Any

from agentenv.guest.agent.identity import Identity, become, find_identity
from agentenv.guest.control import receive_message, send_message
from agentenv.guest.pumping import READ, Loop

_NOBODY_SPECIAL = Identity(1000, 1000, (), "/tmp", "agentenv")
_PLACES = ("/usr/local/bin", "/usr/bin", "/bin")
_TAIL_BYTES = 4096
# For any Python 3. The option that leaves the working directory out of sys.path came with 3.11.
_BOOTSTRAP = """
import sys
if sys.path[:1] == [""]:
    del sys.path[0]
if sys.version_info < (3, 9):
    found = "%d.%d.%d at %s" % (sys.version_info[:3] + (sys.executable,))
    sys.exit("expected Python 3.9 or newer in the image, found " + found)
import json
c = json.loads(sys.argv[1])
sys.path[:0] = c["site"]
sys.path += c["path"]
from agentenv.guest.needed import find_fault
if find_fault():
    sys.exit(find_fault())
from agentenv.guest.zygote import main
main(c)
"""


class Zygote:
    """A process that environments are forked from.

    Attributes:
        pid: Its process.
        ready: Its first message, once it has come.
        ended: Whether it has.
    """

    def __init__(self, loop: Loop, start: Callable[[socket.socket], None], on_ready: Callable[[Zygote], None]) -> None:
        """Fork it.

        Args:
            loop: Where its first message is waited for.
            start: Called in the child with its end of the control socket; does not return.
            on_ready: Called with it when it is ready, or has ended instead.
        """
        self._loop, self._on_ready = loop, on_ready
        self._control, theirs = socket.socketpair()
        self._stderr = os.memfd_create("zygote")
        self.ready: dict[str, Any] | None = None
        self.ended = False
        self.pid = os.fork()
        if self.pid == 0:
            try:
                _begin(self._stderr, theirs.fileno())
                start(theirs)
            except BaseException as error:
                os.write(2, f"{type(error).__name__}: {error}\n".encode())
            finally:
                os._exit(1)
        theirs.close()
        loop.watch(self._control.fileno(), READ, self._hear)

    def spawn(self, control: socket.socket, *, nested: bool, network: bool) -> None:
        """Have a cell made that speaks on ``control``.

        Raises:
            OSError: The zygote is gone.
        """
        send_message(self._control, {"nested": nested, "network": network}, [control.fileno()])

    def tail(self) -> str:
        """The last of what it said on its standard error."""
        size = os.fstat(self._stderr).st_size
        return os.pread(self._stderr, _TAIL_BYTES, max(0, size - _TAIL_BYTES)).decode(errors="replace")

    def end(self) -> None:
        """End it."""
        self._loop.forget(self._control.fileno())
        self._control.close()
        os.close(self._stderr)

    def _hear(self, _events: int) -> None:
        self._loop.forget(self._control.fileno())
        try:
            self.ready, _ = receive_message(self._control)
        except (OSError, ValueError):
            self.ended = True
        self._on_ready(self)


def start_python(python: str, config: dict[str, Any], user: str = "") -> Callable[[socket.socket], None]:
    """A zygote run by an interpreter of the image, as somebody whom ``find_tenant`` finds.

    Raises:
        OSError: The image has no such user.
    """
    identity = find_tenant(user)

    def start(control: socket.socket) -> None:
        become(identity)
        control.set_inheritable(True)
        config["fd"] = control.fileno()
        os.execve(python, [python, "-s", "-c", _BOOTSTRAP, json.dumps(config)], config["variables"])

    return start


def start_bare(user: str = "") -> Callable[[socket.socket], None]:
    """A zygote for commands: this very process, forked, as somebody whom ``find_tenant`` finds.

    Raises:
        OSError: The image has no such user.
    """
    identity = find_tenant(user)

    def start(control: socket.socket) -> None:
        become(identity)
        from agentenv.guest.zygote import main

        main({"fd": control.detach(), "isolated": True, "preload": [], "bare": True})

    return start


def find_python(path: str = "") -> str | None:
    """The image's interpreter: the first on its PATH, else in the usual places."""
    places = [*(place for place in path.split(":") if place.startswith("/")), *_PLACES]
    return next((found for place in places if os.access(found := f"{place}/python3", os.X_OK)), None)


def find_tenant(user: str) -> Identity:
    """As whom environments and commands run: the user an image names, but never root.

    Raises:
        OSError: The image has no such user.
    """
    found = find_identity(user)
    return _NOBODY_SPECIAL if found.uid == 0 else found


def _begin(stderr: int, control: int) -> None:
    """Be nothing of the agent's any more: above all, do not hold the port to the host open."""
    signal.set_wakeup_fd(-1)
    for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_DFL)
    os.setsid()
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.dup2(stderr, 1)
    os.dup2(stderr, 2)
    os.closerange(3, control)
    os.closerange(control + 1, 1 << 16)
    with open("/proc/self/oom_score_adj", "w", encoding="ascii") as stream:
        stream.write("0")
