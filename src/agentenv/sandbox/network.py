"""What of the network a sandbox reaches, as its runtime is told.

The words a user writes mean:

- "internet": everything public. Closed are this host's own addresses, what is special (private, shared, link-local and
  loopback ranges, those of documentation, multicast), where clouds keep their metadata, and other environments.
- An allow list opens exactly what it names, also what "internet" closes. Other environments stay closed.
- A deny list is subtracted from either.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network

from agentenv.config.openings import INTERNET, Opening, parse_opening
from agentenv.errors import RuntimeUnavailable

NONE = "none"
SPECIAL = tuple(
    IPv4Network(text)
    for text in (
        "0.0.0.0/8",
        "10.0.0.0/8",
        "100.64.0.0/10",
        "127.0.0.0/8",
        # Azure's WireServer: metadata, credentials and names of the machine, at an address that anybody may have.
        # https://learn.microsoft.com/azure/virtual-network/what-is-ip-address-168-63-129-16
        "168.63.129.16/32",
        "169.254.0.0/16",
        "172.16.0.0/12",
        "192.0.0.0/24",
        "192.0.2.0/24",
        "192.88.99.0/24",
        "192.168.0.0/16",
        "198.18.0.0/15",
        "198.51.100.0/24",
        "203.0.113.0/24",
        "224.0.0.0/3",
    )
)
"""What "internet" is not: all that IANA's registry of special-purpose addresses does not call globally reachable
(https://www.iana.org/assignments/iana-ipv4-special-registry), 192.0.0.0/24 whole; multicast and what follows it; and
what only clouds have. Open stay 192.31.196.0/24, 192.52.193.0/24 and 192.175.48.0/24, which the registry calls
reachable."""


@dataclass(frozen=True, slots=True)
class Network:
    """What is open.

    Attributes:
        internet: Whether everything public is.
        allow: What else is; also this host's own and private addresses.
        deny: What is closed all the same.
        mbps: Most megabits (10^6 bits) a second in each direction; None for no limit.
    """

    internet: bool = False
    allow: tuple[Opening, ...] = ()
    deny: tuple[Opening, ...] = ()
    mbps: float | None = None

    @property
    def whole(self) -> bool:
        """Whether it is what a runtime without rules of its own can give: no lists and no limit."""
        return self.internet and not self.allow and not self.deny and self.mbps is None

    def opens(self, address: str, protocol: str, port: int) -> bool:
        """Whether a destination is open, as far as that can be said without knowing which addresses are whose."""
        found = IPv4Address(address)
        if any(_covers(opening, found, protocol, port) for opening in self.deny):
            return False
        if any(_covers(opening, found, protocol, port) for opening in self.allow):
            return True
        return self.internet and not any(found in special for special in SPECIAL)


def read_network(setting: str | Mapping[str, Sequence[str]], mbps: float | None = None) -> Network | None:
    """A checked setting of the configuration; None for "none".

    Args:
        setting: "none", "internet", or lists "allow" and "deny" of which one may be missing.
        mbps: Limit in each direction.
    """
    if isinstance(setting, str):
        return Network(internet=True, mbps=mbps) if setting == INTERNET else None
    allow = setting.get("allow", ())
    return Network(
        internet=not allow or INTERNET in allow,
        allow=_parse(allow, to_allow=True),
        deny=_parse(setting.get("deny", ()), to_allow=False),
        mbps=mbps,
    )


def write_network(network: Network | None) -> str | dict[str, list[str]]:
    """The setting that ``read_network`` makes this of, but for the limit; as plain data."""
    if network is None:
        return NONE
    allow = [str(opening) for opening in network.allow]
    if network.internet and allow:
        allow.insert(0, INTERNET)
    lists = {"allow": allow, "deny": [str(opening) for opening in network.deny]}
    return {name: entries for name, entries in lists.items() if entries} or INTERNET


def expect_whole(runtime: str, sandbox_id: str, network: Network | None) -> None:
    """For a runtime without rules of its own.

    Raises:
        RuntimeUnavailable: More was asked than "none" or "internet".
    """
    if network is not None and not network.whole:
        raise RuntimeUnavailable(
            f"{sandbox_id}: runtime {runtime!r} cannot enforce allow, deny or network_mbps",
            'use runtime = "qemu" or "firecracker", or network = "none"',
        )


def _parse(entries: Sequence[str], *, to_allow: bool) -> tuple[Opening, ...]:
    return tuple(parse_opening(entry, to_allow=to_allow) for entry in entries if entry != INTERNET)


def _covers(opening: Opening, address: IPv4Address, protocol: str, port: int) -> bool:
    first, last = opening.ports or (0, 1 << 16)
    return address in opening.network and opening.protocol in (None, protocol) and first <= port <= last
