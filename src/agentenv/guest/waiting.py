"""How an environment's process waits for requests, and says that it has answered.

It sleeps on its bell, or looks at the shared word for a moment first; where there are fewer cores than environments, it
gives way between two looks (``Op.STAND_BY``). While it looks it says so in ``AWAKE``, and needs no bell; while the host
says ``QUIET``, who looks rings no bell for an answer either. Who is about to sleep takes back its word, gives way,
which orders memory, and looks once more: whatever the other side did in between, one of the two sees the other's word.
"""

from __future__ import annotations

import os
from time import perf_counter

from agentenv.wire import slot
from agentenv.wire.slot import Op
from agentenv.wire.spin import ORDERED, STAND_US, Spin

_RING = (1).to_bytes(8, "little")
_TICKET, _DONE, _QUIET, _AWAKE = slot.GROUP_TICKET // 8, slot.GROUP_DONE // 8, slot.QUIET // 8, slot.AWAKE // 8


class Waiting:
    """One process's side of asking and answering."""

    def __init__(self, header: memoryview, wake: int, done: int, spin_us: float) -> None:
        """Wait at the first slot's header, as words, and at the bell ``wake``; answer by ``done``."""
        self._header, self._wake, self._done = header, wake, done
        self._usual_us = spin_us
        self._spin = Spin(spin_us)
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

    def for_request(self) -> int:
        """Wait; returns the ticket of the next request, 0 when nobody will ask any more."""
        header = self._header
        while True:
            if self._spin.tries():
                if (ticket := self._look()) and ORDERED:
                    return ticket
            elif self._awake and (ticket := self._fall_asleep()):
                return ticket
            if not os.read(self._wake, 8):
                return 0
            done, ticket = header[_DONE], header[_TICKET]
            if ticket and ticket != done:  # else the bell was rung twice for one request
                return ticket

    def answered(self, ticket: int, *, last: bool = False) -> None:
        """Say that a request was answered; ``last`` if something else will be done before the next is waited for."""
        header = self._header
        header[_DONE] = ticket
        self._rang = last or not (self._awake and header[_QUIET])
        if self._rang:
            os.write(self._done, _RING)

    def _look(self) -> int:
        header, spin, gives_way = self._header, self._spin, self._gives_way
        if not self._awake:
            self._awake = True
            header[_AWAKE] = 1
        ends = perf_counter() + spin.span_s
        # Ticket 0 is none: for a machine that goes on with another host it is written first, before what was done.
        while header[_DONE] == (ticket := header[_TICKET]) or not ticket:
            if gives_way:
                os.sched_yield()
            if not self._rang and not header[_QUIET]:
                self._ring_late()
            if perf_counter() > ends:
                spin.missed()
                return self._fall_asleep()
        spin.found()
        return ticket

    def _fall_asleep(self) -> int:
        """Want bells again; returns the ticket of what was asked meanwhile."""
        header = self._header
        self._awake = False
        header[_AWAKE] = 0
        os.sched_yield()
        if not self._rang and not header[_QUIET]:
            self._ring_late()
        done, ticket = header[_DONE], header[_TICKET]
        return ticket if ticket != done else 0

    def _ring_late(self) -> None:
        """The host fell asleep while it was answered."""
        self._rang = True
        os.write(self._done, _RING)
