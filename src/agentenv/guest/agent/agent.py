"""The agent: the first process of a machine, and the host's only counterpart in it.

It is single-threaded, waits for everything in one loop, and runs nothing of an environment itself: a zygote of the
image's Python does, in cells like those of any other runtime. Each request of the host is a message with an "id" and
an "op", answered by one with the same id and either "value" or "error". What the host has not asked for is told as
an "event".

    warm       start the zygote, so that it is there when it is needed
    identify   take on a name, the time, new randomness
    network    bring the machine's interface up
    show       mount a drive and show directories of it
    start      make a cell
    join       take over the cell that is there: streams of another host
    attach     give it slots and bells
    task       run a program, or work on files (``tasks``)
    signal     send a task a signal
    resize     change the size of a task's terminal
    health     how the machine is
    settle     write out what is not yet on the disks
    shutdown   begin to end everything that runs, and tell how far that is; when it is over and the host has let go of
               the machine, that ends too
    part       wait for another host: this machine is about to stand still
    adopt      the first request of a host that takes this machine over: is it the one that parted from it?
    wake       the time of now, and new randomness
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import signal
import struct
import sys
import time
from collections.abc import Callable
from typing import Any

from agentenv.guest.agent.ending import Ending, power_off
from agentenv.guest.agent.health import look
from agentenv.guest.agent.limits import oom_kills
from agentenv.guest.agent.network import join_network
from agentenv.guest.agent.personal import identify, show_directories, wake
from agentenv.guest.agent.ports import Port, open_port
from agentenv.guest.agent.tasks import Tasks
from agentenv.guest.agent.tenants import Tenant
from agentenv.guest.agent.zygotes import Zygote, find_python, start_bare, start_python
from agentenv.guest.control import MAX_MESSAGE
from agentenv.guest.link import Link
from agentenv.guest.pumping import READ, Loop
from agentenv.wire.frames import RPC, Kind

_LENGTH = struct.Struct("<I")
_DRAIN_S = 1.0
_SITE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
_MAX_REQUEST = 256 << 20
_BEGINNINGS = ("warm", "start", "task")


class Agent:
    """See the module."""

    def __init__(self) -> None:
        """Wait for the host."""
        self._loop = Loop()
        self._link: Link | None = None
        self._inbox = bytearray()
        self._python: Zygote | None = None
        self._bare: Zygote | None = None
        self._tenant: Tenant | None = None
        self._tasks = Tasks(self._loop, lambda: self._link)
        self._farewell_s = 0.0
        self._ending: Ending | None = None
        self._parting = False
        self._word: str | None = None
        reader, writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.signal(signal.SIGCHLD, lambda _number, _frame: None)
        signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
        self._children = reader
        self._loop.watch(reader, READ, self._reap)
        self._port: Port = open_port(self._loop, self._welcome)

    def run(self) -> None:
        """Serve for ever."""
        while True:
            self._port.look()
            self._loop.turn(0.01 if self._farewell_s or self._ending else self._port.patience_s)
            if self._farewell_s:
                self._take_leave()
            if self._ending is not None:
                self._go_on_ending(self._ending)
            if self._parting and (self._link is None or self._link.flushed):
                self._parting = False
                if self._link is not None:
                    self._link.rest()
                    self._free_port()

    def _welcome(self, fd: int) -> None:
        """The host is there, perhaps another than before: its first request tells."""
        self._inbox.clear()
        if self._link is not None and self._link.holding:
            self._link.go_on(fd)
            return
        if self._link is not None:
            self._link.close()
        self._link = Link(self._loop, fd, max_body=_MAX_REQUEST, on_frame=self._hear, on_lost=self._lose)
        self._link.join(RPC, taker=self._take)

    def _lose(self, why: str) -> None:
        print(f"agentenv: the host {why}", flush=True)
        self._link = None
        if self._tenant is not None:
            self._tenant.close()
            self._tenant = None
        self._free_port()

    def _free_port(self) -> None:
        free = getattr(self._port, "free", None)
        if free is not None:
            free()

    def _hear(self, kind: Kind, body: bytes) -> None:
        if kind is Kind.STEP and self._tenant is not None:
            self._tenant.step(body)

    def _take(self, data: bytes) -> None:
        held = self._inbox
        held += data
        while len(held) >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(held)
            if length > MAX_MESSAGE:
                raise ValueError(f"a request of {length} bytes")
            if len(held) < _LENGTH.size + length:
                return
            message = json.loads(bytes(held[_LENGTH.size : _LENGTH.size + length]))
            del held[: _LENGTH.size + length]
            self._obey(message)

    def _obey(self, message: dict[str, Any]) -> None:
        number = message["id"]
        handlers: dict[str, Callable[[dict[str, Any], int], Any]] = {
            "warm": self._warm,
            "identify": lambda request, _number: identify(request),
            "network": lambda request, _number: join_network(request),
            "show": lambda request, _number: show_directories(request["device"], request["kind"], request["places"]),
            "start": self._start,
            "join": self._join,
            "attach": self._attach,
            "task": lambda request, _number: self._tasks.start(request),
            "signal": lambda request, _number: self._tasks.signal(request["task"], request["signal"]),
            "resize": lambda request, _number: self._tasks.resize(request["task"], request["rows"], request["columns"]),
            "health": lambda _request, _number: look(len(self._tasks)),
            "adopt": self._adopt,
            "wake": lambda request, _number: wake(request),
            "settle": lambda _request, _number: os.sync(),
            "shutdown": self._shut_down,
            "part": self._part,
        }
        if self._link is not None and self._link.holding and message["op"] != "adopt" and not self._parting:
            self._start_anew()
        try:
            if self._ending is not None and message["op"] in _BEGINNINGS:
                raise OSError(errno.ESHUTDOWN, "the machine is being shut down")
            value = handlers[message["op"]](message, number)
        except OSError as error:
            text = error.strerror or str(error)
            self._tell({"id": number, "error": f"{type(error).__name__}: {text}", "errno": error.errno, "text": text})
            return
        except Exception as error:  # the machine ends with this process: no request is worth that
            self._tell({"id": number, "error": f"{type(error).__name__}: {error}"})
            return
        if value is not _LATER:
            self._tell({"id": number, "value": value})

    def _tell(self, message: dict[str, Any]) -> None:
        if self._link is not None:
            body = json.dumps(message).encode()
            self._link.put(RPC, _LENGTH.pack(len(body)) + body)

    def _warm(self, request: dict[str, Any], number: int) -> Any:
        def tell(zygote: Zygote) -> None:
            if zygote.ended:
                said = zygote.tail().strip() or "it ended without a word"
                self._tell({"id": number, "error": f"the zygote ended: {said}", "text": said})
            else:
                self._tell({"id": number, "value": zygote.ready})

        if request["command"]:
            self._bare = Zygote(self._loop, start_bare(request["user"]), tell)
            return _LATER
        python = find_python(request["variables"]["PATH"])
        if python is None:
            raise FileNotFoundError("the image has no python3; environments need one with numpy and gymnasium")
        config = {
            "site": [_SITE],
            "path": request["path"],
            "preload": request["preload"],
            "isolated": True,
            "variables": request["variables"],
        }
        self._python = Zygote(self._loop, start_python(python, config, request["user"]), tell)
        return _LATER

    def _start(self, request: dict[str, Any], _number: int) -> None:
        zygote = self._bare if request["settings"]["command"] else self._python
        if zygote is None or self._link is None:
            raise ValueError("start before warm")
        if self._tenant is not None:
            raise ValueError("this machine has a cell already")
        self._tenant = Tenant(self._loop, self._link, request, zygote, self._over)

    def _join(self, request: dict[str, Any], _number: int) -> None:
        if self._tenant is None or self._link is None:
            raise ValueError("there is no cell to take over")
        self._tenant.rejoin(self._link, request["streams"])

    def _attach(self, request: dict[str, Any], _number: int) -> None:
        if self._tenant is None:
            raise ValueError("attach before start")
        self._tenant.attach(request["message"], request["count"])

    def _part(self, request: dict[str, Any], number: int) -> Any:
        if self._link is not None:
            self._link.hold()
        self._word = request.get("word")
        self._tell({"id": number, "value": None})
        self._parting = True
        return _LATER

    def _adopt(self, request: dict[str, Any], number: int) -> Any:
        """Whether this host is the one that parted; to any other, what was joined to streams means nothing."""
        if self._word is None or request["word"] != self._word:
            self._start_anew()
            return False
        self._word = None
        self._tell({"id": number, "value": True})
        if self._link is not None:
            self._link.release()
        return _LATER

    def _start_anew(self) -> None:
        self._word = None
        if self._link is not None:
            self._link.abandon()
        if self._tenant is not None and not self._tenant.serves:
            self._tenant.close()
            self._tenant = None

    def _shut_down(self, request: dict[str, Any], _number: int) -> dict[str, Any]:
        if self._ending is None:
            zygotes = [zygote.pid for zygote in (self._python, self._bare) if zygote is not None]
            self._ending = Ending(request["seconds"], {os.getsid(0), *zygotes})
        return self._ending.told()

    def _go_on_ending(self, ending: Ending) -> None:
        ending.look(lambda: not len(self._tasks) and (self._link is None or self._link.drained))
        # What was handed to the kernel has not arrived yet: the host lets go when it has all of it.
        if ending.over and self._link is None:
            power_off()

    def _over(self) -> None:
        """The cell has ended: the rest of what it wrote goes out, then the machine may end as well."""
        self._tell({"event": "ended", "oom_kills": oom_kills()})
        if self._ending is None:
            self._farewell_s = time.monotonic() + _DRAIN_S

    def _take_leave(self) -> None:
        silent = self._tenant is None or self._tenant.silent
        # What a command left may be many times what goes out in that time, and all of it is waited for.
        late = time.monotonic() > self._farewell_s and (self._tenant is None or self._tenant.packed)
        if self._link is None or ((silent or late) and self._link.flushed):
            self._farewell_s = 0.0
            if self._link is not None:
                self._link.send(Kind.BYE)

    def _reap(self, _events: int) -> None:
        with contextlib.suppress(BlockingIOError):
            os.read(self._children, 4096)
        with contextlib.suppress(ChildProcessError):
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                self._tasks.ended(*ended)


_LATER = object()


def main() -> None:
    """Be the first process of a machine."""
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]  # it is a text file
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w", encoding="ascii") as stream:
        stream.write("-1000")
    # Memory is counted when it is used, by the control group, as on hosts.
    with contextlib.suppress(OSError), open("/proc/sys/vm/overcommit_memory", "w", encoding="ascii") as stream:
        stream.write("1")
    try:
        Agent().run()
    except Exception as error:
        print(f"agentenv: the agent failed: {type(error).__name__}: {error}", flush=True)
        raise
