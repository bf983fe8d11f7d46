"""Who answers a machine's questions for names: this host's own resolvers, as far as the machine may reach them."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from ipaddress import IPv4Address
from pathlib import Path

from agentenv.sandbox.network import Network

_PLACES = ("/etc/resolv.conf", "/run/systemd/resolve/resolv.conf")
"""The second has what a resolver on this host's own loopback asks in turn."""
_PORT = 53
_MOST = 3


def host_resolvers(places: Sequence[str] = _PLACES) -> list[str]:
    """IPv4 addresses of the resolvers this host uses that are not on its own loopback."""
    for place in places:
        try:
            text = Path(place).read_text(encoding="utf-8", errors="replace")
        except OSError:
            continue
        words = [line.split() for line in text.splitlines()]
        named = [pair[1] for pair in words if len(pair) > 1 and pair[0] == "nameserver"]
        found = [name for name in named if _is_remote(name)]
        if found:
            return found
    return []


def reachable(resolvers: Sequence[str], network: Network, own: Collection[str]) -> list[str]:
    """Those of resolvers that a machine may ask.

    Args:
        resolvers: Their addresses.
        network: What is open to it.
        own: Addresses of this host, which only an allow list opens.
    """
    listed = replace(network, internet=False)
    found = [one for one in resolvers if (listed if one in own else network).opens(one, "udp", _PORT)]
    return found[:_MOST]


def _is_remote(text: str) -> bool:
    try:
        return not IPv4Address(text).is_loopback
    except ValueError:
        return False
