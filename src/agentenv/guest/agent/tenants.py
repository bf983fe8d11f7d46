"""A cell inside a machine as the agent holds it: the sockets of its environments, their slots and bells.

It outlives the host it was made for: in a copy of the machine another one joins its sockets to streams of its own, and
its slots go on where they were.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import select
import signal
import socket
import tarfile
from collections.abc import Callable
from typing import Any

from agentenv.guest import confine
from agentenv.guest.agent.limits import child_of, put_under
from agentenv.guest.agent.zygotes import Zygote
from agentenv.guest.control import receive_message, send_message
from agentenv.guest.link import Link
from agentenv.guest.pumping import READ, Loop
from agentenv.wire.frames import Kind
from agentenv.wire.replica import Replica
from agentenv.wire.slot import GROUP_DONE, GROUP_TICKET, HEADER, SlotLayout

_RING = (1).to_bytes(8, "little")
_HELLO_S = 10.0
_OF_EACH_HOST = ("reseed", "spin_us")
OUT = "/run/agentenv/out"


class Tenant:
    """One cell, from its making to its end.

    Attributes:
        over: Whether its first process is gone.
    """

    def __init__(
        self, loop: Loop, link: Link, request: dict[str, Any], zygote: Zygote, on_end: Callable[[], None]
    ) -> None:
        """Have a zygote make it, and join its sockets to streams.

        Args:
            loop: Where its bell is watched.
            link: The way to the host.
            request: "settings" for the cell, "nested", "network", "pids", "out", "disk_mb", and "streams": numbers for
                control, stdout, stderr, report and out.
            zygote: Where it comes from.
            on_end: Called when it is over.

        Raises:
            OSError: It cannot be made.
        """
        self._loop, self._link, self._on_end = loop, link, on_end
        self._replica: Replica | None = None
        self._words = memoryview(b"")
        self._attached: dict[str, Any] = {}
        self._wake = self._done = -1
        self._held: dict[str, int] = {}
        self.over = False
        self._streams: dict[str, int] = request["streams"]
        self._has_out = request["out"]
        if self._has_out:
            make_out(request["disk_mb"])
        mine, theirs = socket.socketpair()
        try:
            zygote.spawn(theirs, nested=request["nested"], network=request["network"])
        finally:
            theirs.close()
        mine.settimeout(_HELLO_S)
        message, _ = receive_message(mine)
        if "failed" in message:
            raise OSError(f"a cell cannot be made: {message['failed']}")
        cell = child_of(zygote.pid)
        if cell is not None:
            put_under(cell, request["pids"])
        report, report_theirs = socket.socketpair()
        out_reader, out_writer = os.pipe()
        err_reader, err_writer = os.pipe()
        try:
            send_message(mine, request["settings"], [out_writer, err_writer, report_theirs.fileno()])
        finally:
            os.close(out_writer)
            os.close(err_writer)
            report_theirs.close()
        mine.settimeout(None)
        self._control = mine
        self._held = {
            "stdout": out_reader,
            "stderr": err_reader,
            "report": report.detach(),
            "control": os.dup(mine.fileno()),
        }
        self._join_all()

    @property
    def serves(self) -> bool:
        """Whether it has slots, and goes on with another host."""
        return self._replica is not None and not self.over

    def rejoin(self, link: Link, streams: dict[str, int]) -> None:
        """Belong to another host, whose slots are empty yet."""
        self._link, self._streams = link, streams
        self._join_all()
        for at in (GROUP_TICKET // 8, GROUP_DONE // 8):
            self._words[at] = 0

    def attach(self, message: dict[str, Any], count: int) -> None:
        """Give it slots and bells, once; another host must ask for the same.

        Raises:
            ValueError: It does not.
        """
        wanted = {key: value for key, value in message.items() if key not in _OF_EACH_HOST}
        if self._replica is not None:
            if wanted != self._attached:
                raise ValueError(f"it serves {self._attached}, and is now asked to serve {wanted}")
            return
        self._attached = wanted
        layout = SlotLayout(**message["layout"])
        memory = os.memfd_create("agentenv-0")
        os.ftruncate(memory, count * layout.size)
        wake, done = os.eventfd(0), os.eventfd(0, os.EFD_NONBLOCK)
        self._control.setblocking(True)
        send_message(self._control, message, [memory, wake, done])
        shared = memoryview(mmap.mmap(memory, count * layout.size))
        self._replica, self._words = Replica(shared, layout, count), shared[:HEADER].cast("Q")
        os.close(memory)
        self._wake, self._done = wake, done
        self._loop.watch(done, READ, self._answered)

    def step(self, body: bytes) -> None:
        """Pass on what the host asks."""
        if self._replica is not None:
            self._replica.put_request(body)
            poller = select.poll()
            poller.register(self._wake, select.POLLOUT)
            if poller.poll(0):  # else it was made to look full, and rings already
                os.write(self._wake, _RING)

    @property
    def silent(self) -> bool:
        """Whether everything it has written was passed on."""
        return self.packed and not any(self._link.busy(self._streams[name]) for name in ("stdout", "stderr"))

    @property
    def packed(self) -> bool:
        """Whether all of what it left was passed on."""
        return not self._link.busy(self._streams["out"])

    def close(self) -> None:
        """Let go of it: it ends when it notices."""
        for fd in (self._wake, self._done):
            if fd >= 0:
                self._loop.forget(fd)
                os.close(fd)
        self._wake = self._done = -1
        for fd in self._held.values():
            os.close(fd)
        self._held.clear()
        self._control.close()

    def _join_all(self) -> None:
        """Copies of its descriptors: a stream that is over takes nothing with it."""
        for name in ("stdout", "stderr"):
            self._join(name, reader=os.dup(self._held[name]))
        for name, on_end in (("report", self._end), ("control", None)):
            held = os.dup(self._held[name])
            self._join(name, reader=held, writer=held, on_end=on_end)

    def _join(self, name: str, **descriptors: Any) -> None:
        self._link.join(self._streams[name], **descriptors)

    def _answered(self, _events: int) -> None:
        with contextlib.suppress(BlockingIOError):  # its other end may take its rings back
            os.read(self._done, 8)
        if self._replica is not None and self._replica.answered:
            self._link.send(Kind.ANSWER, body=self._replica.answer())

    def _end(self) -> None:
        self.over = True
        if self._has_out:
            self._join("out", reader=pack_out())
        self._on_end()


def make_out(size_mb: int) -> None:
    """A directory of limited size for what a command leaves behind; it is shown as /out."""
    os.makedirs(OUT, exist_ok=True)
    confine.mount_tmpfs(OUT, size_mb << 20)
    os.makedirs("/out", exist_ok=True)


def pack_out() -> int:
    """The read end of a pipe that gives what lies in there as a tar archive."""
    reader, writer = os.pipe()
    if os.fork() == 0:
        try:
            signal.set_wakeup_fd(-1)
            os.closerange(3, writer)
            os.closerange(writer + 1, 1 << 16)
            with os.fdopen(writer, "wb") as stream, tarfile.open(fileobj=stream, mode="w|") as archive:
                archive.add(OUT, ".")
        finally:
            os._exit(0)
    os.close(writer)
    return reader
