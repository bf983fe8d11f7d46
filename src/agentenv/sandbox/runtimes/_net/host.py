"""The rules of one run on this host: where its machines' packets may go from here, and as whose.

They lie in a table of their own, which carries the run's id. What a packet is allowed at all was judged before, in its
machine's namespace; here the host's own addresses are guarded, machines are kept apart, and addresses translated.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

from agentenv.sandbox.network import Network
from agentenv.sandbox.runtimes._net import forwarding
from agentenv.sandbox.runtimes._net.policy import REFUSE, host_rules
from agentenv.sandbox.runtimes._net.pool import PREFIX
from agentenv.sandbox.runtimes._net.programs import NetworkError, Programs


def table_rules(table: str, uplink: str | None) -> str:
    """The table of a run without machines, as nftables reads it.

    Devices are known by number: unlike a name, one is not given a second time, to the machine of another run.

    Args:
        table: Its name.
        uplink: The only device by which machines go out; None for any.
    """
    elsewhere = f'iif @machines oifname != "{uplink}" {REFUSE}' if uplink is not None else ""
    return f"""
add table inet {table}
delete table inet {table}
table inet {table} {{
    set machines {{ type iface_index; }}
    set sources {{ type ipv4_addr; }}
    set {forwarding.GUARDED} {{ type ifname; }}
    map judges {{ type iface_index : verdict; }}
    chain input {{
        type filter hook input priority filter; policy accept;
        iif vmap @judges
    }}
    chain forward {{
        type filter hook forward priority filter; policy accept;
        iif @machines oifname "{PREFIX}*" {REFUSE}
        iif @machines ct status dnat iif vmap @judges
        {elsewhere}
        oif @machines ct state established,related accept
        oif @machines drop
        iifname @{forwarding.GUARDED} oifname != "{PREFIX}*" drop
    }}
    chain postrouting {{
        type nat hook postrouting priority srcnat; policy accept;
        ip saddr @sources oifname != "{PREFIX}*" masquerade
    }}
}}
"""


class HostTable:
    """The table of a run that is open."""

    def __init__(self, programs: Programs, run_id: str, uplink: str | None) -> None:
        """Make it; one of the same name is replaced, for nobody else has this run's id.

        Raises:
            RuntimeUnavailable: nftables refuses.
        """
        self.name = forwarding.TABLE_PREFIX + run_id
        self._programs, self._uplink = programs, uplink
        self._admitted: dict[int, tuple[str, Network]] = {}
        self._guarded: set[str] = set()
        programs.rules(table_rules(self.name, uplink))

    def renew(self) -> bool:
        """Make it again with all that was in it, where another program has removed it; returns whether that was so.

        Raises:
            RuntimeUnavailable: nftables refuses.
        """
        try:
            self._programs.listed("chain", "inet", self.name, "input")
            return False
        except NetworkError as error:
            if not error.missing:
                raise
        self._programs.rules(table_rules(self.name, self._uplink))
        for device, (address, network) in list(self._admitted.items()):
            self.admit(device, address, network)
        forwarding.switch_on(self._programs, self.name, sorted(self._guarded), self._guarded)
        return True

    def guard(self, devices: Sequence[str]) -> None:
        """Have packets that come in by devices passed on to machines, and nowhere else where they were not before.

        Raises:
            RuntimeUnavailable: The setting cannot be changed.
        """
        self._guarded.update(forwarding.switch_on(self._programs, self.name, devices))

    def admit(self, device: int, address: str, network: Network) -> None:
        """Let a machine in.

        Args:
            device: Number of the device that leads to it.
            address: From which its packets come.
            network: What is open to it.
        """
        table, judge = f"inet {self.name}", f"from{device}"
        self._programs.rules(
            f"add chain {table} {judge}",
            *(f"add rule {table} {judge} {rule}" for rule in host_rules(network)),
            f"add element {table} judges {{ {device} : jump {judge} }}",
            f"add element {table} machines {{ {device} }}",
            f"add element {table} sources {{ {address} }}",
        )
        self._admitted[device] = address, network

    def dismiss(self, device: int, address: str) -> None:
        """Forget a machine. Idempotent."""
        self._admitted.pop(device, None)
        table, judge = f"inet {self.name}", f"from{device}"
        with contextlib.suppress(NetworkError):
            self._programs.rules(
                f"delete element {table} judges {{ {device} : jump {judge} }}",
                f"delete element {table} machines {{ {device} }}",
                f"delete element {table} sources {{ {address} }}",
                f"delete chain {table} {judge}",
            )

    def close(self) -> None:
        """Remove it. Idempotent."""
        forwarding.remove_table(self._programs, self.name, self._guarded)
