"""What a group of the channel has: its bells and memory, made anew, given up, and never somebody else's."""

from __future__ import annotations

import errno
import os
import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from agentenv.channel import shm, spill
from agentenv.channel.contract import PeerLost
from agentenv.channel.shm import ShmChannel
from agentenv.errors import ResourceLimit
from agentenv.wire import slot
from agentenv.wire.slot import Flag, Op, plan_slot


def fail(*_: Any) -> Any:
    raise ResourceLimit(errno.EMFILE, "Too many open files")


def interrupt(*_: Any) -> Any:
    """As a handler of Ctrl-C does, wherever it is run."""
    raise KeyboardInterrupt


@pytest.fixture
def control() -> Iterator[socket.socket]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield ours


@pytest.fixture
def channel(control: socket.socket) -> Iterator[ShmChannel]:
    """Two groups whose guests never answer."""
    made = ShmChannel([1, 1], plan_slot(8, 8, final=False, variable=False), max_bytes=1 << 20)
    for index in (0, 1):
        os.close(made.attach(index, control)[0])
        made.attached(index)
    yield made
    made.close()


def rings(fd: int) -> int:
    """How often an eventfd was rung, which is taken from it."""
    os.set_blocking(fd, False)
    try:
        return int.from_bytes(os.read(fd, 8), "little")
    except BlockingIOError:
        return 0
    finally:
        os.set_blocking(fd, True)


@pytest.mark.parametrize("refused", ["first bell", "second bell", "memory", "mapping"])
def test_what_cannot_be_made_anew_leaves_a_group_its_own_descriptors(
    channel: ShmChannel, control: socket.socket, monkeypatch: pytest.MonkeyPatch, refused: str
) -> None:
    held = channel.groups[0]
    assert held is not None
    channel.abandon(0)
    before = sorted(os.listdir("/proc/self/fd"))
    real, made = shm.Bell.create, []

    def create() -> shm.Bell:
        if len(made) == ("first bell", "second bell").index(refused):
            fail()
        made.append(real())
        return made[-1]

    if refused == "memory":
        monkeypatch.setattr(shm, "create_memory", fail)
    elif refused == "mapping":
        monkeypatch.setattr(channel.arena, "attach", fail)
    else:
        monkeypatch.setattr(shm.Bell, "create", create)
    with pytest.raises(ResourceLimit):
        channel.attach(0, control)
    assert channel.groups[0] is held
    assert sorted(os.listdir("/proc/self/fd")) == before
    assert (held.wake_fd, held.done_fd) == (held.wake.writer, held.done.reader)
    monkeypatch.undo()
    os.close(channel.attach(0, control)[0])
    assert len(os.listdir("/proc/self/fd")) == len(before)


@pytest.mark.parametrize("refused", ["memory", "mapping"])
def test_who_cannot_be_retired_keeps_its_descriptors(
    channel: ShmChannel, monkeypatch: pytest.MonkeyPatch, refused: str
) -> None:
    held, before = channel.groups[0], sorted(os.listdir("/proc/self/fd"))
    monkeypatch.setattr(*((shm, "create_memory") if refused == "memory" else (channel.arena, "attach")), fail)
    with pytest.raises(ResourceLimit):
        channel.retire(0)
    assert channel.groups[0] is held
    assert sorted(os.listdir("/proc/self/fd")) == before


def test_who_is_lost_is_not_rung_and_sent_nothing(channel: ShmChannel) -> None:
    lost, other = channel.groups
    assert lost is not None
    assert other is not None
    channel.abandon(0)
    large = bytes(channel.layout.inbox_size + 1)
    channel.post(Op.CALL, [0, 1], [large, b""], timeout_s=60)
    assert (rings(lost.wake_fd), rings(other.wake_fd)) == (0, 1)
    assert channel.answered(0)
    assert not channel.answered(1)


@pytest.mark.timeout(20)
def test_nobody_sleeps_on_a_group_that_was_never_given_its_descriptors(
    channel: ShmChannel, control: socket.socket
) -> None:
    os.close(channel.attach(0, control)[0])
    channel.post(Op.STEP, [0], None, timeout_s=60)
    with pytest.raises(PeerLost) as caught:
        channel.wait()
    assert (caught.value.group, caught.value.timed_out) == (0, False)
    channel.attached(0)
    channel.post(Op.STEP, [0], None, timeout_s=60)
    assert not channel.answered(0)


def test_who_is_interrupted_while_waiting_leaves_nobody_late(
    channel: ShmChannel, monkeypatch: pytest.MonkeyPatch
) -> None:
    channel.post(Op.STEP, timeout_s=60)
    assert channel.deadline is not None
    monkeypatch.setattr(os, "read", interrupt)
    with pytest.raises(KeyboardInterrupt):
        channel.wait()
    monkeypatch.undo()
    assert channel.deadline is None
    from_another = threading.Thread(target=channel.post, args=(Op.STEP,), kwargs={"timeout_s": 60})
    from_another.start()
    from_another.join()
    assert channel.deadline is not None


def test_whoever_is_lost_leaves_the_others_their_deadline(channel: ShmChannel) -> None:
    channel.abandon(0)
    channel.post(Op.STEP, [1, 0], timeout_s=60)
    with pytest.raises(PeerLost) as caught:
        channel.wait()
    assert caught.value.group == 0
    assert channel.deadline is not None
    assert channel.late() == [1]


def test_who_is_interrupted_while_asking_gives_up_whom_it_owes_the_rest(
    channel: ShmChannel, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[bytes] = []

    def send(control: socket.socket, data: bytes) -> None:
        if sent:
            interrupt()
        sent.append(data)

    monkeypatch.setattr(spill, "send", send)
    large = bytes(channel.layout.inbox_size + 1)
    with pytest.raises(KeyboardInterrupt):
        channel.post(Op.CALL, [0, 1], [large, large], timeout_s=60)
    assert channel.deadline is None
    channel.post(Op.STEP, timeout_s=60)
    assert [channel.answered(index) for index in (0, 1)] == [False, True]


def test_who_is_interrupted_while_receiving_gives_up_whose_rest_is_to_come(
    channel: ShmChannel, monkeypatch: pytest.MonkeyPatch
) -> None:
    channel.post(Op.STEP, timeout_s=60)
    channel.status[0] = Flag.VALUE | Flag.SPILLED
    channel.arena.column(slot.OUT_LENGTH, "u8")[0] = 5
    monkeypatch.setattr(spill, "receive", interrupt)
    with pytest.raises(KeyboardInterrupt):
        channel.payload(0)
    assert [channel.answered(index) for index in (0, 1)] == [True, False]
