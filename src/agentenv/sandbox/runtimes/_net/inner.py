"""What lies in a machine's network namespace: the device it is plugged into, one that leads out, rules and limits."""

from __future__ import annotations

import contextlib
import threading

from agentenv.errors import RuntimeUnavailable
from agentenv.sandbox.runtimes._net.forwarding import change, set_device
from agentenv.sandbox.runtimes._net.namespace import Namespace
from agentenv.sandbox.runtimes._net.policy import REFUSE
from agentenv.sandbox.runtimes._net.pool import Slot
from agentenv.sandbox.runtimes._net.programs import Programs

TAP, UP = "tap0", "up0"
MAC = "02:61:65:6e:76:02"
# Part of the range set aside for such ends within one machine (RFC 7335), where nothing else can be meant.
ADDRESS, GATEWAY, PREFIX = "192.0.0.2", "192.0.0.1", 30
MTU = 1500
_GATEWAY_MAC = "02:61:65:6e:76:01"
_LEAST_BURST_BYTES = 32 << 10
_BURST_S = 0.01


def build_template(programs: Programs, namespace: Namespace) -> None:
    """Put in the device alone."""
    namespace.run(lambda: programs.links(*_tap(MTU)))


def build(programs: Programs, namespace: Namespace, slot: Slot, rules: list[str], mbps: float | None, mtu: int) -> None:
    """Put everything in; the calling thread's namespace gets the other end of the device that leads out, still down.

    Raises:
        NetworkError: A program refuses; "File exists" where the device of this slot is there already.
        RuntimeUnavailable: A setting cannot be changed.
    """
    outside = threading.get_native_id()

    def inside() -> None:
        with contextlib.suppress(RuntimeUnavailable):  # a kernel without IPv6
            for device in ("all", "default"):
                set_device(device, "disable_ipv6", "1", family="ipv6")
        # First the pair, whose name may be taken.
        programs.links(
            f"link add {UP} mtu {mtu} type veth peer name {slot.device} mtu {mtu} netns {outside}",
            *_tap(mtu),
            f"address add {slot.machine}/31 dev {UP}",
            f"link set {UP} up",
            f"route add default via {slot.host} dev {UP}",
        )
        programs.rules(inner_rules(str(slot.machine), rules))
        if mbps is not None:
            programs.limits(*(_limit(device, mbps) for device in (TAP, UP)))
        set_device("all", "forwarding", "1")
        with contextlib.suppress(RuntimeUnavailable):  # or whoever tries much that is closed waits for its answers
            change("ipv4/icmp_ratemask", "0")

    namespace.run(inside)


def inner_rules(address: str, opened: list[str]) -> str:
    """The table in a machine's namespace, as nftables reads it.

    Args:
        address: From which its packets come when they leave the namespace.
        opened: The rules for what it sends.
    """
    rules = "\n        ".join(opened)
    return f"""
table inet agentenv {{
    chain input {{
        type filter hook input priority filter; policy drop;
        iifname "{TAP}" {REFUSE}
    }}
    chain opened {{
        {rules}
    }}
    chain forward {{
        type filter hook forward priority filter; policy drop;
        ct state established,related accept
        iifname "{TAP}" oifname "{UP}" ip saddr {ADDRESS} ct state new goto opened
    }}
    chain postrouting {{
        type nat hook postrouting priority srcnat; policy accept;
        oifname "{UP}" ip saddr {ADDRESS} snat ip to {address}
    }}
}}
"""


def _tap(mtu: int) -> list[str]:
    return [
        f"tuntap add dev {TAP} mode tap",
        f"link set {TAP} address {_GATEWAY_MAC} mtu {mtu}",
        f"address add {GATEWAY}/{PREFIX} dev {TAP}",
        f"link set {TAP} up",
        # So that nobody has to ask, and no answer of a machine of earlier is believed.
        f"neighbour add {ADDRESS} lladdr {MAC} dev {TAP} nud permanent",
    ]


def _limit(device: str, mbps: float) -> str:
    bits = int(mbps * 1e6)
    burst = max(_LEAST_BURST_BYTES, int(bits / 8 * _BURST_S))
    return f"qdisc add dev {device} root tbf rate {bits}bit burst {burst} latency 50ms"
