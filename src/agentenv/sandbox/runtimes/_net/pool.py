"""Which addresses of this host a machine gets: a pair, one for each end of the pair of devices that leads to it.

The name of the device says which pair, and the kernel gives a name once: so processes that know nothing of each other
never take the same one, and what a killed one had is free when its machine's namespace is gone.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network
from typing import Any

from agentenv.errors import RuntimeUnavailable

PREFIX = "aev"
"""What the names of all devices of ours on this host begin with."""


@dataclass(frozen=True, slots=True)
class Slot:
    """A pair of addresses.

    Attributes:
        device: Name of the device on this host.
        host: Its address.
        machine: The address at the other end, from which the machine's packets come.
    """

    device: str
    host: IPv4Address
    machine: IPv4Address


def slots(pool: IPv4Network, taken: Sequence[IPv4Network]) -> Iterator[Slot]:
    """All pairs of a pool that nothing else uses and whose device is not there, lowest first.

    Args:
        pool: The addresses.
        taken: Networks that others use.
    """
    devices = {name for _, name in socket.if_nameindex()}
    inside = [network for network in taken if network.overlaps(pool)]
    # The first pair holds the pool's own address, which some routers take for everybody's.
    for number in range(1, pool.num_addresses // 2):
        device = f"{PREFIX}{number:x}"
        pair = IPv4Network((int(pool.network_address) + 2 * number, 31))
        if device not in devices and not any(network.overlaps(pair) for network in inside):
            yield Slot(device, pair[0], pair[1])


def taken_networks(
    pool: IPv4Network, addresses: Sequence[dict[str, Any]], routes: Sequence[dict[str, Any]]
) -> list[IPv4Network]:
    """What is in use on this host: the networks of its devices, and where routes lead within the pool.

    Args:
        pool: The addresses of machines.
        addresses: As ``ip -j addr`` lists them.
        routes: As ``ip -j route show table all`` lists them.
    """
    found = [
        IPv4Network(f"{address['local']}/{address['prefixlen']}", strict=False)
        for device in addresses
        for address in device.get("addr_info", ())
        if "local" in address
    ]
    led = [network_of(route) for route in routes if route.get("type", "unicast") == "unicast"]
    return [*found, *(network for network in led if network is not None and network.subnet_of(pool))]


def own_addresses(addresses: Sequence[dict[str, Any]]) -> set[str]:
    """This host's addresses, as ``ip -j addr`` lists them."""
    return {one["local"] for device in addresses for one in device.get("addr_info", ()) if "local" in one}


def network_of(route: dict[str, Any]) -> IPv4Network | None:
    """Where a route leads."""
    where = route.get("dst", "")
    try:
        return IPv4Network("0.0.0.0/0" if where == "default" else where)
    except ValueError:
        return None


def check_pool(pool: IPv4Network, taken: Sequence[IPv4Network]) -> None:
    """See that there is anything left of a pool.

    Raises:
        RuntimeUnavailable: There is nothing; says what has it.
    """
    for network in taken:
        if pool.subnet_of(network):
            raise RuntimeUnavailable(
                f"the addresses of machines, {pool}, belong to {network}, which this host is in already",
                "choose a network that nobody uses: pool in [network]",
            )
