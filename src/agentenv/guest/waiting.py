"""How an environment's process waits for requests, and says that it has answered.

It sleeps on its bell, or looks at the shared word for a moment first; where there are fewer cores than environments, it
gives way between two looks (``Op.STAND_BY``). While it looks it says so in ``AWAKE``, and needs no bell; while the host
says ``QUIET``, who looks rings no bell for an answer either. Who is about to sleep takes back its word, gives way,
which orders memory, and looks once more: whatever the other side did in between, one of the two sees the other's word.
"""

from __future__ import annotations

import os
from os import read, sched_yield, write
from time import perf_counter

from agentenv.wire import slot
from agentenv.wire.slot import Op
from agentenv.wire.spin import ORDERED, STAND_US, Spin

_LOOKS = range(4)  # between two looks at the clock
_RING = (1).to_bytes(8, "little")
_TICKET, _DONE, _QUIET, _AWAKE = slot.GROUP_TICKET // 8, slot.GROUP_DONE // 8, slot.QUIET // 8, slot.AWAKE // 8


class Waiting:
    """One process's side of asking and answering."""

    def __init__(self, header: memoryview, wake: int, done: int, spin_us: float) -> None:
        """Wait at the first slot's header, as words, and at the bell ``wake``; answer by ``done``."""
        self._header, self._wake, self._done = header, wake, done
        self._usual_us = spin_us
        self._spin = Spin(spin_us)
        self._looks = self._spin.wanted
        self._gives_way = self._awake = False
        self._rang = True

    def set_pace(self, op: int) -> None:
        """Be scheduled, and wait, as one of ``slot.PACES`` says.

        Raises:
            OSError: The kernel refuses.
        """
        os.sched_setscheduler(0, os.SCHED_OTHER if op == Op.EAGER else os.SCHED_BATCH, os.sched_param(0))
        self._gives_way = op == Op.STAND_BY
        self._spin = Spin(STAND_US if self._gives_way else self._usual_us)
        self._looks = self._spin.wanted

    def for_request(self) -> int:
        """Wait; returns the ticket of the next request, 0 when nobody will ask any more."""
        header, wake = self._header, self._wake
        while True:
            if self._looks:
                if (ticket := self._look()) and ORDERED:
                    return ticket
            elif self._awake and (ticket := self._fall_asleep()):
                return ticket
            if not read(wake, 8):
                return 0
            done, ticket = header[_DONE], header[_TICKET]
            if ticket != done and ticket:  # else the bell was rung twice for one request
                return ticket

    def answered(self, ticket: int, *, last: bool = False) -> None:
        """Say that a request was answered; ``last`` if something else will be done before the next is waited for."""
        header = self._header
        header[_DONE] = ticket
        self._rang = last or not (self._awake and header[_QUIET])
        if self._rang:
            write(self._done, _RING)

    def _look(self) -> int:
        """Look for a while; returns the ticket of the next request, 0 when there is none and the bell is wanted."""
        header, spin, gives_way = self._header, self._spin, self._gives_way
        if spin.misses and not spin.tries():
            return self._fall_asleep() if self._awake else 0
        if not self._awake:
            self._awake = True
            header[_AWAKE] = 1
        ends = 0.0
        while True:
            for _ in _LOOKS:
                # Ticket 0 is none: for a machine that goes on with another host it is written first, before what was
                # done; so what was done is read first.
                done, ticket = header[_DONE], header[_TICKET]
                if ticket != done and ticket:
                    if spin.misses:
                        spin.found()
                    return ticket
                if gives_way:
                    sched_yield()
                if not self._rang and not header[_QUIET]:
                    self._ring_late()
            now = perf_counter()
            if not ends:
                ends = now + spin.span_s
            elif now > ends:
                spin.missed()
                return self._fall_asleep()

    def _fall_asleep(self) -> int:
        """Want bells again; returns the ticket of what was asked meanwhile."""
        header = self._header
        self._awake = False
        header[_AWAKE] = 0
        sched_yield()
        if not self._rang and not header[_QUIET]:
            self._ring_late()
        done, ticket = header[_DONE], header[_TICKET]
        return ticket if ticket != done else 0

    def _ring_late(self) -> None:
        """The host fell asleep while it was answered."""
        self._rang = True
        write(self._done, _RING)
