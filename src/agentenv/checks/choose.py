"""Which environments of a configuration are examined: each kind once, programs not at all."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from agentenv.config import Config, EnvironmentConfig
from agentenv.errors import ConfigError, Problem

# What tells copies apart, or says how they are played by a run: nothing that is looked at here.
_IRRELEVANT = {
    *("id", "count", "seed", "policy", "episodes"),
    *("on_crash", "checkpoint_every", "restart", "max_restarts", "restart_window_s", "restart_backoff_s"),
    "on_quarantine",
}
COMMAND = "a command is a program of its own and has no steps to look at"


@dataclass(frozen=True, slots=True)
class Chosen:
    """What to examine.

    Attributes:
        environment: The first of its kind, expanded.
        others: Ids of those equal to it.
    """

    environment: EnvironmentConfig
    others: Sequence[str]


@dataclass(frozen=True, slots=True)
class Choice:
    """All of a configuration.

    Attributes:
        chosen: To examine.
        refused: Ids that are not examined, with the reason.
    """

    chosen: Sequence[Chosen]
    refused: Sequence[tuple[str, str]]


def choose(config: Config, only: str | None) -> Choice:
    """Choose.

    Args:
        config: The configuration.
        only: The id of the one that is wanted, as in the file or with a copy's number; None for all.

    Raises:
        ConfigError: There is no such id, or nothing to examine.
    """
    expanded = config.expand()
    if only is not None:
        tables = [environment.id for environment in config.environments]
        expanded = tuple(e for e in expanded if e.id == only) or _copies(config, only)[:1]
        if not expanded:
            known = ", ".join(tables[:10]) + (", ..." if len(tables) > 10 else "")
            raise ConfigError([Problem("command line", "--env", f"expected one of {known}, got {only!r}")])
    kinds: dict[str, list[EnvironmentConfig]] = {}
    refused = []
    for environment in expanded:
        if environment.command is not None:
            refused.append((environment.id, COMMAND))
            continue
        kinds.setdefault(environment.model_dump_json(exclude=_IRRELEVANT), []).append(environment)
    if not kinds:
        hint = "examine an environment with env, or run this one: agentenv run"
        raise ConfigError([Problem(config.source, f"environments.{refused[0][0]}", COMMAND, hint)])
    return Choice([Chosen(kind[0], [other.id for other in kind[1:]]) for kind in kinds.values()], refused)


def _copies(config: Config, table: str) -> tuple[EnvironmentConfig, ...]:
    from dataclasses import replace

    return replace(config, environments=tuple(e for e in config.environments if e.id == table)).expand()
