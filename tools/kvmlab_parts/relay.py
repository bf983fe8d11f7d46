"""Carries streams and signals between us and a command in a machine, until it ends.

One loop around poll(2). It never blocks on a stream: a reader of our output who stops reading stops the command, as a
pipe would, and signals and the deadline still work.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import time

from .errors import TIMED_OUT, LabError
from .job import Job
from .outlet import CHUNK, Outlet
from .qemu import Machine
from .signals import catching
from .stream import Stream

BOOT_S = 180.0
"""A machine that is not up by then will not come up: it takes 4 s, and many times as long where all is busy."""
STILL_S = 120.0
"""A machine that says nothing for so long stands still: it speaks every two seconds of its own clock."""
_ESCAPE = b"\x1d"


class Relay:
    """One run of a job in its machine.

    Args:
        job: What was asked.
        machine: Where it runs.
        deadline: The machine is ended at this time of the monotonic clock; None for never.
        still_s: It is lost after so many seconds without a sign of life.
    """

    def __init__(self, job: Job, machine: Machine, deadline: float | None = None, still_s: float = STILL_S) -> None:
        links = machine.links
        self._job, self._machine = job, machine
        self._control = links["control"]
        self._input = links["stdin"]
        self._outlets = [Outlet(links[name], sink, Stream(job.token)) for name, sink in (("stdout", 1), ("stderr", 2))]
        self._inbound = b""
        self._reading = True
        self._heard = b""
        self._up = self._gone = False
        self._code: int | None = None
        self._signals = 0
        self._still_s = still_s
        self._alive_by = time.monotonic() + BOOT_S
        self._deadline = deadline

    def run(self) -> int:
        """Carry on until the command has ended and all it wrote is passed on; returns the exit code.

        Raises:
            LabError: The machine did not come up, or was gone before the command had ended.
        """
        with catching() as arrived:
            while self._code is None or not all(outlet.done for outlet in self._outlets):
                ended = self._turn(arrived)
                if ended is not None:
                    return ended
        return self._code

    def _turn(self, arrived: int) -> int | None:
        """Wait for something, and see to it; returns an exit code where it ends before the command does."""
        ready = self._wait(arrived)
        if arrived in ready:
            for number in os.read(arrived, CHUNK):
                if self._pass_on(number):
                    return 128 + number
        now = time.monotonic()
        if self._deadline is not None and now >= self._deadline:
            return TIMED_OUT
        if self._control.fileno() in ready:
            self._listen()
        if now >= self._alive_by and not self._gone:
            if not self._up:
                raise LabError(f"expected the machine to be up within {BOOT_S:g} s, it is not; it printed", self._log())
            said = f"expected a sign of life of the machine every {self._still_s:g} s, it stands still; it printed"
            raise LabError(said, self._log())
        try:
            for outlet in self._outlets:
                if outlet.source.fileno() in ready:
                    outlet.receive()
                if outlet.sink in ready:
                    outlet.write()
        except BrokenPipeError:
            return 128 + signal.SIGPIPE
        except OSError as error:
            raise LabError(f"expected to pass the command's output on: {error}") from error
        if ready & {0, self._input.fileno()} and self._carry_input(ready):
            return 128 + signal.SIGKILL
        if self._gone and all(outlet.closed and not outlet.pending for outlet in self._outlets):
            raise LabError("expected the machine to run until the command ends, it did not; it printed", self._log())
        return None

    def _wait(self, arrived: int) -> set[int]:
        """The descriptors that are ready among those that matter now; none at the next deadline."""
        wanted = {arrived: select.POLLIN}
        if not self._gone:
            wanted[self._control.fileno()] = select.POLLIN
        for outlet in self._outlets:
            if not outlet.closed and len(outlet.pending) < CHUNK:
                wanted[outlet.source.fileno()] = select.POLLIN
            if outlet.pending:
                wanted[outlet.sink] = select.POLLOUT
        if self._inbound:
            wanted[self._input.fileno()] = select.POLLOUT
        elif self._up and self._reading:
            wanted[0] = select.POLLIN
        poll = select.poll()
        for descriptor, events in wanted.items():
            poll.register(descriptor, events)
        ends = [end for end in (self._deadline, None if self._gone else self._alive_by) if end is not None]
        left = min(ends) - time.monotonic() if ends else None
        return {descriptor for descriptor, _ in poll.poll(None if left is None else max(0, left) * 1000 + 1)}

    def _pass_on(self, number: int) -> bool:
        """Give a signal to the command, or to the terminal its new size; true where it is to end the machine."""
        if number == signal.SIGWINCH:
            columns, rows = os.get_terminal_size(1)
            self._tell(f"size {rows} {columns}")
            return False
        self._signals += 1
        if self._signals > 1 or not self._up:
            return True
        self._tell(f"signal {signal.Signals(number).name.removeprefix('SIG')}")
        return False

    def _tell(self, line: str) -> None:
        with contextlib.suppress(OSError):  # it is gone, which is noticed elsewhere
            self._control.send(line.encode() + b"\n")

    def _listen(self) -> None:
        try:
            data = self._control.recv(CHUNK)
        except OSError:
            data = b""
        self._gone = not data
        *lines, self._heard = (self._heard + data).split(b"\n")
        for line in lines:
            verb, _, value = line.partition(b" ")
            if verb == b"up":
                self._up = True
                if self._job.tty:
                    self._pass_on(signal.SIGWINCH)
            elif verb == b"exit":
                self._code = int(value)
        if self._up:
            self._alive_by = time.monotonic() + self._still_s

    def _carry_input(self, ready: set[int]) -> bool:
        """Read our standard input, or write what was read of it; true where the escape was typed."""
        if 0 in ready and not self._inbound:
            try:
                self._inbound = os.read(0, CHUNK)
            except OSError:  # such as that of a terminal whose foreground we are not in
                self._inbound = b""
            if self._job.tty and _ESCAPE in self._inbound:
                return True
            self._reading = bool(self._inbound)
        if self._inbound:
            try:
                self._inbound = self._inbound[self._input.send(self._inbound) :]
            except BlockingIOError:
                pass
            except OSError:  # nobody reads it any more
                self._inbound, self._reading = b"", False
        if not self._reading and not self._inbound and not self._job.tty:
            with contextlib.suppress(OSError):
                self._input.shutdown(socket.SHUT_WR)
        return False

    def _log(self) -> str:
        return (self._machine.complaints + self._machine.console).decode(errors="replace")
