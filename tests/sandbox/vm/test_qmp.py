"""The client of QEMU's control protocol, against a peer that says what it is told to."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from agentenv.errors import ProtocolError
from agentenv.sandbox.runtimes.qemu.qmp import Qmp, QmpError

_GREETING = b'{"QMP": {"version": {}, "capabilities": []}}\r\n'


class _Peer:
    """The other end: each request is read, and the next of the prepared answers given."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.file = sock.makefile("rb")

    def take(self) -> dict[str, object]:
        found: dict[str, object] = json.loads(self.file.readline())
        return found

    def say(self, **message: object) -> None:
        self.sock.sendall(json.dumps(message).encode() + b"\r\n")


@pytest.fixture
def ends() -> Iterator[tuple[Qmp, _Peer]]:
    ours, theirs = socket.socketpair()
    client, peer = Qmp(ours), _Peer(theirs)
    yield client, peer
    client.close()
    peer.file.close()
    theirs.close()


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(1) as made:
        yield made


def test_greeting_and_capabilities(ends: tuple[Qmp, _Peer], pool: ThreadPoolExecutor) -> None:
    client, peer = ends
    job = pool.submit(client.greet, 5)
    peer.sock.sendall(_GREETING)
    request = peer.take()
    assert request["execute"] == "qmp_capabilities"
    peer.say(**{"return": {}, "id": request["id"]})
    job.result(5)


def test_events_are_passed_over(ends: tuple[Qmp, _Peer], pool: ThreadPoolExecutor) -> None:
    client, peer = ends
    job = pool.submit(client.execute, "query-status")
    request = peer.take()
    assert "arguments" not in request
    peer.say(event="STOP", timestamp={"seconds": 1})
    peer.say(**{"return": {"status": "paused"}, "id": request["id"]})
    assert job.result(5) == {"status": "paused"}


def test_why_it_ends_is_kept(ends: tuple[Qmp, _Peer], pool: ThreadPoolExecutor) -> None:
    """Whether it came before an answer or after the last one; and what else there is behind it."""
    client, peer = ends
    job = pool.submit(client.execute, "query-status")
    peer.say(event="SHUTDOWN", data="nothing that it says")
    peer.say(event="SHUTDOWN", data={"guest": True, "reason": "guest-shutdown"})
    peer.say(**{"return": {}, "id": peer.take()["id"]})
    job.result(5)
    peer.say(event="SHUTDOWN", data={"guest": True, "reason": "guest-reset" + "x" * 5000})
    peer.sock.sendall(b"[]\n")
    assert client.end_reason() == "guest-reset".ljust(40, "x")


def test_one_that_was_killed_gives_no_reason(ends: tuple[Qmp, _Peer]) -> None:
    client, peer = ends
    peer.sock.shutdown(socket.SHUT_WR)
    assert client.end_reason() == ""


def test_a_late_answer_is_not_the_next_ones(ends: tuple[Qmp, _Peer], pool: ThreadPoolExecutor) -> None:
    client, peer = ends
    with pytest.raises(TimeoutError):
        client.execute("stop", timeout_s=0.05)
    late = peer.take()
    job = pool.submit(client.execute, "query-status")
    request = peer.take()
    peer.say(**{"return": "late", "id": late["id"]})
    peer.say(**{"return": "right", "id": request["id"]})
    assert job.result(5) == "right"


def test_a_refusal_has_its_class_and_words(ends: tuple[Qmp, _Peer], pool: ThreadPoolExecutor) -> None:
    client, peer = ends
    job = pool.submit(client.execute, "getfd", {"fdname": "x"})
    request = peer.take()
    peer.say(error={"class": "GenericError", "desc": "No file descriptor supplied"}, id=request["id"])
    with pytest.raises(QmpError, match="getfd: No file descriptor supplied") as caught:
        job.result(5)
    assert caught.value.kind == "GenericError"


def test_descriptors_go_with_a_command(ends: tuple[Qmp, _Peer], pool: ThreadPoolExecutor) -> None:
    client, peer = ends
    read, write = os.pipe()
    job = pool.submit(client.execute, "add-fd", fds=[write])
    data, fds, _flags, _address = socket.recv_fds(peer.sock, 4096, 1)
    os.close(write)
    os.write(fds[0], b"through")
    os.close(fds[0])
    assert os.read(read, 10) == b"through"
    os.close(read)
    peer.say(**{"return": {}, "id": json.loads(data)["id"]})
    job.result(5)


def test_the_end_of_qemu_is_a_connection_error(ends: tuple[Qmp, _Peer]) -> None:
    client, peer = ends
    peer.file.close()
    peer.sock.shutdown(socket.SHUT_RDWR)
    with pytest.raises(ConnectionError):
        client.execute("stop")


@pytest.mark.parametrize("said", [b"no JSON\n", b"[1]\n", b"\xff\xfe\n"])
def test_what_is_not_the_protocol_is_refused(ends: tuple[Qmp, _Peer], said: bytes) -> None:
    client, peer = ends
    peer.sock.sendall(said)
    with pytest.raises(ProtocolError):
        client.execute("stop", timeout_s=5)


def test_a_line_without_end_is_refused(ends: tuple[Qmp, _Peer], pool: ThreadPoolExecutor) -> None:
    client, peer = ends
    pool.submit(peer.sock.sendall, b"x" * ((4 << 20) + (64 << 10)))
    with pytest.raises(ProtocolError, match="a line of more than"):
        client.execute("stop")


def test_another_program_than_qemu(ends: tuple[Qmp, _Peer]) -> None:
    client, peer = ends
    peer.say(hello="there")
    with pytest.raises(ProtocolError, match="expected a greeting"):
        client.greet(5)
