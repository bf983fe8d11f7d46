"""Links: bytes come through whole and in order, and whoever does not read holds up nobody else."""

from __future__ import annotations

import contextlib
import os
import random
import select
import socket
import time
from collections.abc import Callable, Iterator
from functools import partial

import pytest

from agentenv.guest.link import Link
from agentenv.guest.pumping import Loop
from agentenv.wire.frames import CHUNK, RPC, WINDOW, Kind, frame


class Pair:
    """Two links joined by a socket, on one loop."""

    def __init__(self) -> None:
        self.loop = Loop()
        self.ends = socket.socketpair()
        self.frames: list[tuple[int, Kind, bytes]] = []
        self.lost: list[tuple[int, str]] = []
        self.links = [
            Link(
                self.loop,
                end.detach(),
                max_body=CHUNK,
                on_frame=partial(self._note, number),
                on_lost=partial(self._lose, number),
            )
            for number, end in enumerate(self.ends)
        ]

    def _note(self, number: int, kind: Kind, body: bytes) -> None:
        self.frames.append((number, kind, body))

    def _lose(self, number: int, why: str) -> None:
        self.lost.append((number, why))

    def until(self, condition: Callable[[], bool], within_s: float = 10.0) -> None:
        ends = time.monotonic() + within_s
        while not condition():
            assert time.monotonic() < ends, "it never came to be"
            self.loop.turn(0.05)

    def idle(self, turns: int = 20) -> None:
        for _ in range(turns):
            self.loop.turn(0.005)


def readable(fd: int) -> bool:
    poller = select.poll()
    poller.register(fd, select.POLLIN)
    return bool(poller.poll(0))


@pytest.fixture
def pair() -> Iterator[Pair]:
    made = Pair()
    before = set(os.listdir("/proc/self/fd"))
    yield made
    for link in made.links:
        link.close()
    made.loop.close()
    assert set(os.listdir("/proc/self/fd")) <= before


def piped(pair: Pair, stream: int = 3) -> tuple[int, int]:
    """A pipe that leads from one side to the other; its ends."""
    near_reader, near_writer = os.pipe()
    far_reader, far_writer = os.pipe()
    pair.links[0].join(stream, reader=near_reader)
    pair.links[1].join(stream, writer=far_writer)
    os.set_blocking(far_reader, False)
    os.set_blocking(near_writer, False)
    return near_writer, far_reader


def test_a_megabyte_comes_through_in_order_and_then_the_end(pair: Pair) -> None:
    data = random.Random(1).randbytes(1 << 20)
    near, far = piped(pair)
    sent, received, ended = 0, bytearray(), False

    def move() -> bool:
        nonlocal sent, near, ended
        if near >= 0:
            with contextlib.suppress(BlockingIOError):
                sent += os.write(near, data[sent : sent + 50_000])
            if sent == len(data):
                os.close(near)
                near = -1
        try:
            part = os.read(far, 60_000)
            ended = not part
            received.extend(part)
        except BlockingIOError:
            pass
        return ended

    pair.until(move)
    os.close(far)
    assert bytes(received) == data


def test_who_does_not_read_holds_up_nobody_else(pair: Pair) -> None:
    near, far = piped(pair, 3)
    total = 0
    for _ in range(400):
        try:
            total += os.write(near, bytes(1 << 16))
        except BlockingIOError:
            pair.loop.turn(0.002)
    # Two pipes, a window on the way, what was read already: bounded, however much is offered.
    assert total <= 2 * 65536 + 2 * WINDOW + 2 * CHUNK
    other, end = piped(pair, 4)
    os.write(other, b"quick")
    found = bytearray()

    def read() -> bool:
        with contextlib.suppress(BlockingIOError):
            found.extend(os.read(end, 100))
        return bytes(found) == b"quick"

    pair.until(read)
    for fd in (near, far, other, end):
        os.close(fd)


def test_both_ways_over_sockets_and_half_closed(pair: Pair) -> None:
    (mine, near), (far, theirs) = socket.socketpair(), socket.socketpair()
    held = near.detach()
    pair.links[0].join(5, reader=held, writer=held)
    held = far.detach()
    pair.links[1].join(5, reader=held, writer=held)
    mine.sendall(b"ping")
    theirs.setblocking(False)
    found = bytearray()

    def read() -> bool:
        with contextlib.suppress(BlockingIOError):
            found.extend(theirs.recv(100))
        return bytes(found) == b"ping"

    pair.until(read)
    mine.shutdown(socket.SHUT_WR)
    pair.idle()
    assert theirs.recv(10) == b""
    theirs.setblocking(True)
    theirs.sendall(b"still here")
    theirs.close()
    pair.idle()
    assert mine.recv(100) == b"still here"
    assert mine.recv(100) == b""
    mine.close()


def test_frames_of_other_kinds_and_messages(pair: Pair) -> None:
    taken: list[bytes] = []
    pair.links[1].join(0, taker=taken.append)
    pair.links[0].put(0, b"a" * (CHUNK + 5))
    pair.links[0].send(Kind.STEP, body=b"step")
    pair.until(lambda: bool(pair.frames))
    assert pair.frames == [(1, Kind.STEP, b"step")]
    assert b"".join(taken) == b"a" * (CHUNK + 5)


def test_the_end_of_a_reader_is_told(pair: Pair) -> None:
    reader, writer = os.pipe()
    ended: list[bool] = []
    pair.links[0].join(2, reader=reader, on_end=lambda: ended.append(True))
    os.close(writer)
    pair.until(lambda: bool(ended))
    assert not pair.links[0].busy(2)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (frame(Kind.DATA, 3, b"x" * (CHUNK - 1)) * 8, "more bytes on a stream than were granted"),
        (b"\xff" * 64, "broke the protocol"),
    ],
)
def test_what_is_not_the_protocol_ends_it(pair: Pair, data: bytes, words: str) -> None:
    reader, writer = os.pipe()  # nobody reads it
    pair.links[1].join(3, writer=writer)
    other = socket.socket(fileno=os.dup(pair.links[0]._fd))
    other.setblocking(True)
    other.settimeout(0.2)
    try:
        for start in range(0, len(data), 4096):
            other.sendall(data[start : start + 4096])
            pair.loop.turn(0.001)
    except OSError:
        pass
    pair.until(lambda: bool(pair.lost))
    assert words in pair.lost[0][1]
    assert not pair.links[1].open
    other.close()
    os.close(reader)


def test_a_link_that_rested_loses_no_byte(pair: Pair) -> None:
    """Both sides let go of their descriptor in the middle of a stream, and go on with another."""
    data = random.Random(2).randbytes(3 << 20)
    near, far = piped(pair)
    got, sent = bytearray(), 0

    def carried(so_much: int) -> bool:
        nonlocal sent
        with contextlib.suppress(BlockingIOError):
            while sent < len(data):
                sent += os.write(near, data[sent : sent + CHUNK])
        with contextlib.suppress(BlockingIOError):
            got.extend(os.read(far, CHUNK))
        return len(got) >= so_much

    for part in range(1, 6):
        pair.until(partial(carried, part * len(data) // 6))
        for link in pair.links:
            link.hold()
        pair.until(lambda: all(link.flushed for link in pair.links))
        pair.idle()  # what is on its way arrives
        for link in pair.links:
            link.rest()
            assert not link.open
        for link, end in zip(pair.links, socket.socketpair(), strict=True):
            link.go_on(end.detach())
        pair.idle()
        assert all(link.holding for link in pair.links)
        for link in pair.links:
            link.release()
    pair.until(lambda: carried(len(data)))
    assert bytes(got) == data
    os.close(near)
    os.close(far)


def test_one_that_holds_carries_requests_and_nothing_else(pair: Pair) -> None:
    near, far = piped(pair)
    heard = bytearray()
    pair.links[1].join(RPC, taker=heard.extend)
    pair.links[0].hold()
    os.write(near, b"later")
    pair.links[0].send(Kind.STEP, body=b"later too")
    pair.links[0].put(RPC, b"now")
    pair.until(lambda: bool(heard))
    pair.idle()
    assert bytes(heard) == b"now"
    assert pair.frames == []
    pair.links[0].release()
    pair.until(lambda: bool(pair.frames))
    pair.until(lambda: readable(far))
    assert os.read(far, 100) == b"later"
    os.close(near)
    os.close(far)


def test_an_abandoned_stream_goes_to_whoever_takes_orphans(pair: Pair) -> None:
    reader, writer = os.pipe()
    orphans: list[int] = []
    pair.links[0].join(3, reader=reader, on_orphan=orphans.append)
    pair.links[0].hold()
    pair.links[0].abandon()
    assert orphans == [reader]
    assert not pair.links[0].joined(3)
    os.write(writer, b"still there")
    assert os.read(reader, 100) == b"still there"
    os.close(reader)
    os.close(writer)


def test_the_end_of_a_reader_is_told_to_the_writer(pair: Pair) -> None:
    """Nobody takes the bytes any more: whoever writes them gets a broken pipe."""
    near, far = piped(pair)
    os.close(far)
    os.write(near, b"into the void")

    def broken() -> bool:
        try:
            os.write(near, b"more")
        except BrokenPipeError:
            return True
        return False

    pair.until(broken)
    assert not any(link.joined(3) for link in pair.links)
    os.close(near)


def test_a_stream_that_is_cut_ends_at_both_ends(pair: Pair) -> None:
    near, far = piped(pair)
    pair.links[1].cut(3)
    pair.until(lambda: not pair.links[0].joined(3))
    with pytest.raises(BrokenPipeError):
        os.write(near, b"x")
    assert os.read(far, 10) == b""
    os.close(near)
    os.close(far)


def test_who_sends_more_than_there_is_room_for_is_cut_off(pair: Pair) -> None:
    reader, writer = os.pipe()
    pair.links[1].join(3, writer=writer, most_bytes=100)
    pair.links[0].put(3, b"x" * 100)
    pair.until(lambda: readable(reader))
    assert not pair.lost
    pair.links[0].put(3, b"x")
    pair.until(lambda: bool(pair.lost))
    assert "more bytes on a stream than there is room for" in pair.lost[0][1]
    os.close(reader)


def test_frames_without_a_body_are_looked_at_in_turns_with_everybody_elses(pair: Pair) -> None:
    """Whoever sends as many as go in at once takes no more than its turn of those who share the loop."""
    with socket.socket(fileno=os.dup(pair.links[0]._fd)) as raw:
        raw.setblocking(False)
        sent = raw.send(frame(Kind.BYE) * 10_000) // len(frame(Kind.BYE))
    assert sent > 8_000
    pair.loop.turn(1.0)
    assert 0 < len(pair.frames) <= 2_048
    pair.until(lambda: len(pair.frames) >= sent - 1)


def test_a_frame_that_is_large_is_read_in_large_pieces(pair: Pair) -> None:
    pair.links[1].accept(4 << 20)
    pair.links[0].send(Kind.ANSWER, 0, bytes(4 << 20))
    turns = 0
    while not pair.frames:
        pair.loop.turn(1.0)
        turns += 1
        assert turns < 200
    assert len(pair.frames[0][2]) == 4 << 20
