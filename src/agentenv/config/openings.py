"""Entries of a network's allow and deny lists: which addresses, which protocol, which ports.

Pure: it parses text and resolves nothing. Names are refused, because what a name means is decided by whoever answers
for it, at any moment anew; a wall that follows their answers is none.
"""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass
from ipaddress import IPv4Network
from typing import Literal

INTERNET = "internet"
"""In an allow list: everything public."""
MOST_PORT = 65535

_FORM = re.compile(r"(?:(?P<protocol>[A-Za-z]+)://)?(?P<where>[^:]*)(?::(?P<ports>.*))?", re.DOTALL)
_PORTS = re.compile(r"([0-9]{1,5})(?:-([0-9]{1,5}))?")
_NAME = re.compile(r"(?=.*[A-Za-z])[A-Za-z0-9*._-]+")
_LOOPBACK = IPv4Network("127.0.0.0/8")
_MULTICAST = IPv4Network("224.0.0.0/4")
_EXAMPLES = 'such as "10.0.0.0/8", "1.2.3.4:443", "tcp://1.2.3.0/24:80-90" or "udp://9.9.9.9:53"'


class OpeningError(ValueError):
    """Text that is no entry.

    Attributes:
        hint: What to write instead.
    """

    def __init__(self, message: str, hint: str = _EXAMPLES) -> None:
        super().__init__(message)
        self.hint = hint


@dataclass(frozen=True, slots=True)
class Opening:
    """One entry.

    Attributes:
        network: The addresses.
        protocol: "tcp" or "udp"; None for both, and without ports for echo requests (ping) as well.
        ports: First and last destination port; None for all.
    """

    network: IPv4Network
    protocol: Literal["tcp", "udp"] | None = None
    ports: tuple[int, int] | None = None

    def __str__(self) -> str:
        protocol = f"{self.protocol}://" if self.protocol else ""
        where = str(self.network.network_address) if self.network.prefixlen == 32 else str(self.network)
        if self.ports is None:
            return protocol + where
        first, last = self.ports
        return f"{protocol}{where}:{first}" + (f"-{last}" if last != first else "")


def parse_opening(text: str, *, to_allow: bool) -> Opening:
    """Read one entry.

    Args:
        text: As written.
        to_allow: Whether it is one of an allow list, where what nobody could be let through to is refused.

    Raises:
        OpeningError: It is none; says what was expected.
    """
    found = _FORM.fullmatch(text)
    if found is None or text.count(":") - (2 if "://" in text else 0) > 1 or "[" in text:
        if text.count(":") > 1:
            raise OpeningError(
                f"expected an IPv4 address or network, got {_quoted(text)}", "machines have IPv4 only; leave IPv6 out"
            )
        raise OpeningError(f"expected an address or a network, got {_quoted(text)}")
    protocol = (found["protocol"] or "").lower() or None
    if protocol not in (None, "tcp", "udp"):
        raise OpeningError(f'expected "tcp://" or "udp://" before the address, got {_quoted(text)}')
    network = _network(found["where"], text)
    ports = None if found["ports"] is None else _ports(found["ports"], text)
    if to_allow and network.subnet_of(_LOOPBACK):
        raise OpeningError(
            f"expected an address outside the machine, got {_quoted(text)}",
            "127.0.0.0/8 is the machine's own loopback; to reach this host, open one of its other addresses",
        )
    if to_allow and network.subnet_of(_MULTICAST):
        raise OpeningError(
            f"expected an address of one host or a network of them, got {_quoted(text)}", "multicast is never let out"
        )
    return Opening(network, "tcp" if protocol == "tcp" else "udp" if protocol == "udp" else None, ports)


def _network(where: str, text: str) -> IPv4Network:
    try:
        return IPv4Network(where)
    except ValueError:
        pass
    try:
        wider = IPv4Network(where, strict=False)
    except ValueError:
        pass
    else:
        raise OpeningError(
            f"expected a network without bits set after its prefix, got {_quoted(text)}",
            f'write "{wider}" for the whole network or "{where.partition("/")[0]}" for the one address',
        )
    if _NAME.fullmatch(where) and not _is_address(where):
        raise OpeningError(
            f"expected an address or a network, got the name {_quoted(text)}",
            "names are not resolved: who answers for a name could open anything; write the addresses",
        )
    raise OpeningError(f"expected an address or a network, got {_quoted(text)}")


def _ports(text: str, whole: str) -> tuple[int, int]:
    found = _PORTS.fullmatch(text)
    first = last = 0
    if found is not None:
        first = int(found[1])
        last = first if found[2] is None else int(found[2])
    if not 1 <= first <= last <= MOST_PORT:
        raise OpeningError(
            f"expected a port from 1 to {MOST_PORT}, or the first and the last of several, got {_quoted(whole)}"
        )
    return first, last


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_network(text, strict=False)
    except ValueError:
        return False
    return True


def _quoted(text: str) -> str:
    shown = text if len(text) <= 60 else text[:57] + "..."
    return '"' + "".join(c if c.isprintable() and c != '"' else "?" for c in shown) + '"'
