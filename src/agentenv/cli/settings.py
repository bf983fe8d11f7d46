"""From the options of a command to a checked configuration: the options are overrides like those of ``--set``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from agentenv.config import Config, load_config
from agentenv.config.emit import emit_value
from agentenv.config.origin import OVERRIDE
from agentenv.errors import ConfigError, Problem
from agentenv.sandbox.registry import REGISTRY


def load(
    argument: Path | None,
    option: Path | None = None,
    *,
    envs: int | None = None,
    settings: Sequence[str] = (),
    episodes: int | None = None,
    seed: int | None = None,
    run_dir: Path | None = None,
    runtime: str | None = None,
) -> Config:
    """Load a file with the options of the command line put over it.

    Args:
        argument: The file as the argument; or
        option: as ``--config``; exactly one of them.
        envs: Environments in all.
        settings: ``path=value`` strings.
        episodes: Of every environment.
        seed, run_dir, runtime: As the keys of ``[global]``.

    Raises:
        ConfigError: With every mistake in the file and in the options.
    """
    if (argument is None) == (option is None):
        message = "expected one file, got " + ("none" if argument is None else "two: an argument and --config")
        raise ConfigError([Problem("command line", "CONFIG", message, "such as: agentenv run examples/gridworld.toml")])
    overrides = list(settings)
    if seed is not None:
        overrides.append(f"global.seed={seed}")
    if run_dir is not None:
        # As a literal string: a directory's name may look like a number.
        overrides.append(f"global.run_dir={emit_value(str(run_dir))}")
    if runtime is not None:
        overrides.append(f"global.runtime={emit_value(runtime)}")
    given = {"seed": seed, "run_dir": run_dir, "runtime": runtime}
    options = {f"global.{key}" for key, value in given.items() if value is not None}
    try:
        config = load_config(str(argument if option is None else option), overrides=overrides)
    except ConfigError as error:
        raise ConfigError([_as_given(problem, options) for problem in error.problems]) from None
    if episodes is not None:
        if episodes < 1:
            raise ConfigError([Problem("command line", "--episodes", f"expected at least 1, got {episodes}")])
        environments = tuple(e.model_copy(update={"episodes": episodes}) for e in config.environments)
        config = replace(config, environments=environments)
    return config if envs is None else config.scaled(envs)


def _as_given(problem: Problem, options: set[str]) -> Problem:
    """The problem under the name of the option that was given, where it is about one."""
    if problem.where != OVERRIDE or problem.path not in options:
        return problem
    name = "--" + problem.path.partition(".")[2].replace("_", "-")
    if name != "--runtime":
        return replace(problem, where="command line", path=name)
    names = ["auto", *(name for name, entry in REGISTRY.items() if entry.target)]
    said = problem.message.rpartition(", got ")[2]
    return Problem("command line", name, f"expected one of {', '.join(names)}, got {said}", problem.hint)
