"""From a file, a dict or keyword arguments to a checked :class:`Config`.

Read, apply ``--set``, merge the defaults, check: every mistake of every step that can still be taken is reported at
once. Nothing is guessed, created or imported here, and nothing outside the one file is read.
"""

from __future__ import annotations

import os
import pathlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from pydantic import ValidationError

from agentenv.config.explain import explain
from agentenv.config.faults import Fault
from agentenv.config.merge import has_command, is_inherited, merge_defaults, plain, split, without_none
from agentenv.config.model import ConfigTable, EnvironmentConfig, GlobalConfig, GlobalTable, keys_of
from agentenv.config.monitors import monitor_conflicts
from agentenv.config.names import name_wrappers
from agentenv.config.nearest import suggest_keyword
from agentenv.config.network_rules import limits_of_nothing, network_conflicts
from agentenv.config.origin import DICT, KEYWORD, Origin
from agentenv.config.overrides import apply_overrides
from agentenv.config.read import parse, read_text
from agentenv.config.resolved import Config
from agentenv.config.rules import command_conflicts, default_conflicts, id_collisions
from agentenv.config.words import got
from agentenv.errors import ConfigError, Problem

_TABLES = ("bubblewrap", "qemu", "firecracker")

Source = str | os.PathLike[str] | Mapping[str, Any] | Config


def load_config(source: Source, *, overrides: Sequence[str] = ()) -> Config:
    """Load and check a configuration.

    Args:
        source: Path of a TOML file; or a mapping of the same structure; or a Config, to apply overrides to it.
        overrides: ``path=value`` strings as of ``--set``, such as ``global.seed=3``,
            ``environments.agent_1.memory_mb=64`` or ``environments[0].count=5``. The value is read as TOML, else taken
            as a string; ``null`` unsets the key.

    Raises:
        ConfigError: The file cannot be read, or says something wrong; carries every mistake found.
    """
    if isinstance(source, Config):
        if not overrides:
            return source
        table = source.to_dict()
        # Merged already, so a default set now would be hidden by every environment.
        if late := [override for override in overrides if override.startswith("global.defaults")]:
            hint = "set it for the environments, or load the file again"
            raise ConfigError([Problem("--set", late[0], "the defaults of a loaded Config are merged already", hint)])
        loaded = _build(table, Origin(source.source), overrides)
        return replace(loaded, base_dir=source.base_dir)
    if isinstance(source, Mapping):
        return _build(_copied(source, DICT), Origin(DICT), overrides)
    if not isinstance(source, (str, os.PathLike)):
        message = f"expected a path, a mapping or a Config, {got(source)}"
        raise ConfigError([Problem("load_config", "source", message)])
    name = os.fsdecode(source)
    text = read_text(name)
    config = _build(parse(text, name), Origin(name, text), overrides)
    return replace(config, base_dir=pathlib.Path(name).absolute().parent)


def config_from_keywords(env: str | None, **keywords: Any) -> Config:
    """A configuration of one ``[[environments]]`` table from keyword arguments.

    Args:
        env: A Gymnasium id or ``module:callable``; None for the built-in GridWorld or with ``command``.
        keywords: Every key of ``[[environments]]`` and of ``[global]``. ``seed``, which both have, is the
            environment's; ``id`` is "env" unless given. None stands for "not given". A wrapper may be an importable
            class or function. A runtime's own table is a mapping by its name: ``qemu={"agent_port": "vsock"}``.

    Raises:
        ConfigError: With every unknown keyword and wrong value.
    """
    environment: dict[str, Any] = {"env": env}
    settings: dict[str, Any] = {}
    tables: dict[str, Any] = {}
    unknown = []
    for key, value in keywords.items():
        if key in keys_of(EnvironmentConfig):
            environment[key] = name_wrappers(value) if key == "wrappers" else value
        elif key in keys_of(GlobalTable):
            settings[key] = value
        elif key in _TABLES:
            tables[key] = value
        else:
            unknown.append(Problem(KEYWORD, key, "unknown keyword", suggest_keyword(key)))
    if environment.get("id") is None:
        environment["id"] = "env"
    table = {"global": settings, "environments": [environment], **tables}
    return _build(_copied(table, KEYWORD), Origin(KEYWORD), earlier=unknown)


def _copied(table: Mapping[str, Any], name: str) -> dict[str, Any]:
    try:
        copy: dict[str, Any] = plain(table)
    except RecursionError:
        message = "expected tables and lists that do not contain themselves and are not nested too deeply"
        raise ConfigError([Problem(name, "configuration", message)]) from None
    return copy


def _build(
    table: dict[str, Any], origin: Origin, overrides: Sequence[str] = (), earlier: Sequence[Problem] = ()
) -> Config:
    touched, refused = apply_overrides(table, overrides)
    origin.overridden |= touched
    table = without_none(table)
    own_tables, defaults = split(table)
    merged = dict(table)
    if own_tables:
        merged["environments"] = [merge_defaults(own, defaults) if isinstance(own, dict) else own for own in own_tables]
    checked: ConfigTable | None = None
    faults: list[Fault] = []
    try:
        checked = ConfigTable.model_validate(merged)
    except ValidationError as error:
        faults += [fault for fault in explain(error) if not is_inherited(fault, own_tables, defaults)]
    faults += default_conflicts(defaults)
    for index, own in enumerate(own_tables):
        if isinstance(own, dict):
            faults += command_conflicts(index, own, has_command=has_command(own, defaults))
    faults += monitor_conflicts(merged)
    faults += network_conflicts(own_tables, defaults, table.get("global"))
    faults += limits_of_nothing(own_tables, defaults)
    faults += id_collisions(own_tables, origin)
    problems = [*origin.problems(faults), *earlier, *refused]
    if problems or checked is None:
        raise ConfigError(problems)
    settings = GlobalConfig.model_validate(checked.global_.model_dump(exclude={"defaults"}))
    return Config(
        settings,
        checked.environments,
        checked.bubblewrap,
        checked.qemu,
        checked.firecracker,
        checked.network,
        source=origin.name,
    )
