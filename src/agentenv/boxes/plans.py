"""What a sandbox is made of, as plain data: for a snapshot's manifest and for the process that is to keep it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from agentenv.sandbox.contract import SandboxSpec
from agentenv.sandbox.network import NONE, read_network, write_network

_KEPT = ("memory_mb", "vcpu_count", "pids", "disk_mb", "kernel", "image", "start_timeout_s")


@dataclass(frozen=True, slots=True)
class Plan:
    """A sandbox to be made.

    Attributes:
        runtime: Its runtime; None for the first that works.
        settings: The runtime's own table.
        spec: What it is; ``origin`` is a directory with a copy of another one.
        snapshot: Id of the stored snapshot to bring back; "" for none.
        source: Where it comes from, for people.
        parent: Id of the stored snapshot from which it differs little.
    """

    runtime: str | None
    settings: Mapping[str, Any]
    spec: SandboxSpec
    snapshot: str = ""
    source: str = ""
    parent: str | None = None

    def to_record(self) -> dict[str, Any]:
        """As plain data."""
        spec = {key: getattr(self.spec, key) for key in _KEPT}
        return {
            "runtime": self.runtime,
            "settings": dict(self.settings),
            "spec": {**spec, "id": self.spec.id, "variables": dict(self.spec.variables)},
            "network": write_network(self.spec.network),
            "network_mbps": None if self.spec.network is None else self.spec.network.mbps,
            "origin": None if self.spec.origin is None else str(self.spec.origin),
            "snapshot": self.snapshot,
            "source": self.source,
            "parent": self.parent,
        }

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> Plan:
        """What ``to_record`` wrote.

        Raises:
            KeyError, TypeError, ValueError: It did not.
        """
        told = dict(record["spec"])
        spec = SandboxSpec(
            str(told["id"]),
            variables=dict(told["variables"]),
            network=read_network(record.get("network", NONE), record.get("network_mbps")),
            **{key: told[key] for key in _KEPT if key in told},
        )
        if record.get("origin") is not None:
            spec = replace(spec, origin=Path(record["origin"]))
        return cls(
            record.get("runtime"),
            dict(record.get("settings", {})),
            spec,
            str(record.get("snapshot", "")),
            str(record.get("source", "")),
            record.get("parent"),
        )

    def named(self, name: str) -> Plan:
        """The same under another name."""
        return replace(self, spec=replace(self.spec, id=name))
