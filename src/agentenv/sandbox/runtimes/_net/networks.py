"""The networks of a run's machines: made when a machine is, gone when it is.

    machine eth0 192.0.0.2 --- tap0 [namespace of its own: rules, NAT] up0 --- aevN [this host: rules, NAT] uplink

Inside, every machine has the same addresses, so that one brought back from a snapshot goes on with what it knew; each
is told apart by the address its namespace gives it. All that lies in the namespace goes with it, whoever is killed.
On this host there is one table for each run and one device for each machine.
"""

from __future__ import annotations

import contextlib
import logging
import socket
import threading
from collections.abc import Iterator, Mapping
from dataclasses import replace
from ipaddress import IPv4Network
from typing import Any

from agentenv.errors import RuntimeUnavailable
from agentenv.sandbox.network import Network
from agentenv.sandbox.runtimes._net import forwarding
from agentenv.sandbox.runtimes._net.host import HostTable
from agentenv.sandbox.runtimes._net.inner import MAC, MTU, TAP, build, build_template
from agentenv.sandbox.runtimes._net.link import NetworkLink
from agentenv.sandbox.runtimes._net.namespace import Namespace
from agentenv.sandbox.runtimes._net.policy import machine_rules
from agentenv.sandbox.runtimes._net.pool import Slot, check_pool, own_addresses, slots, taken_networks
from agentenv.sandbox.runtimes._net.programs import NetworkError, Programs, find_programs
from agentenv.sandbox.runtimes._net.resolvers import host_resolvers, reachable
from agentenv.sandbox.runtimes._vm.machine import Interface, MachineSpec

logger = logging.getLogger("agentenv.sandbox")

INTERFACE = Interface(TAP, MAC)
"""What every machine with a network has."""
DEFAULT_POOL = "10.213.0.0/16"


class Networks:
    """Those of one run. May be used by several threads."""

    def __init__(self, run_id: str, settings: Mapping[str, Any]) -> None:
        """Nothing is done before ``open``.

        Args:
            run_id: Of the run.
            settings: The table [network] of the configuration.
        """
        self._run_id = run_id
        self._pool = IPv4Network(settings.get("pool", DEFAULT_POOL))
        uplink = settings.get("uplink", "auto")
        self._uplink: str | None = None if uplink == "auto" else uplink
        self._resolvers: list[str] = list(settings.get("dns", ()))
        self._lock = threading.Lock()
        self._programs: Programs | None = None
        self._table: HostTable | None = None
        self._links: list[NetworkLink] = []
        self._said: set[str] = set()

    def open(self) -> None:
        """See that machines can have networks here, and prepare this host. Idempotent.

        Raises:
            RuntimeUnavailable: They cannot; says why and what helps.
        """
        with self._lock:
            if self._table is not None:
                return
            programs = find_programs()
            if self._uplink is not None and self._uplink not in (name for _, name in socket.if_nameindex()):
                raise RuntimeUnavailable(
                    f'[network] uplink = "{self._uplink}": this host has no such interface', "see `ip link`"
                )
            check_pool(self._pool, taken_networks(self._pool, programs.show("addr"), ()))
            self._table = HostTable(programs, self._run_id, self._uplink)
            self._programs = programs

    def attach(self, network: Network) -> NetworkLink:
        """A network for one machine.

        Raises:
            RuntimeUnavailable: It cannot be made; nothing is left behind.
        """
        self.open()
        with self._lock:
            if self._programs is None or self._table is None:
                raise RuntimeUnavailable("the networks of this run are closed")
            programs, table = self._programs, self._table
            addresses, routes = programs.show("addr"), programs.show("route", "show", "table", "all")
            if table.renew():
                logger.warning(
                    "the rules of this run were removed by another program (nft flush ruleset, a firewall that was"
                    " started anew) and are made again; until now its machines reached nothing beyond this host"
                )
            devices = [self._uplink] if self._uplink is not None else forwarding.outward(network, routes)
            if not devices:
                self._say_once("this host has no route to what is open to machines: they reach nothing for now")
            table.guard(devices)
            mtus = [int(one.get("mtu", MTU)) for one in addresses if one.get("ifname") in devices]
            mtu = min([MTU, *mtus])
            namespace = _make_namespace()
            try:
                slot = self._claim(programs, namespace, network, mtu, addresses, routes)
                link = NetworkLink(programs, table, namespace, slot, mtu, self._dns(network, addresses))
            except BaseException:
                namespace.close()
                raise
            try:
                link.open(network)
            except BaseException:
                link.close()
                raise
            self._links = [*(one for one in self._links if not one.closed), link]
            return link

    @contextlib.contextmanager
    def plugged(self, spec: MachineSpec) -> Iterator[MachineSpec]:
        """For booting a machine that others are brought back from: as its interfaces need it, and leading nowhere.

        Raises:
            RuntimeUnavailable: That cannot be made.
        """
        if not spec.interfaces:
            yield spec
            return
        self.open()
        if self._programs is None:
            raise RuntimeUnavailable("the networks of this run are closed")
        namespace = _make_namespace()
        try:
            build_template(self._programs, namespace)
            yield replace(spec, network=namespace.fileno())
        finally:
            namespace.close()

    def close(self) -> None:
        """Remove everything. Idempotent."""
        with self._lock:
            links, self._links = self._links, []
            table, self._table = self._table, None
            self._programs = None
        for link in links:
            link.close()
        if table is not None:
            table.close()

    def _claim(
        self,
        programs: Programs,
        namespace: Namespace,
        network: Network,
        mtu: int,
        addresses: list[dict[str, Any]],
        routes: list[dict[str, Any]],
    ) -> Slot:
        """Take a free pair of addresses, and build the namespace on it."""
        rules = machine_rules(network, self._pool, own_addresses(addresses))
        for slot in slots(self._pool, taken_networks(self._pool, addresses, routes)):
            try:
                build(programs, namespace, slot, rules, network.mbps, mtu)
            except NetworkError as error:
                if "File exists" not in error.said:
                    raise
                continue  # another process was faster
            return slot
        raise RuntimeUnavailable(
            f"no address is left for a machine in {self._pool}",
            "choose a wider pool in [network], or run fewer machines",
        )

    def _dns(self, network: Network, addresses: list[dict[str, Any]]) -> list[str]:
        wanted = self._resolvers or host_resolvers()
        found = reachable(wanted, network, own_addresses(addresses))
        if wanted and not found:
            entry = f"udp://{wanted[0]}:53"
            self._say_once(
                f"machines resolve no names: {', '.join(wanted)} is closed to them; to open it add"
                f' "{entry}" to allow, or name other resolvers in [network] dns'
            )
        return found

    def _say_once(self, text: str) -> None:
        if text not in self._said:
            self._said.add(text)
            logger.warning("%s", text)


def _make_namespace() -> Namespace:
    try:
        return Namespace()
    except OSError as error:
        raise RuntimeUnavailable(
            f"no network namespace for a machine: {error}", "be root; see sysctl user.max_net_namespaces"
        ) from error
