"""A small world for tests of networks: this process becomes a host with one uplink, and behind it lies an internet.

    machines --- aevN [here] eth0 1.2.3.1 --- isp0 1.2.3.254 [internet] 1.2.3.10 169.254.169.254 10.1.2.3

Everything is in network namespaces without names, so nothing of it outlives the test. Whoever is asked, by TCP or UDP,
says which address the question came from.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import selectors
import shutil
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from agentenv.sandbox.runtimes._net.namespace import Namespace, enter, open_own
from agentenv.sandbox.runtimes._net.programs import Programs, find_programs, may_administer

HOST, PUBLIC, OTHER_PUBLIC = "1.2.3.1", "1.2.3.10", "1.2.3.11"
METADATA, PRIVATE = "169.254.169.254", "10.1.2.3"
BRIDGE, CONTAINER = "172.17.0.1", "172.17.0.2"
PORTS = (80, 443)
_GATEWAY = "1.2.3.254"
_NEWNET = 0x40000000


class Answering:
    """Sockets in one namespace, at its addresses, that say who asked."""

    def __init__(self, *addresses: str) -> None:
        self._selector = selectors.DefaultSelector()
        self._sockets: list[socket.socket] = []
        for address in addresses:
            for port in PORTS:
                # At each address one of its own: an answer comes from where the question went.
                datagrams = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
                datagrams.bind((address, port))
                self._sockets += [socket.create_server((address, port)), datagrams]
        for one in self._sockets:
            one.setblocking(False)
            self._selector.register(one, selectors.EVENT_READ)
        self._stop, self._stopper = socket.socketpair()
        self._selector.register(self._stop, selectors.EVENT_READ)
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._stopper.close()
        self._thread.join()
        for one in (*self._sockets, self._stop):
            one.close()
        self._selector.close()

    def _serve(self) -> None:
        while True:
            for key, _ in self._selector.select():
                one = key.fileobj
                assert isinstance(one, socket.socket)
                if one is self._stop:
                    return
                with contextlib.suppress(OSError):
                    if one.type == socket.SOCK_STREAM:
                        connection, (peer, _) = one.accept()
                        with connection:
                            connection.sendall(f"hello {peer}".encode())
                    else:
                        _, sender = one.recvfrom(100)
                        one.sendto(f"hello {sender[0]}".encode(), sender)


class World:
    """See the module.

    Attributes:
        programs: For looking at it.
        internet: The namespace beyond the uplink.
        before: What lay in the host's namespace before agentenv did anything there.
    """

    def __init__(self) -> None:
        self.programs: Programs = find_programs()
        self._outside = open_own()
        if ctypes.CDLL(None).unshare(_NEWNET) != 0:
            raise OSError("no network namespace can be made")
        self.internet, self._containers = Namespace(), Namespace()
        self._answering: list[Answering] = []
        here = threading.get_native_id()
        self.internet.run(
            lambda: self.programs.links(
                "link set lo up",
                f"link add isp0 type veth peer name eth0 netns {here}",
                f"address add {_GATEWAY}/24 dev isp0",
                "link set isp0 up",
                *(f"address add {address}/32 dev lo" for address in (PUBLIC, OTHER_PUBLIC, METADATA, PRIVATE)),
            )
        )
        self._containers.run(
            lambda: self.programs.links(
                "link set lo up",
                f"link add eth0 type veth peer name bridge0 netns {here}",
                f"address add {CONTAINER}/16 dev eth0",
                "link set eth0 up",
                f"route add default via {BRIDGE}",
            )
        )
        self.programs.links(
            "link set lo up",
            f"address add {HOST}/24 dev eth0",
            "link set eth0 up",
            f"address add {BRIDGE}/16 dev bridge0",
            "link set bridge0 up",
            f"route add default via {_GATEWAY}",
        )
        # A published port, as container engines make it.
        self.programs.rules(
            "add table ip engine",
            "add chain ip engine prerouting { type nat hook prerouting priority dstnat; }",
            "add rule ip engine prerouting fib daddr type local meta l4proto { tcp, udp } th dport 8080"
            f" dnat to {CONTAINER}:80",
        )
        set_forwarding("all", "0")
        public = (PUBLIC, OTHER_PUBLIC, METADATA, PRIVATE)
        self._answering = [
            Answering(HOST, BRIDGE),
            self.internet.run(lambda: Answering(*public)),
            self._containers.run(lambda: Answering(CONTAINER)),
        ]
        self.before = self.inventory()

    def inventory(self) -> dict[str, object]:
        """What lies in the host's namespace: devices, addresses, routes, tables, forwarding."""
        return {
            "devices": sorted(name for _, name in socket.if_nameindex()),
            "addresses": sorted(
                address["local"] for one in self.programs.show("addr") for address in one.get("addr_info", ())
            ),
            "routes": sorted(
                (route.get("dst", ""), route.get("dev", ""))
                for route in self.programs.show("route", "show", "table", "all")
            ),
            "tables": sorted(one["table"]["name"] for one in self.programs.listed("tables") if "table" in one),
            "forwarding": {device: forwarding(device) for device in ("all", "default", "eth0", "bridge0")},
            "namespaces": namespaces(),
        }

    def close(self) -> None:
        for one in self._answering:
            one.close()
        self.internet.close()
        self._containers.close()
        enter(self._outside)
        os.close(self._outside)


def namespaces() -> int:
    """How many network namespaces this process holds a descriptor of."""
    count = 0
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            count += os.readlink(f"/proc/self/fd/{name}").startswith("net:")
    return count


def forwarding(device: str) -> str:
    """Whether packets that come in by a device are passed on."""
    return Path(f"/proc/sys/net/ipv4/conf/{device}/forwarding").read_text(encoding="ascii").strip()


def set_forwarding(device: str, value: str) -> None:
    Path(f"/proc/sys/net/ipv4/conf/{device}/forwarding").write_text(value, encoding="ascii")


@contextlib.contextmanager
def made() -> Iterator[World]:
    """A world; skips where none can be made."""
    if missing := [name for name in ("ip", "tc", "nft") if shutil.which(name, path="/usr/sbin:/sbin:/usr/bin") is None]:
        pytest.skip(f"{', '.join(missing)} missing: apt-get install iproute2 nftables")
    if not may_administer():
        pytest.skip("networks of machines can only be made by root")
    world = World()
    try:
        yield world
    finally:
        world.close()
