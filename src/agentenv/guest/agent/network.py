"""The machine's interface: its address, its way out, who resolves names, and telling others that it is here.

By system calls alone, because an image may hold no program for it. All of it may be asked again, as it is of every
machine that is brought back from a snapshot of one that had it already.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import socket
import struct
from typing import Any

from agentenv.guest import confine

_SIOCADDRT, _SIOCGIFFLAGS, _SIOCSIFFLAGS = 0x890B, 0x8913, 0x8914
_SIOCSIFADDR, _SIOCSIFNETMASK, _SIOCSIFMTU = 0x8916, 0x891C, 0x8922
_IFF_UP = 1
_RTF_UP, _RTF_GATEWAY = 1, 2
_ETH_ARP, _ETH_IP = 0x0806, 0x0800
_BROADCAST = b"\xff" * 6
_DEVICES = "/sys/class/net"
_MAC = re.compile(r"[0-9a-f]{2}(:[0-9a-f]{2}){5}")
RESOLVERS = "/etc/resolv.conf"


def join_network(request: dict[str, Any]) -> str:
    """Bring the loopback and the interface up; returns the interface's name.

    Args:
        request: "mac" of the interface, its "address" and "prefix", its "gateway", "mtu", and "dns": addresses of
            resolvers, of which there may be none.

    Raises:
        OSError: There is no such interface, or the kernel refuses.
        ValueError: A value is none.
    """
    address, gateway = (socket.inet_aton(request[key]) for key in ("address", "gateway"))
    mask = struct.pack("!I", 0xFFFFFFFF << (32 - request["prefix"]) & 0xFFFFFFFF)
    name = _device_of(request["mac"])
    confine.raise_loopback()
    with contextlib.suppress(OSError):  # there is no IPv6 to the other end; a kernel without it has no such file
        _write(f"/proc/sys/net/ipv6/conf/{name}/disable_ipv6", "1")
    with contextlib.suppress(OSError):  # whoever may send anything may ask whether somebody is there
        _write("/proc/sys/net/ipv4/ping_group_range", "0 2147483647")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        _ask(control, _SIOCSIFMTU, name, struct.pack("i", request["mtu"]))
        _ask(control, _SIOCSIFADDR, name, _address(address))
        _ask(control, _SIOCSIFNETMASK, name, _address(mask))
        flags = struct.unpack("16sh", _ask(control, _SIOCGIFFLAGS, name, b"")[:18])[1]
        _ask(control, _SIOCSIFFLAGS, name, struct.pack("h", flags | _IFF_UP))
        _add_route(control, gateway)
    _announce(name, request["mac"], address)
    _name_resolvers(request["dns"])
    return name


def _device_of(mac: str) -> str:
    if not _MAC.fullmatch(mac):
        raise ValueError(f"expected the address of an interface, got {mac!r}")
    for name in sorted(os.listdir(_DEVICES)):
        with contextlib.suppress(OSError), open(f"{_DEVICES}/{name}/address", encoding="ascii") as stream:
            if stream.read().strip() == mac:
                return name
    raise FileNotFoundError(errno.ENODEV, f"no interface has the address {mac}: the kernel needs virtio_net")


def _ask(control: socket.socket, request: int, name: str, value: bytes) -> bytes:
    """ioctl(2) with a struct ifreq."""
    return fcntl.ioctl(control, request, struct.pack("16s24s", name.encode(), value))


def _address(packed: bytes) -> bytes:
    """A struct sockaddr_in."""
    return struct.pack("=HH4s8x", socket.AF_INET, 0, packed)


def _add_route(control: socket.socket, gateway: bytes) -> None:
    """Send everything that is not near to the gateway; with a struct rtentry."""
    anywhere = _address(bytes(4))
    entry = struct.pack(
        "@L16s16s16sHhLPhPLLH", 0, anywhere, _address(gateway), anywhere, _RTF_UP | _RTF_GATEWAY, 0, 0, 0, 0, 0, 0, 0, 0
    )
    with contextlib.suppress(FileExistsError):
        fcntl.ioctl(control, _SIOCADDRT, entry)


def _announce(name: str, mac: str, address: bytes) -> None:
    """Say whose address this is, before anybody asks (a gratuitous ARP, RFC 5227 section 3)."""
    own = bytes.fromhex(mac.replace(":", ""))
    header = _BROADCAST + own + struct.pack("!H", _ETH_ARP)
    said = struct.pack("!HHBBH6s4s6s4s", 1, _ETH_IP, 6, 4, 1, own, address, bytes(6), address)
    with socket.socket(socket.AF_PACKET, socket.SOCK_RAW) as device:
        device.bind((name, _ETH_ARP))
        device.send(header + said)


def _name_resolvers(addresses: list[str]) -> None:
    """Replaces the image's file, or the link it has there; without a resolver to name it says so."""
    lines = [f"nameserver {socket.inet_ntoa(socket.inet_aton(address))}\n" for address in addresses]
    text = "".join(lines) or "# No resolver is open to this machine.\n"
    # A root file system that cannot be written is no reason to fail.
    with contextlib.suppress(OSError):
        _write(f"{RESOLVERS}.new", text)
        os.chmod(f"{RESOLVERS}.new", 0o644)
        os.replace(f"{RESOLVERS}.new", RESOLVERS)


def _write(path: str, text: str) -> None:
    with open(path, "w", encoding="ascii") as stream:
        stream.write(text)
