"""Who acts in a run without a trainer: random actions, or a callable of the user's project.

A policy is the user's own code and runs on the host, outside every sandbox. What goes wrong in it is reported as the
user's mistake, with the traceback as text: a policy that cannot be made is a ``ConfigError``, one that fails later is a
``PolicyError`` and ends its own environment only.
"""

from __future__ import annotations

import importlib
import sys
import traceback
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from gymnasium import Space

from agentenv.config import EnvironmentConfig
from agentenv.errors import AgentEnvError, ConfigError, Problem
from agentenv.telemetry.text import message_of

Policy = Callable[[Any], Any]
"""From an observation to an action, for one environment."""


class PolicyError(AgentEnvError, RuntimeError):
    """A policy raised, or its action does not fit the action space.

    Attributes:
        traceback_text: Where it happened, as Python prints it; may be empty.
    """

    def __init__(self, message: str, traceback_text: str = "") -> None:
        self.traceback_text = traceback_text
        super().__init__(f"{message}\n{traceback_text.rstrip()}" if traceback_text else message)


def find_policy(name: str, directory: Path, *, where: str = "policy") -> Callable[..., Any] | None:
    """Import what a configuration names, without calling it.

    Args:
        name: "random" or ``module:callable``.
        directory: The configuration's own, looked at before ``sys.path``.
        where: The key, for the message.

    Returns:
        The callable, or None for "random".

    Raises:
        ConfigError: It cannot be imported, or is not callable.
    """
    if name == "random":
        return None
    module_name, _, path = name.partition(":")
    entry = str(directory)
    added = entry not in sys.path
    if added:
        sys.path.insert(0, entry)
    try:
        found: Any = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not (module_name + ".").startswith(error.name + "."):
            raise _mistake(where, name, f"importing it failed: {error}\n{traceback.format_exc()}") from error
        raise _mistake(
            where, name, f"expected an importable module, got no module {error.name!r}", f"put it into {directory}"
        ) from error
    except (Exception, SystemExit) as error:
        text = traceback.format_exc().rstrip()
        raise _mistake(where, name, f"importing it raised {message_of(error)}\n{text}") from error
    finally:
        if added and entry in sys.path:
            sys.path.remove(entry)
    try:
        for part in path.split("."):
            found = getattr(found, part)
    except AttributeError as error:
        raise _mistake(where, name, f"module {module_name!r} has no {path!r}") from error
    if not callable(found):
        raise _mistake(where, name, f"expected a callable, got {type(found).__name__}")
    return found  # type: ignore[no-any-return]  # checked to be callable just above


def find_policies(environments: Iterable[EnvironmentConfig], directory: Path) -> dict[str, Callable[..., Any] | None]:
    """Import every policy that these environments name; by that name. See ``find_policy``."""
    found: dict[str, Callable[..., Any] | None] = {}
    for environment in environments:
        if environment.command is None and environment.policy not in found:
            where = f"environments.{environment.id}.policy"
            found[environment.policy] = find_policy(environment.policy, directory, where=where)
    return found


def make_policy(
    found: Callable[..., Any] | None,
    observation_space: Space[Any],
    action_space: Space[Any],
    *,
    seed: int,
    action_seed: int,
) -> Policy | None:
    """The policy of one environment, as a function of the observation alone; see ``make_actor``."""
    actor = make_actor(found, observation_space, action_space, seed=seed, action_seed=action_seed)
    return None if actor is None else lambda observation: actor(observation, action_space)


def make_actor(
    found: Callable[..., Any] | None,
    observation_space: Space[Any],
    action_space: Space[Any],
    *,
    seed: int,
    action_seed: int,
) -> Callable[..., Any] | None:
    """What decides in one environment.

    Every policy is called with ``(observation, action_space)`` and returns an action. A class is instantiated first,
    once for each environment, with ``(observation_space, action_space, seed)``.

    Args:
        found: From ``find_policy``.
        observation_space, action_space: Of the environment.
        seed: For a class.
        action_seed: For ``action_space.sample()``, whoever calls it.

    Returns:
        The function or the instance, or None for random actions, which need no observation.

    Raises:
        PolicyError: The class raised.
    """
    action_space.seed(action_seed)
    if found is None or not isinstance(found, type):
        return found
    try:
        actor: Any = found(observation_space, action_space, seed)
    except (Exception, SystemExit) as error:
        text = f"making the policy raised {message_of(error)}"
        raise PolicyError(text, traceback.format_exc()) from error
    if not callable(actor):
        raise PolicyError(f"the policy {found.__qualname__} has no __call__(observation, action_space)")
    return actor  # type: ignore[no-any-return]  # checked to be callable just above


def _mistake(where: str, name: str, message: str, hint: str = "") -> ConfigError:
    return ConfigError([Problem(where, name, message, hint)])
