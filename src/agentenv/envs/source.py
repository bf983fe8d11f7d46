"""What a face may be made from, and the configuration it stands for."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from typing import Any, get_args

from agentenv.config import Config, EnvironmentConfig, config_from_keywords, load_config
from agentenv.config.model import RenderMode
from agentenv.config.names import STAYS_HERE, importable_name
from agentenv.config.origin import KEYWORD
from agentenv.errors import ConfigError, Problem

Source = str | os.PathLike[str] | Config | Mapping[str, Any]


def split_source(source: Source, env_id: str | None) -> tuple[Config, str | None]:
    """A configuration, and the id of the environment that is meant, from any of the accepted forms.

    Args:
        source: Path of a TOML file; a ``Config``; a dict with the structure of the file; a dict with ``config_file``
            (and ``env_id``), as RLlib passes; or a dict with the keywords of ``from_env``.
        env_id: An id given beside it; wins over one in the dict.

    Raises:
        ConfigError: It is none of these, or wrong.
    """
    if not isinstance(source, Mapping):
        _refuse_name(source)
        return load_config(source), env_id
    values = dict(source)
    if "config_file" in values:
        path = values.pop("config_file")
        chosen = values.pop("env_id", None)
        if values:
            raise _mistake("dict", ", ".join(map(str, values)), "expected only config_file and env_id")
        return load_config(path), env_id if env_id is not None else chosen
    if "environments" in values or "global" in values:
        return load_config(values), env_id
    if "env" in values:
        return config_from_keywords(env_name(values.pop("env")), **values), env_id
    raise _mistake("dict", "config", 'expected the key "config_file", "environments" or "env"')


def choose_environment(config: Config, env_id: str | None) -> EnvironmentConfig:
    """The environment of that id, or the first one.

    Raises:
        ConfigError: There is none of that id, or it is a command.
    """
    environments = config.expand()
    by_id = {environment.id: environment for environment in environments}
    if env_id is None:
        chosen = environments[0]
    elif env_id in by_id:
        chosen = by_id[env_id]
    else:
        known = ", ".join(list(by_id)[:10]) + (", ..." if len(by_id) > 10 else "")
        raise _mistake(config.source, "env_id", f"no environment {env_id!r} in the configuration", f"it has {known}")
    refuse_commands(config, [chosen])
    return chosen


def with_render_mode(environment: EnvironmentConfig, render_mode: str) -> EnvironmentConfig:
    """The environment with another render mode.

    Raises:
        ConfigError: It is none that works inside a sandbox.
    """
    modes = get_args(RenderMode)
    if render_mode not in modes:
        hint = "there is no display inside a sandbox; render with rgb_array and show the frames yourself"
        raise _mistake(
            KEYWORD,
            "render_mode",
            f"expected one of {', '.join(modes)}, got {render_mode!r}",
            hint if render_mode == "human" else "",
        )
    return environment.model_copy(update={"render_mode": render_mode})


def refuse_commands(config: Config, environments: list[EnvironmentConfig]) -> None:
    """Raise for environments that are whole programs and cannot be stepped."""
    commands = [environment.id for environment in environments if environment.command is not None]
    if commands:
        raise _mistake(
            config.source,
            f"environments.{commands[0]}.command",
            "a command cannot be stepped from Python",
            "run it with `agentenv run`, or set env instead of command",
        )


def refuse_several(config: Config) -> None:
    """Raise where keywords ask for more environments than the one that is made."""
    count = config.environments[0].count
    if count != 1:
        hint = f"for several environments: AgentVectorEnv.from_env(env, num_envs={count})"
        raise _mistake(KEYWORD, "count", f"expected 1, got {count}: this makes one environment", hint)


def env_name(env: str | Callable[..., Any]) -> str:
    """The name to send into the sandbox for what a caller passed as ``env``.

    Raises:
        ConfigError: A callable that a sandbox could not import.
    """
    if isinstance(env, str):
        if env.endswith(".toml"):
            message = f"expected a Gymnasium id or module:callable, got the name of a file, {env!r}"
            raise _mistake(KEYWORD, "env", message, f"for a file: AgentENV({json.dumps(env)}), without from_env")
        return env
    name = importable_name(env)
    if name is None:
        raise _mistake("keyword argument", "env", f"{env!r} cannot be imported inside a sandbox", STAYS_HERE)
    return name


def _refuse_name(source: object) -> None:
    """Raise where an environment's name stands in the place of a file."""
    if isinstance(source, str) and source and not source.endswith(".toml") and not os.path.exists(source):
        hint = f"it takes a TOML file; for an environment by its name: AgentENV.from_env({json.dumps(source)})"
        raise _mistake(source, "file", "no such file", hint)


def _mistake(where: str, path: str, message: str, hint: str = "") -> ConfigError:
    return ConfigError([Problem(where, path, message, hint)])
