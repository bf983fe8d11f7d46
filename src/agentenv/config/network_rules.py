"""What a network setting needs of the runtime and of the other one, which no single key can say.

A rule that nothing enforces is worse than none: where the runtime cannot hold it, or there is nothing to hold, the file
is refused.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from agentenv.config.faults import Fault, Path
from agentenv.config.network import NONE

_MACHINES = ("qemu", "firecracker")
_HINT = 'set runtime = "qemu" or "firecracker" in [global]'
_UNLIMITED = 'expected a network to limit, got {:g} with network = "none"'
_NOTHING_TO_LIMIT = 'set network = "internet", or leave it out'


def limits_of_nothing(tables: list[Any], defaults: Mapping[str, Any]) -> Iterator[Fault]:
    """Limits of a network where there is none, at the table that says so.

    One in the defaults is for those environments that have a network; it is wrong where none of them has.

    Args:
        tables: The environments as written.
        defaults: Of all of them, as written.
    """
    some_open = False
    for index, own in enumerate(tables):
        if not isinstance(own, Mapping):
            continue
        if not is_closed(own, defaults):
            some_open = True
        elif _is_rate(mbps := own.get("network_mbps")):
            yield Fault(("environments", index, "network_mbps"), _UNLIMITED.format(mbps), _NOTHING_TO_LIMIT)
    if tables and not some_open and _is_rate(mbps := defaults.get("network_mbps")):
        yield Fault(("global", "defaults", "network_mbps"), _UNLIMITED.format(mbps), _NOTHING_TO_LIMIT)


def is_closed(own: Mapping[str, Any], defaults: Mapping[str, Any]) -> bool:
    """Whether an environment, as written, has no network."""
    return own.get("network", defaults.get("network", NONE)) in (NONE, False)


def _is_rate(value: object) -> bool:
    """Whether it is a number; what else it may be is refused elsewhere."""
    return isinstance(value, int | float) and not isinstance(value, bool)


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
