"""Which runtime a run gets: what was asked for, or what "auto" finds, said once with the reason."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from agentenv.config import Config, EnvironmentConfig
from agentenv.errors import RuntimeUnavailable
from agentenv.sandbox.registry import choose

logger = logging.getLogger("agentenv.fleet")

_said: set[tuple[str, str]] = set()
_LEAST_MB = 128


def choose_runtime(config: Config, environments: Sequence[EnvironmentConfig]) -> str:
    """The name of the runtime.

    Args:
        config: The configuration.
        environments: Those that may be started, expanded.

    Raises:
        RuntimeUnavailable: Nothing gives what was asked.
    """
    name, why = _choose(config, environments)
    if why and (name, why) not in _said:
        _said.add((name, why))
        logger.info('runtime "auto" is %s (%s)', name, why)
    return name


def explain_automatic(config: Config) -> tuple[str, str]:
    """What "auto" is on this host, and why; the name is "" where it is nothing."""
    try:
        name, why = _choose(replace(config, global_=config.global_.model_copy(update={"runtime": "auto"})), ())
    except RuntimeUnavailable as error:
        return "", str(error).replace("\n  remedy: ", "; ")
    return name, why


def _choose(config: Config, environments: Sequence[EnvironmentConfig]) -> tuple[str, str]:
    """The runtime, and the reason where it was not asked for by its name."""
    found: list[str] = []

    def obstacle() -> str:
        found.append(_unfit(environments) or _try_firecracker(config))
        return found[-1]

    name = choose(config.global_.runtime, config.global_.isolation, obstacle=obstacle)
    if not found:
        return name, ""
    return name, f"firecracker is not taken: {found[0]}" if found[0] else "a machine was booted by it here"


def monitor_settings(config: Config, name: str) -> dict[str, Any]:
    """A runtime's own table as plain data, with the paths in it made absolute; empty where it has none."""
    table = getattr(config, name, None)  # "process" has none
    settings: dict[str, Any] = {} if table is None else table.model_dump()
    for key in ("binary", "jailer"):
        if isinstance(settings.get(key), str):
            settings[key] = str(config.resolve(settings[key]))
    for drive in settings.get("drives", ()):
        drive["path"] = str(config.resolve(drive["path"]))
    return settings


def _unfit(environments: Sequence[EnvironmentConfig]) -> str:
    """What the environments ask for that machines do not give, or not to everybody; "" where there is nothing."""
    for environment in environments:
        if environment.memory_mb < _LEAST_MB:
            return f"{environment.id} has memory_mb = {environment.memory_mb}, and a machine needs {_LEAST_MB}"
        if _asks_for_the_internet(environment.network):
            return f"{environment.id} has a network, which bubblewrap gives without root"
    return ""


def _asks_for_the_internet(network: object) -> bool:
    """A table of what is allowed is another thing: only machines have that."""
    return network is True or network == "internet"


def _try_firecracker(config: Config) -> str:
    # Images, kernels and monitors are a lot to import where nobody has them.
    from agentenv.sandbox.automatic import firecracker_obstacle

    def open_files() -> Any:
        from agentenv.fleet.machines import machine_files

        return machine_files([])

    settings: Mapping[str, Any] = monitor_settings(config, "firecracker")
    return firecracker_obstacle(settings, open_files)
