"""The defaults put under each environment, before anything is checked.

Works on tables as written, however wrong they are: what cannot be merged is left for the checks to refuse.
"""

from __future__ import annotations

import numbers
import os
from collections.abc import Mapping
from typing import Any

from agentenv.config.faults import Fault
from agentenv.config.model import EnvironmentDefaults, keys_of
from agentenv.config.network_rules import is_closed
from agentenv.config.rules import ONLY_WITH_COMMAND, WITHOUT_COMMAND

MERGED_BY_KEY = ("env_vars", "env_kwargs")


def plain(value: Any) -> Any:
    """Copy what a Python caller passed as TOML would have given it; what has no counterpart stays, to be refused."""
    if isinstance(value, Mapping):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if isinstance(value, bool) or value is None:
        return value
    # Also NumPy's scalars, which a sweep over parameters hands out.
    if isinstance(value, numbers.Integral):
        return int(value)
    return float(value) if isinstance(value, numbers.Real) else value


def without_none(table: dict[str, Any]) -> dict[str, Any]:
    """Drop unset keys of the known tables; what is inside env_vars and env_kwargs keeps its None."""
    kept = {key: _drop(value, 2 if key == "environments" else 1) for key, value in table.items() if value is not None}
    settings = kept.get("global")
    if isinstance(settings, dict) and "defaults" in settings:
        settings["defaults"] = _drop(settings["defaults"], 1)
    return kept


def _drop(value: Any, depth: int) -> Any:
    if isinstance(value, list) and depth:
        return [_drop(item, depth - 1) for item in value]
    if isinstance(value, dict) and depth:
        return {key: item for key, item in value.items() if item is not None}
    return value


def split(table: dict[str, Any]) -> tuple[list[Any], dict[str, Any]]:
    """The environments as written, and the defaults; empty where they are missing or of the wrong kind."""
    environments, settings = table.get("environments"), table.get("global")
    defaults = settings.get("defaults") if isinstance(settings, dict) else None
    return (environments if isinstance(environments, list) else [], defaults if isinstance(defaults, dict) else {})


def has_command(own: Mapping[str, Any], defaults: Mapping[str, Any]) -> bool:
    """Whether an environment runs a command, its own or, where it says neither env nor command, the default one."""
    return "command" in own or ("command" in defaults and "env" not in own)


def merge_defaults(own: dict[str, Any], defaults: dict[str, Any]) -> dict[str, Any]:
    """Put the defaults under one table: what it says itself wins, env_vars and env_kwargs merge key by key.

    An environment that runs a command takes no ``env`` from the defaults, and the other way round; one without a
    network takes no limit of it.
    """
    excluded = WITHOUT_COMMAND if has_command(own, defaults) else ("command", *ONLY_WITH_COMMAND)
    known = set(keys_of(EnvironmentDefaults)).difference(excluded)
    if is_closed(own, defaults):
        known.discard("network_mbps")
    merged = {key: value for key, value in defaults.items() if key in known}
    for key, value in own.items():
        under = merged.get(key)
        if key in MERGED_BY_KEY and isinstance(under, dict) and isinstance(value, dict):
            value = {**under, **value}
        merged[key] = value
    return merged


def is_inherited(fault: Fault, own_tables: list[Any], defaults: Mapping[str, Any]) -> bool:
    """Whether a fault of an environment is one of the defaults, where it is reported already."""
    match fault.path:
        case ("environments", int(index), str(key), *rest) if key in defaults and key in keys_of(EnvironmentDefaults):
            own = own_tables[index]
            if not isinstance(own, dict) or key not in own:
                return isinstance(own, dict)
            inner = own[key]
            return key in MERGED_BY_KEY and isinstance(inner, dict) and bool(rest) and rest[0] not in inner
    return False
