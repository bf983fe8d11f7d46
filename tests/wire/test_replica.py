"""Replicas: what one side writes into its slots, the other finds in its own; and nothing else can be made to happen."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentenv.wire import slot
from agentenv.wire.replica import Replica
from agentenv.wire.slot import Flag, Op, SlotLayout, plan_slot


class Side:
    """Slots and a replica of them."""

    def __init__(self, layout: SlotLayout, count: int) -> None:
        self.layout, self.count = layout, count
        self.array = np.zeros(layout.size * count, np.uint8)
        self.replica = Replica(memoryview(self.array), layout, count)  # type: ignore[arg-type]  # arrays are buffers

    def words(self, index: int) -> np.ndarray:
        base = index * self.layout.size
        return self.array[base : base + slot.HEADER].view("u8")

    def area(self, index: int, start: int, stop: int) -> np.ndarray:
        base = index * self.layout.size
        return self.array[base + start : base + stop]


def ask(host: Side, ticket: int, due: list[int], payload: bytes) -> None:
    layout = host.layout
    for index in due:
        words = host.words(index)
        words[slot.TICKET // 8], words[slot.OP // 8], words[slot.IN_LENGTH // 8] = ticket, Op.STEP, len(payload)
        host.area(index, layout.action, layout.observation)[:] = index + 1
        room = host.area(index, layout.inbox, layout.inbox + layout.inbox_size)
        if len(payload) <= layout.inbox_size:
            room[: len(payload)] = np.frombuffer(payload, np.uint8)
    host.words(0)[slot.GROUP_TICKET // 8] = ticket


def answer(guest: Side, index: int, status: int, payload: bytes) -> None:
    layout = guest.layout
    words = guest.words(index)
    words[slot.STATUS // 8], words[slot.DIGEST // 8], words[slot.OUT_LENGTH // 8] = status, 77 + index, len(payload)
    words[slot.REWARD // 8 : slot.REWARD // 8 + 1].view("f8")[0] = 1.5 + index
    guest.area(index, layout.observation, layout.inbox)[:] = 100 + index
    if len(payload) <= layout.outbox_size:
        guest.area(index, layout.outbox, layout.outbox + len(payload))[:] = np.frombuffer(payload, np.uint8)


@pytest.mark.parametrize("final", [False, True])
@pytest.mark.parametrize(("count", "due"), [(1, [0]), (3, [0, 1, 2]), (3, [0, 2])])
@pytest.mark.parametrize("size", [0, 13, 5000])
def test_requests_and_answers_cross(final: bool, count: int, due: list[int], size: int) -> None:
    layout = plan_slot(12, 40, final=final, variable=False)
    host, guest = Side(layout, count), Side(layout, count)
    ask(host, 5, due, bytes(range(size % 256)) if size < 256 else b"x" * size)
    guest.replica.put_request(host.replica.request())
    for index in due:
        assert guest.words(index)[slot.OP // 8] == Op.STEP
        assert guest.words(index)[slot.IN_LENGTH // 8] == (size if size >= 256 else size % 256)
        assert (guest.area(index, layout.action, layout.observation) == index + 1).all()
    assert not guest.replica.answered
    status = int(Flag.INFO | (Flag.FINAL if final else 0) | (Flag.SPILLED if size > layout.outbox_size else 0))
    for index in due:
        answer(guest, index, status, b"y" * size)
    guest.words(0)[slot.GROUP_DONE // 8] = 5
    assert guest.replica.answered
    assert host.replica.put_answer(guest.replica.answer())
    assert host.words(0)[slot.GROUP_DONE // 8] == 5
    for index in range(count):
        if index in due:
            assert (
                host.words(index)[slot.STATUS // 8 : slot.HEADER // 8] == guest.words(index)[slot.STATUS // 8 :]
            ).all()
            assert (host.area(index, layout.observation, layout.inbox) == 100 + index).all()
            if size <= layout.outbox_size:
                assert (host.area(index, layout.outbox, layout.outbox + size) == ord("y")).all()
        else:
            assert not host.area(index, slot.STATUS, layout.size).any()


def test_a_late_answer_is_passed_over() -> None:
    layout = plan_slot(8, 8, final=False, variable=False)
    host, guest = Side(layout, 1), Side(layout, 1)
    ask(host, 5, [0], b"")
    guest.replica.put_request(host.replica.request())
    answer(guest, 0, 0, b"")
    late = guest.replica.answer()
    ask(host, 6, [0], b"")
    before = host.array.copy()
    assert not host.replica.put_answer(late)
    assert (host.array == before).all()


@given(st.data())
def test_nothing_that_comes_reaches_beyond_the_areas_of_answers(data: st.DataObject) -> None:
    layout = plan_slot(8, 24, final=True, variable=False)
    host, guest = Side(layout, 2), Side(layout, 2)
    ask(host, 9, [0, 1], b"abc")
    guest.replica.put_request(host.replica.request())
    for index in (0, 1):
        answer(guest, index, int(Flag.INFO), b"hello")
    body = bytearray(guest.replica.answer())
    for _ in range(data.draw(st.integers(0, 4))):
        body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
    body = body[: data.draw(st.integers(0, len(body)))] + data.draw(st.binary(max_size=9))
    before = host.array.copy()
    try:
        taken = host.replica.put_answer(bytes(body))
    except ValueError:
        taken = False
    for index in (0, 1):
        assert (host.area(index, 0, slot.GROUP_DONE) == before[index * layout.size :][: slot.GROUP_DONE]).all()
        start = index * layout.size + layout.action
        assert (
            host.area(index, layout.action, layout.observation) == before[start:][: layout.observation - layout.action]
        ).all()
    assert bool(host.words(0)[slot.GROUP_DONE // 8] == 9) == taken
