"""What no single key can be wrong about: keys that exclude each other, and ids that collide.

Pure functions from the tables as written to faults, so that these mistakes are reported together with the others, even
when other keys of the same table are wrong as well.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from agentenv.config.faults import Fault
from agentenv.config.model import MAX_COUNT
from agentenv.config.origin import Origin
from agentenv.errors import counted

LONGEST_ID = 63
WITHOUT_COMMAND = ("env", "env_kwargs", "wrappers")
ONLY_WITH_COMMAND = ("timeout_s",)
_BOTH = "expected env or command, got both"


def copy_ids(env_id: str, count: int) -> list[str]:
    """The ids of the copies an environment stands for: itself, or ``id-0``, ``id-1`` and so on."""
    return [env_id] if count == 1 else [f"{env_id}-{index}" for index in range(count)]


def command_conflicts(index: int, own: Mapping[str, Any], *, has_command: bool) -> Iterator[Fault]:
    """Keys of one table, as written, that its command excludes or that need one."""
    path = ("environments", index)
    if not has_command:
        hint = "an environment has start_timeout_s, reset_timeout_s and step_timeout_s"
        for key in ONLY_WITH_COMMAND:
            if key in own:
                yield Fault((*path, key), f"expected {key} only together with command", hint)
        return
    for key in WITHOUT_COMMAND:
        if own.get(key) not in (None, {}, []):
            message = _BOTH if key == "env" else f"expected no {key} beside command"
            yield Fault((*path, key), message, "a command is a whole agent process and has no environment of ours")


def default_conflicts(defaults: Mapping[str, Any]) -> Iterator[Fault]:
    """An env and a command as defaults at once, of which no environment could say which one it means."""
    if "env" in defaults and "command" in defaults:
        yield Fault(("global", "defaults", "env"), _BOTH, "keep one as the default")


def id_collisions(tables: list[Any], origin: Origin) -> Iterator[Fault]:
    """Ids that two copies would share, or that become too long with a copy's number."""
    owners: dict[str, int] = {}
    for index, table in enumerate(tables):
        if not isinstance(table, Mapping) or not isinstance(table.get("id"), str):
            continue
        env_id, count, path = table["id"], _count(table), ("environments", index, "id")
        copies = copy_ids(env_id, count)
        if len(env_id) <= LONGEST_ID < len(copies[-1]):
            longest = LONGEST_ID - (len(copies[-1]) - len(env_id))
            message = f"expected at most {counted(longest, 'character')} with count = {count}, got {len(env_id)}"
            yield Fault(path, message, f"the last copy would be {copies[-1]}")
        clash = next((name for name in copies if name in owners), None)
        if clash is not None:
            first = origin.describe(("environments", owners[clash]))
            message = f'expected an id of its own, got "{clash}" a second time'
            yield Fault(path, message, f"{first} has it already")
        owners.update((name, index) for name in copies if name not in owners)


def _count(table: Mapping[str, Any]) -> int:
    count = table.get("count")
    return count if type(count) is int and 1 <= count <= MAX_COUNT else 1
