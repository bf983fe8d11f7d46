"""What a snapshot says of itself, so that it is only brought back where it can be: by the same monitor, as it was.

A monitor reads the state of another machine, version or processor without complaint, or with one nobody understands,
and the machine goes wrong later. So what must be equal is written down beside it and compared before.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from agentenv.errors import RuntimeUnavailable
from agentenv.sandbox.runtimes._vm.files import DESCRIPTION
from agentenv.sandbox.runtimes._vm.machine import Hypervisor, MachineSpec

_FORMAT = 1
_MOST_BYTES = 1 << 16


@dataclass(frozen=True, slots=True)
class Saved:
    """What must be equal where a snapshot is brought back.

    Attributes:
        hypervisor: Kind of monitor.
        version: Its version.
        accelerator: What ran the processors.
        processor: Of the host. Even an emulated machine sees how fast its clock ticks.
        memory_mb: RAM.
        vcpu_count: Processors.
        drives: For each "ro" or "rw", and its mark.
        interfaces: For each, its address.
        balloon_mb: What its balloon takes.
        huge_pages: Whether its memory consists of huge pages.
        agent_port: The device by which its agent is reached.
    """

    hypervisor: str
    version: str
    accelerator: str
    processor: str
    memory_mb: int
    vcpu_count: int
    drives: tuple[str, ...]
    interfaces: tuple[str, ...]
    balloon_mb: int = 0
    huge_pages: bool = False
    agent_port: str = "serial"

    @classmethod
    def of(cls, spec: MachineSpec, hypervisor: Hypervisor) -> Saved:
        """Describe a machine as it runs here."""
        return cls(
            hypervisor.name,
            hypervisor.version,
            hypervisor.accelerator,
            processor(),
            spec.memory_mb,
            spec.vcpu_count,
            tuple(f"{'ro' if drive.readonly else 'rw'} {drive.mark}".strip() for drive in spec.drives),
            tuple(interface.mac for interface in spec.interfaces),
            spec.balloon_mb,
            spec.huge_pages,
            hypervisor.agent_port,
        )

    def write(self, directory: Path) -> None:
        """Put it beside the snapshot."""
        text = json.dumps({"format": _FORMAT, **asdict(self)}, indent=1)
        (directory / DESCRIPTION).write_text(text + "\n", encoding="utf-8")

    def check(self, snapshot: Path) -> None:
        """Compare with what is written beside a snapshot.

        Raises:
            RuntimeUnavailable: It cannot be brought back here; says everything that differs.
        """
        found = _read(snapshot)
        ours = {"format": _FORMAT, **{field.name: _as_read(getattr(self, field.name)) for field in fields(self)}}
        differ = [
            f"{name} is {found.get(name)!r}, here {value!r}" for name, value in ours.items() if found.get(name) != value
        ]
        if differ:
            raise RuntimeUnavailable(
                f"snapshot {snapshot} cannot be brought back: its {'; its '.join(differ)}",
                "bring it back as it was made, or make it anew here",
            )


def _as_read(value: object) -> object:
    """A value as JSON gives it back."""
    return list(value) if isinstance(value, tuple) else value


def _read(snapshot: Path) -> Mapping[str, Any]:
    try:
        with open(snapshot / DESCRIPTION, "rb") as file:
            found = json.loads(file.read(_MOST_BYTES))
        if isinstance(found, dict):
            # Before it was written down, each monitor had only one.
            return {"agent_port": "vsock" if found.get("hypervisor") == "firecracker" else "serial", **found}
        problem = f"expected an object, got {type(found).__name__}"
    except (OSError, ValueError, RecursionError) as error:
        problem = str(error)
    raise RuntimeUnavailable(
        f"{snapshot} is not a snapshot: {DESCRIPTION}: {problem}",
        "it was not written to its end, or was damaged: make it anew",
    )


@functools.cache
def processor() -> str:
    """The host's processor, as far as a machine that was started on it depends on it."""
    wanted = ("vendor_id", "cpu family", "model", "model name", "stepping")
    found: dict[str, str] = {}
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
            for line in file:
                name, _, value = line.partition(":")
                if name.strip() in wanted:
                    found.setdefault(name.strip(), value.strip())
                elif not line.strip():
                    break
    except OSError:
        return "unknown"
    return " ".join(found.get(name, "?") for name in wanted)
