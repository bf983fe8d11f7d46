"""From what is open to rules of nftables, as text. Pure: nothing here looks at the host or changes it.

A packet of a machine is judged twice. In the machine's own namespace, by where it wants to go: that is all of the
policy. And where it arrives at an address of this host, which no list of ranges can know, in the host's table: there
only what an allow list names is let through. Those that it has when a machine is made are closed in the machine's own
namespace as well, since what lies in the host's may be flushed by others.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from ipaddress import IPv4Address, IPv4Network

from agentenv.config.openings import Opening
from agentenv.sandbox.network import SPECIAL, Network

REFUSE = "reject with icmpx admin-prohibited"
_ACCEPT = "accept"
MOST_FLOWS = 4096
"""Connections of one machine at once: the kernel's table of them is shared by all of the host."""


def machine_rules(network: Network, pool: IPv4Network, own: Collection[str] = ()) -> list[str]:
    """The rules for what a machine sends, in order; what comes back of it is let through before.

    Args:
        network: What is open.
        pool: The addresses of machines, which are closed to all of them.
        own: This host's addresses, which are not public.
    """
    return [
        f"ct count over {MOST_FLOWS} {REFUSE}",
        f"ip daddr {pool} {REFUSE}",
        *(f"{match} {REFUSE}" for opening in network.deny for match in _forward(opening, to_allow=False)),
        *(f"{match} {_ACCEPT}" for opening in network.allow for match in _forward(opening, to_allow=True)),
        *(_public(own) if network.internet else ()),
        REFUSE,
    ]


def host_rules(network: Network) -> list[str]:
    """The rules for what a machine sends to this host itself, in order.

    They look at where the packet was sent at first, so that a port of this host that leads elsewhere (as those of
    containers do) is as closed as the host.
    """
    return [
        *(f"{match} {REFUSE}" for opening in network.deny for match in _arriving(opening, to_allow=False)),
        *(f"{match} {_ACCEPT}" for opening in network.allow for match in _arriving(opening, to_allow=True)),
        REFUSE,
    ]


def _public(own: Collection[str]) -> Iterator[str]:
    addresses = sorted({IPv4Address(one) for one in own})
    closed = [*SPECIAL, *(one for one in addresses if not any(one in special for special in SPECIAL))]
    yield f"ip daddr {{ {', '.join(map(str, closed))} }} {REFUSE}"
    yield "meta l4proto { tcp, udp } accept"
    yield "icmp type echo-request accept"


def _forward(opening: Opening, *, to_allow: bool) -> Iterator[str]:
    where = f"ip daddr {opening.network}"
    if opening.ports is not None:
        yield f"{where} {_protocols(opening)} th dport {_ports(opening)}"
    elif opening.protocol is not None or to_allow:
        yield f"{where} {_protocols(opening)}"
        if opening.protocol is None:
            yield f"{where} icmp type echo-request"
    else:
        yield where


def _arriving(opening: Opening, *, to_allow: bool) -> Iterator[str]:
    where = f"ct original ip daddr {opening.network}"
    if opening.ports is not None:
        # One protocol each: nftables does not know how to write the port of several.
        for protocol in (opening.protocol,) if opening.protocol else ("tcp", "udp"):
            yield f"{where} meta l4proto {protocol} ct original proto-dst {_ports(opening)}"
    elif opening.protocol is not None or to_allow:
        yield f"{where} {_protocols(opening)}"
        if opening.protocol is None:
            yield f"{where} icmp type echo-request"
    else:
        yield where


def _protocols(opening: Opening) -> str:
    return f"meta l4proto {opening.protocol}" if opening.protocol else "meta l4proto { tcp, udp }"


def _ports(opening: Opening) -> str:
    first, last = opening.ports or (0, 0)
    return str(first) if first == last else f"{first}-{last}"
