"""The host's handle on the relay process; see ``relay_main``."""

from __future__ import annotations

import contextlib
import json
import os
import select
import socket
import subprocess
import sys
import tempfile
import threading
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from agentenv.errors import RuntimeUnavailable
from agentenv.guest.control import ControlClosed, receive_message, send_message
from agentenv.sandbox.runtimes._vm.machine import Command, Started

_BOOTSTRAP = (
    "import sys, json; c = json.loads(sys.argv[1]); sys.path[:] = c['path'];"
    " from agentenv.sandbox.runtimes._vm.relay_main import main; main(c['fd'], c['homes'])"
)
_REPLY_S = 30.0
_END_S = 5.0
_held: weakref.WeakSet[socket.socket] = weakref.WeakSet()


def _close_held() -> None:
    """A fork of the host must let go of the sockets, or the relays would outlive the host."""
    for control in list(_held):
        control.close()


os.register_at_fork(after_in_child=_close_held)


class RelayLost(RuntimeUnavailable, ConnectionError):
    """The relay is gone, and every machine with it; for each of them that is a connection that ended."""


class RelayProcess:
    """A running relay. May be used by several threads.

    Requests raise ``RelayLost`` where it is gone. One that does not answer in time is ended, so that nobody waits for
    it a second time and another one can take its place.
    """

    def __init__(self, paths: Sequence[str], homes: Path) -> None:
        """Start it.

        Args:
            paths: ``sys.path``, on which agentenv is found.
            homes: The machines' directories, which it removes when the host is gone.

        Raises:
            RuntimeUnavailable: It does not start.
        """
        self._lock = threading.Lock()
        self._number = 0
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115  # lives as long as the process; closed in close()
        self._control, theirs = socket.socketpair()
        _held.add(self._control)
        with theirs:
            config = json.dumps({"path": list(paths), "fd": theirs.fileno(), "homes": str(homes)})
            try:
                self._process = subprocess.Popen(
                    [sys.executable, "-s", "-P", "-S", "-c", _BOOTSTRAP, config],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=self._stderr,
                    pass_fds=(theirs.fileno(),),
                    env={"PATH": os.environ.get("PATH", os.defpath), "LANG": "C.UTF-8"},
                )
            except OSError as error:
                self._control.close()
                self._stderr.close()
                raise RuntimeUnavailable(f"cannot start {sys.executable}: {error.strerror}") from error
        self._control.settimeout(_REPLY_S)

    def spawn(self, command: Command) -> Started:
        """Start a monitor; see ``machine.Spawn``.

        Raises:
            OSError: It cannot be started.
            RelayLost: The relay is gone.
        """
        request = {
            "op": "spawn",
            "argv": list(command.argv),
            "directory": str(command.directory),
            "variables": dict(command.variables),
            "numbers": list(command.inherit),
            "apart": command.apart,
            "network": command.network >= 0,
        }
        network = [command.network] if command.network >= 0 else []
        reply, fds = self._ask(request, [command.output, *command.inherit, *network], max_fds=1)
        return Started(int(reply["pid"]), fds[0])

    def join(self, machine: int, stream: int, rpc: int, pidfd: int) -> None:
        """Carry a machine's stream; requests to its agent come on ``rpc``. It keeps copies of the descriptors."""
        self._ask({"op": "join", "machine": machine}, [stream, rpc, pidfd])

    def tie(self, machine: int, *ties: tuple[int, int, str], most_bytes: int | None = None) -> None:
        """Carry bytes between descriptors and streams.

        Args:
            machine: Which one.
            ties: For each a stream, a descriptor, and "r" for what is read from it, "w" for what is written to it; with
                "g" nothing is read before the machine grants it.
            most_bytes: Most that may come on each of them; a machine that sends more is ended.
        """
        streams = [(stream, ways) for stream, _, ways in ties]
        request = {"op": "tie", "machine": machine, "streams": streams, "most_bytes": most_bytes}
        self._ask(request, [fd for _, fd, _ in ties])

    def untie(self, machine: int, streams: Sequence[int]) -> None:
        """Carry no more on streams, and close their descriptors there."""
        self._ask({"op": "untie", "machine": machine, "streams": list(streams)}, ())

    def attach(self, machine: int, layout: dict[str, Any], count: int, fds: Sequence[int]) -> None:
        """Carry the requests and answers of slots: memory, the bell that wakes, the bell that is rung when done."""
        self._ask({"op": "attach", "machine": machine, "layout": layout, "count": count}, fds)

    def hold(self, machine: int) -> None:
        """Carry nothing but requests, and let the machine close its stream, which otherwise ends it."""
        self._ask({"op": "hold", "machine": machine}, ())

    def rest(self, machine: int) -> None:
        """Let go of a machine's stream that is held, and keep what is tied to it."""
        self._ask({"op": "rest", "machine": machine}, ())

    def rejoin(self, machine: int, stream: int) -> None:
        """Carry a machine's stream again, a new one; still nothing but requests."""
        self._ask({"op": "rejoin", "machine": machine}, [stream])

    def release(self, machine: int) -> None:
        """Carry everything again."""
        self._ask({"op": "release", "machine": machine}, ())

    def broken(self, machine: int) -> str:
        """What came from a machine and was not the protocol; "" for nothing, or when the relay itself is gone."""
        try:
            return str(self._ask({"op": "fate", "machine": machine}, ())[0].get("broken", ""))
        except RelayLost:
            return ""

    def unwritten(self, machine: int, *streams: int) -> int:
        """Bytes that came from a machine and were not read yet by whoever they are for; 0 when the relay is gone.

        Args:
            machine: Which one.
            streams: On which of its streams; none for all of them.
        """
        try:
            return int(self._ask({"op": "unwritten", "machine": machine, "streams": streams}, ())[0]["bytes"])
        except RelayLost:
            return 0

    def leave(self, machine: int) -> None:
        """Forget a machine."""
        with contextlib.suppress(RelayLost):
            self._ask({"op": "leave", "machine": machine}, ())

    def alive(self) -> bool:
        """Whether it runs."""
        return self._process.poll() is None

    def close(self) -> None:
        """End it, and with it every monitor it has started. Idempotent."""
        self._control.close()
        if self._process.poll() is None:
            poller = select.poll()
            with contextlib.suppress(ProcessLookupError):
                pidfd = os.pidfd_open(self._process.pid)
                poller.register(pidfd, select.POLLIN)
                if not poller.poll(1000):
                    self._process.kill()
                os.close(pidfd)
        self._process.wait()
        self._stderr.close()

    def _ask(
        self, request: dict[str, Any], fds: Sequence[int], *, max_fds: int = 0
    ) -> tuple[dict[str, Any], list[int]]:
        try:
            with self._lock:
                self._number += 1
                send_message(self._control, {**request, "number": self._number, "fds": len(fds)}, fds)
                while True:
                    reply, given = receive_message(self._control, max_fds=max_fds)
                    if reply.get("number") == self._number:
                        break
                    # Whoever asked for that was interrupted before the answer came.
                    for fd in given:
                        os.close(fd)
        except TimeoutError as error:
            self._end()
            late = f"it did not answer {request['op']!r} in {_REPLY_S:g} s, and was ended with every machine"
            raise self._lost(f"{late}; it was stopped, or this host has too much to do") from error
        except (ControlClosed, OSError, ValueError) as error:
            raise self._lost(str(error)) from error
        if "error" in reply:
            text, code = str(reply["error"]), reply["errno"]
            raise OSError(text) if code is None else OSError(code, text)
        return reply, given

    def _end(self) -> None:
        """Also where it stands still, and does not see that nobody is there for it any more."""
        self._process.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):  # it hangs in the kernel
            self._process.wait(_END_S)

    def _lost(self, why: str) -> RelayLost:
        return RelayLost(f"the relay to the machines is gone: {why}\n{self._tail()}".rstrip())

    def _tail(self) -> str:
        if self._stderr.closed:
            return ""
        self._stderr.seek(0, os.SEEK_END)
        self._stderr.seek(max(0, self._stderr.tell() - 4096))
        return self._stderr.read().decode(errors="replace")
