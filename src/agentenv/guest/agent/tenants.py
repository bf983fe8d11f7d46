"""A cell inside a machine as the agent holds it: the sockets of its environments, their slots and bells."""

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
from agentenv.wire.slot import SlotLayout

_RING = (1).to_bytes(8, "little")
_HELLO_S = 10.0
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
        self._wake = self._done = -1
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
        self._join("stdout", reader=out_reader)
        self._join("stderr", reader=err_reader)
        held = report.detach()
        self._join("report", reader=held, writer=held, on_end=self._end)
        held = os.dup(mine.fileno())
        self._join("control", reader=held, writer=held)

    def attach(self, message: dict[str, Any], count: int) -> int:
        """Give it slots and bells; returns the most bytes that a request will have."""
        layout = SlotLayout(**message["layout"])
        memory = os.memfd_create("agentenv-0")
        os.ftruncate(memory, count * layout.size)
        wake, done = os.eventfd(0), os.eventfd(0, os.EFD_NONBLOCK)
        self._control.setblocking(True)
        send_message(self._control, message, [memory, wake, done])
        self._replica = Replica(memoryview(mmap.mmap(memory, count * layout.size)), layout, count)
        os.close(memory)
        self._wake, self._done = wake, done
        self._loop.watch(done, READ, self._answered)
        return self._replica.max_answer

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
        return not any(self._link.busy(self._streams[name]) for name in ("stdout", "stderr", "out"))

    def close(self) -> None:
        """Let go of it: it ends when it notices."""
        for fd in (self._wake, self._done):
            if fd >= 0:
                self._loop.forget(fd)
                os.close(fd)
        self._wake = self._done = -1
        self._control.close()

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
