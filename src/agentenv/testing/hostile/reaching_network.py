"""Attempts to reach anything over a network."""

from __future__ import annotations

import socket
from collections.abc import Mapping

from agentenv.testing.hostile.cage import reached

_AF_VSOCK, _AF_PACKET, _AF_ALG, _AF_BLUETOOTH = 40, 17, 38, 31
_TIMEOUT_S = 1.0
_NOBODY = "192.0.2.1"  # TEST-NET-1; nothing is sent, the route alone is asked for


def tcp_to_host(hints: Mapping[str, str]) -> list[str]:
    """Connect to a listener on the host's loopback and other addresses."""
    return [reached(f"tcp {address}", _tcp, address, int(hints["tcp"])) for address in _of(hints)]


def udp_to_host(hints: Mapping[str, str]) -> list[str]:
    """Get an echo from the host over UDP."""
    return [reached(f"udp {address}", _udp, address, int(hints["udp"])) for address in _of(hints)]


def _of(hints: Mapping[str, str]) -> list[str]:
    return [address for address in hints["addresses"].split(",") if address]


def _tcp(address: str, port: int) -> str:
    with socket.create_connection((address, port), _TIMEOUT_S):
        return "connected"


def _udp(address: str, port: int) -> str:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.settimeout(_TIMEOUT_S)
        sock.sendto(b"hello", (address, port))
        return f"answered {sock.recv(64)!r}"


def outside(hints: Mapping[str, str]) -> list[str]:
    """Find a way out: a route, an interface besides the loopback, a name server."""
    found = [f"interface {name}" for _, name in socket.if_nameindex() if name != "lo"]
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        found.append(reached("a route", lambda: sock.connect((_NOBODY, 9))))
    found.append(reached("a name", lambda: socket.getaddrinfo("host.invalid", 80)))
    return found


def families(hints: Mapping[str, str]) -> list[str]:
    """Make sockets of families and kinds that reach beside or below the network namespace."""
    found = [
        reached(name, _made, family, kind, 0)
        for name, family, kind in (
            ("AF_VSOCK", _AF_VSOCK, socket.SOCK_STREAM),
            ("AF_PACKET", _AF_PACKET, socket.SOCK_RAW),
            ("AF_ALG", _AF_ALG, socket.SOCK_SEQPACKET),
            ("AF_BLUETOOTH", _AF_BLUETOOTH, socket.SOCK_RAW),
            ("packet socket by its old name", socket.AF_INET, 10),
            ("raw socket", socket.AF_INET, socket.SOCK_RAW),
        )
    ]
    for protocol in (9, 12, 15, 16):  # audit, netfilter, uevents, generic
        found.append(reached(f"netlink {protocol}", _made, 16, socket.SOCK_RAW, protocol))
    return found


def _made(family: int, kind: int, protocol: int) -> str:
    with socket.socket(family, kind, protocol):
        return "made"


def own_loopback(hints: Mapping[str, str]) -> list[str]:
    """Not an attack: programs that talk to their own children over 127.0.0.1 must work."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        try:
            with socket.create_connection(server.getsockname(), _TIMEOUT_S):
                return []
        except OSError as error:
            return [f"the sandbox's own loopback does not work: {error}"]


ATTEMPTS = {attempt.__name__: attempt for attempt in (tcp_to_host, udp_to_host, outside, families, own_loopback)}
