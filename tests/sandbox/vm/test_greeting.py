"""Saying hello to an agent: one that is there is found, whatever it says before, and one that is not is late."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator

import pytest

from agentenv.sandbox.runtimes._vm.agent import greet
from agentenv.wire.frames import HELLO, NONCE_BYTES


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield ours, theirs


def test_what_comes_before_the_answer_is_thrown_away(ends: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = ends

    def answer() -> None:
        word = theirs.recv(len(HELLO) + NONCE_BYTES)
        theirs.sendall(b"left over from somebody else" * 1000 + HELLO + bytes(NONCE_BYTES) + word)

    agent = threading.Thread(target=answer)
    agent.start()
    greet(ours, 10.0)
    agent.join()
    assert ours.gettimeout() is None


def test_one_that_reads_nothing_is_late(ends: tuple[socket.socket, socket.socket]) -> None:
    """Its kernel belongs to somebody else, who opens the port and leaves it."""
    ours, _theirs = ends
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1)  # the least there is: some of them
    failures: list[BaseException] = []

    def wait() -> None:
        try:
            greet(ours, 1.5)
        except BaseException as error:
            failures.append(error)

    host = threading.Thread(target=wait, daemon=True)
    host.start()
    host.join(20)
    assert [type(failure) for failure in failures] == [TimeoutError]


def test_one_that_says_something_else_for_ever_is_late(ends: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = ends
    over = threading.Event()

    def talk() -> None:
        theirs.settimeout(0.05)
        while not over.is_set():
            try:
                theirs.send(HELLO * 100)
            except TimeoutError:
                continue

    agent = threading.Thread(target=talk)
    agent.start()
    with pytest.raises(TimeoutError, match="did not say hello"):
        greet(ours, 0.5)
    over.set()
    agent.join()


def test_a_stream_that_ends_is_no_agent(ends: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = ends
    theirs.close()
    with pytest.raises(ConnectionError):
        greet(ours, 10.0)
