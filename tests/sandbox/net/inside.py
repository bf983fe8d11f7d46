"""The inside of a machine's network namespace: for looking at it, and for being plugged in where a machine would be."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import select
import socket
import struct
import subprocess
import time
from collections.abc import Callable
from typing import Any

from agentenv.sandbox.runtimes._net.inner import ADDRESS, MAC, TAP
from agentenv.sandbox.runtimes._net.link import NetworkLink
from agentenv.sandbox.runtimes._net.namespace import Namespace
from sandbox.net.world import World

_TUNSETIFF, _IFF_TAP, _IFF_NO_PI = 0x400454CA, 2, 0x1000
_GATEWAY_MAC = bytes.fromhex("0261656e7601")
_OWN_MAC = bytes.fromhex(MAC.replace(":", ""))
_ANSWER_S = 10.0
ICMP, UDP = 1, 17
_PING = 77


class Inside:
    """As a context manager: a frame sent is one that a machine, whatever runs in it, could have sent."""

    def __init__(self, link: NetworkLink) -> None:
        self._namespace: Namespace = link._namespace
        self._device = -1
        self.seen: list[bytes] = []

    def __enter__(self) -> Inside:
        return self

    def __exit__(self, *_: object) -> None:
        if self._device >= 0:
            os.close(self._device)

    def limits(self, world: World) -> dict[str, float]:
        """Bytes a second of each device that has a limit."""

        def look() -> list[dict[str, Any]]:
            argv = [world.programs.tc, "-j", "qdisc", "show"]
            found: list[dict[str, Any]] = json.loads(subprocess.run(argv, capture_output=True, check=True).stdout)
            return found

        listed = self._namespace.run(look)
        return {one["dev"]: one["options"]["rate"] for one in listed if one["kind"] == "tbf"}

    def plug_in(self) -> None:
        """Be the machine."""

        def open_device() -> int:
            fd = os.open("/dev/net/tun", os.O_RDWR | os.O_CLOEXEC | os.O_NONBLOCK)
            fcntl.ioctl(fd, _TUNSETIFF, struct.pack("16sH22x", TAP.encode(), _IFF_TAP | _IFF_NO_PI))
            return fd

        self._device = self._namespace.run(open_device)

    def send(self, packet: bytes, *, kind: int = 0x0800) -> None:
        """Send an IP packet."""
        os.write(self._device, _GATEWAY_MAC + _OWN_MAC + struct.pack("!H", kind) + packet)

    def ask(self, address: str, port: int, *, source: str = ADDRESS, own_port: int = 4000) -> None:
        """Send a datagram."""
        self.send(datagram(source, address, own_port, port))

    def answer(self, address: str, port: int, own_port: int) -> str:
        """Ask until there is an answer: "open" where the other end gave it, "refused" where it was forbidden."""
        return self._insist(
            datagram(ADDRESS, address, own_port, port), lambda frame: _verdict(frame, address, UDP, own_port)
        )

    def ping(self, address: str) -> str:
        """Ping until there is an answer, as above."""
        return self._insist(echo_request(ADDRESS, address), lambda frame: _verdict(frame, address, ICMP, _PING))

    def _insist(self, question: bytes, judge: Callable[[bytes], str]) -> str:
        deadline = time.monotonic() + _ANSWER_S
        while time.monotonic() < deadline:
            # More than once: what comes back before the device is known to be plugged in is lost.
            self.send(question)
            for frame in self.receive(1.0):
                if verdict := judge(frame):
                    return verdict
        return "silent"

    def receive(self, within_s: float) -> list[bytes]:
        """What has come, the first of it within some time."""
        poller = select.poll()
        poller.register(self._device, select.POLLIN)
        found = []
        if poller.poll(within_s * 1000):
            with contextlib.suppress(BlockingIOError):
                while True:
                    found.append(os.read(self._device, 4096))
        self.seen += found
        return found


def datagram(source: str, target: str, own_port: int, port: int, body: bytes = b"hello") -> bytes:
    """A UDP packet."""
    return packet(source, target, UDP, struct.pack("!HHHH", own_port, port, 8 + len(body), 0) + body)


def echo_request(source: str, target: str) -> bytes:
    """A ping."""
    head = struct.pack("!BBHHH", 8, 0, 0, _PING, 1)
    return packet(source, target, ICMP, struct.pack("!BBHHH", 8, 0, _checksum(head), _PING, 1))


def packet(source: str, target: str, protocol: int, body: bytes) -> bytes:
    """An IPv4 packet."""
    ends = socket.inet_aton(source) + socket.inet_aton(target)
    head = struct.pack("!BBHHHBBH", 0x45, 0, 20 + len(body), 1, 0, 64, protocol, 0) + ends
    return head[:10] + struct.pack("!H", _checksum(head)) + head[12:] + body


def _checksum(data: bytes) -> int:
    total = sum(struct.unpack(f"!{len(data) // 2}H", data))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF


def _verdict(frame: bytes, address: str, protocol: int, name: int) -> str:
    """What a frame says of a question, which is known by its own port, or its name where it is a ping."""
    if frame[12:14] != b"\x08\x00":
        return ""
    at = 2 if protocol == UDP else 4
    kind, source, body = frame[23], socket.inet_ntoa(frame[26:30]), frame[34:]
    if kind == protocol and source == address and struct.unpack_from("!H", body, at)[0] == name:
        return "open"
    about = 28 if protocol == UDP else 32  # behind its own head, and that of the packet it is about
    forbidden = kind == ICMP and body[:2] == b"\x03\x0d" and struct.unpack_from("!H", body, about)[0] == name
    return "refused" if forbidden else ""
