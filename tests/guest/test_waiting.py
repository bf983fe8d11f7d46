"""Waiting for requests: which bells are rung and read, whatever the host says at which moment."""

from __future__ import annotations

import os
import select
import threading
from collections.abc import Callable, Iterator

import pytest

from agentenv.guest.waiting import Waiting
from agentenv.testing.leftovers import becomes_true
from agentenv.wire import slot

TICKET, DONE, QUIET, AWAKE = (at // 8 for at in (slot.GROUP_TICKET, slot.GROUP_DONE, slot.QUIET, slot.AWAKE))
LONG_US, SHORT_US = 20e6, 50.0
RING = (1).to_bytes(8, "little")


class Sides:
    """A guest's side under test, and the words and bells that the host has."""

    def __init__(self, spin_us: float) -> None:
        self.words = memoryview(bytearray(slot.HEADER)).cast("Q")
        self.wake, self.done = os.eventfd(0), os.eventfd(0)
        self.waiting = Waiting(self.words, self.wake, self.done, spin_us)

    def rings(self) -> int:
        """How often the guest has rung since the last time."""
        readable, _, _ = select.select([self.done], [], [], 0)
        return os.eventfd_read(self.done) if readable else 0

    def later(self, wanted: Callable[[], bool], ticket: int, *, ring: bool) -> threading.Thread:
        """Once something is so, ask."""

        def ask() -> None:
            assert becomes_true(wanted, 10)
            self.words[TICKET] = ticket
            if ring:
                os.write(self.wake, RING)

        thread = threading.Thread(target=ask)
        thread.start()
        return thread


@pytest.fixture
def open_sides() -> Iterator[Callable[[float], Sides]]:
    opened: list[Sides] = []

    def open_one(spin_us: float) -> Sides:
        opened.append(Sides(spin_us))
        return opened[-1]

    yield open_one
    for sides in opened:
        os.close(sides.wake)
        os.close(sides.done)


def test_who_looks_needs_no_bell_and_rings_none_for_a_quiet_host(open_sides: Callable[[float], Sides]) -> None:
    sides = open_sides(LONG_US)
    sides.words[QUIET] = 1
    for ticket in range(1, 50):
        sides.words[TICKET] = ticket
        assert sides.waiting.for_request() == ticket
        assert sides.words[AWAKE] == 1
        sides.waiting.answered(ticket)
        assert (sides.words[DONE], sides.rings()) == (ticket, 0)


def test_who_looks_rings_for_a_host_that_sleeps(open_sides: Callable[[float], Sides]) -> None:
    sides = open_sides(LONG_US)
    sides.words[TICKET] = 1
    assert sides.waiting.for_request() == 1
    sides.waiting.answered(1)
    assert sides.rings() == 1


def test_a_host_that_falls_asleep_while_it_is_answered_is_rung_once(open_sides: Callable[[float], Sides]) -> None:
    sides = open_sides(LONG_US)
    sides.words[TICKET], sides.words[QUIET] = 1, 1
    assert sides.waiting.for_request() == 1
    sides.waiting.answered(1)
    sides.words[QUIET] = 0
    thread = sides.later(lambda: bool(select.select([sides.done], [], [], 0)[0]), 2, ring=False)
    assert sides.waiting.for_request() == 2
    thread.join()
    assert sides.rings() == 1


def test_who_falls_asleep_says_so_and_is_woken_by_its_bell(open_sides: Callable[[float], Sides]) -> None:
    sides = open_sides(SHORT_US)
    sides.words[QUIET] = 1
    sides.words[TICKET] = 1
    assert sides.waiting.for_request() == 1
    assert sides.words[AWAKE] == 1
    sides.waiting.answered(1)
    sides.words[QUIET] = 0  # asked for a ring, and then it falls asleep itself
    thread = sides.later(lambda: sides.words[AWAKE] == 0, 2, ring=True)
    assert sides.waiting.for_request() == 2
    thread.join()
    assert sides.rings() == 1
    sides.words[QUIET] = 1
    sides.waiting.answered(2)
    assert sides.rings() == 1, "a host may be quiet only to those that look"


def test_who_never_looks_is_woken_and_rings(open_sides: Callable[[float], Sides]) -> None:
    sides = open_sides(0)
    sides.words[QUIET] = 1
    for ticket in (1, 2):
        sides.words[TICKET] = ticket
        os.write(sides.wake, RING)
        assert sides.waiting.for_request() == ticket
        assert sides.words[AWAKE] == 0
        sides.waiting.answered(ticket)
        assert sides.rings() == 1


def test_a_host_that_begins_anew_is_not_taken_for_one_that_asks(open_sides: Callable[[float], Sides]) -> None:
    sides = open_sides(LONG_US)
    sides.words[TICKET], sides.words[DONE] = 0, 57
    thread = sides.later(lambda: sides.words[AWAKE] == 1, 3, ring=False)
    assert sides.waiting.for_request() == 3
    thread.join()


class Rewritten(list[int]):
    """A header that another host begins anew, the ticket first, as soon as one of its words was read."""

    def __getitem__(self, at: int) -> int:  # type: ignore[override]  # only words are read
        found = super().__getitem__(at)
        if at in (TICKET, DONE):
            self[TICKET] = self[DONE] = 0
        return found


@pytest.mark.parametrize("spin_us", [0.0, SHORT_US])
def test_a_host_that_begins_anew_while_it_is_looked_at_asks_nothing(spin_us: float) -> None:
    wake, wakes = os.pipe()
    os.write(wakes, RING)
    os.close(wakes)  # after one ring nobody will ask any more
    words = Rewritten([0] * (slot.HEADER // 8))
    words[TICKET] = words[DONE] = 57
    assert Waiting(words, wake, -1, spin_us).for_request() == 0  # type: ignore[arg-type]  # words are all it needs
    os.close(wake)


def test_a_bell_rung_twice_is_one_request(open_sides: Callable[[float], Sides]) -> None:
    sides = open_sides(0)
    sides.words[TICKET] = sides.words[DONE] = 5
    os.write(sides.wake, RING)
    thread = sides.later(lambda: not select.select([sides.wake], [], [], 0)[0], 6, ring=True)
    assert sides.waiting.for_request() == 6
    thread.join()
