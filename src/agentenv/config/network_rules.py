"""What a network setting needs of the runtime, which no single key can say.

A rule that nothing enforces is worse than none: where the runtime cannot hold it, the file is refused.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from agentenv.config.faults import Fault, Path

_MACHINES = ("qemu", "firecracker")
_HINT = 'set runtime = "qemu" or "firecracker" in [global]'


def network_conflicts(tables: list[Any], defaults: Mapping[str, Any], settings: object) -> Iterator[Fault]:
    """Networks that the runtime of the file cannot enforce, at the table that says so.

    Args:
        tables: The environments as written.
        defaults: Of all of them, as written.
        settings: ``[global]`` as written.
    """
    named = settings if isinstance(settings, Mapping) else {}
    runtime = named.get("runtime", "auto")
    if runtime in _MACHINES or (runtime == "auto" and named.get("isolation") == "vm") or not isinstance(runtime, str):
        return
    shown = 'runtime "auto" may be bubblewrap, which' if runtime == "auto" else f'runtime "{runtime}"'
    told: set[Path] = set()
    for index, own in enumerate(tables):
        if not isinstance(own, Mapping):
            continue
        for key in ("network", "network_mbps"):
            path: Path = ("environments", index, key) if key in own else ("global", "defaults", key)
            value = own.get(key, defaults.get(key))
            if path in told or (key == "network" and not isinstance(value, Mapping)) or value is None:
                continue
            told.add(path)
            if key == "network":
                message = f'expected "none" or "internet", got a table: {shown} cannot enforce allow and deny'
            else:
                message = f"expected no network_mbps: {shown} cannot enforce it"
            yield Fault(path, message, _HINT)
