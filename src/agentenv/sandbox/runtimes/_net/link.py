"""One machine's network as its runtime holds it."""

from __future__ import annotations

import contextlib
import socket
import threading
from typing import Any

from agentenv.errors import RuntimeUnavailable
from agentenv.sandbox.network import Network
from agentenv.sandbox.runtimes._net.forwarding import set_device
from agentenv.sandbox.runtimes._net.host import HostTable
from agentenv.sandbox.runtimes._net.inner import ADDRESS, GATEWAY, MAC, PREFIX
from agentenv.sandbox.runtimes._net.namespace import Namespace
from agentenv.sandbox.runtimes._net.pool import Slot
from agentenv.sandbox.runtimes._net.programs import NetworkError, Programs


class NetworkLink:
    """The namespace a monitor is started in, and what of it is seen on this host.

    Attributes:
        address: Of the machine, among those of this host's machines.
        closed: Whether it is gone.
    """

    def __init__(
        self, programs: Programs, table: HostTable, namespace: Namespace, slot: Slot, mtu: int, dns: list[str]
    ) -> None:
        """Own what was built; ``open`` connects it.

        Args:
            programs: Carry out what is to be done.
            table: Of the run.
            namespace: Of the machine; owned from here on.
            slot: Its addresses and its device.
            mtu: Most bytes of a packet.
            dns: Resolvers it may ask.
        """
        self.address = str(slot.machine)
        self.closed = False
        self._programs, self._table, self._namespace, self._slot = programs, table, namespace, slot
        self._mtu, self._dns = mtu, dns
        self._index = socket.if_nametoindex(slot.device)
        self._lock = threading.Lock()

    def fileno(self) -> int:
        """The descriptor of the namespace."""
        return self._namespace.fileno()

    def open(self, network: Network) -> None:
        """Let the machine's packets through, where they may go.

        Raises:
            RuntimeUnavailable: Something refuses.
        """
        device = self._slot.device
        self._table.admit(self._index, self.address, network)
        set_device(device, "forwarding", "1")
        with contextlib.suppress(RuntimeUnavailable):  # a kernel without IPv6
            set_device(device, "disable_ipv6", "1", family="ipv6")
        self._programs.links(f"address add {self._slot.host}/31 dev {device}", f"link set {device} up")

    def settings(self) -> dict[str, Any]:
        """What the agent inside is told."""
        return {
            "mac": MAC,
            "address": ADDRESS,
            "prefix": PREFIX,
            "gateway": GATEWAY,
            "mtu": self._mtu,
            "dns": self._dns,
        }

    def close(self) -> None:
        """Remove it from this host at once; the namespace goes with whatever still runs in it. Idempotent."""
        with self._lock:
            if self.closed:
                return
            self.closed = True
        with contextlib.suppress(NetworkError):  # gone already
            self._programs.links(f"link delete {self._slot.device}")
        self._table.dismiss(self._index, self.address)
        self._namespace.close()
