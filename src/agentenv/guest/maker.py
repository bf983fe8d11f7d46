"""From the names in a configuration to a live environment, inside the sandbox.

A name is a Gymnasium id, Gymnasium's own ``module:Id-v0``, or ``module:callable``. Nothing is imported on the host.
"""

from __future__ import annotations

import importlib
import os
from typing import Any

import gymnasium
from gymnasium.wrappers import TimeLimit

# The tools, which nothing but a machine has there.
_OF_MACHINES = "/.agentenv/bin/agent"


class EnvironmentNotFound(LookupError):
    """The name in the configuration leads to no environment; says what would."""


def resolve(name: str) -> Any:
    """The object behind ``module:attribute.path``.

    Raises:
        EnvironmentNotFound: The module imports, but has no such attribute.
    """
    module_name, _, path = name.partition(":")
    try:
        found: Any = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not (module_name + ".").startswith(error.name + "."):
            raise
        raise EnvironmentNotFound(
            f"{name!r}: no module {error.name!r} in the sandbox, which sees {_seen()}, the directories of sys.path and"
            f" the directory of the configuration file; install the package{_where()} or put the module there"
        ) from error
    for part in path.split("."):
        try:
            found = getattr(found, part)
        except AttributeError:
            raise EnvironmentNotFound(f"{name!r}: module {module_name!r} has no {path!r}") from None
    return found


def make_environment(description: dict[str, Any]) -> gymnasium.Env[Any, Any]:
    """Build one environment with its wrappers.

    Args:
        description: ``env``, ``imports``, ``kwargs``, ``wrappers``, ``max_episode_steps``, ``render_mode``.

    Raises:
        EnvironmentNotFound: No environment of that name.
        TypeError: What the name leads to is not an environment.
    """
    name: str = description["env"]
    for module in description["imports"]:
        _import_registrar(module, name)
        if module == "agentenv.envs.registration":
            importlib.import_module(module).register_envs()
    kwargs: dict[str, Any] = dict(description["kwargs"])
    if description["render_mode"] is not None:
        kwargs["render_mode"] = description["render_mode"]
    limit = description["max_episode_steps"]
    env: Any
    if ":" in name and not _is_registered(name):
        env = resolve(name)(**kwargs)
        if limit is not None:
            env = TimeLimit(env, max_episode_steps=limit)
    else:
        try:
            env = gymnasium.make(name, max_episode_steps=limit, **kwargs)
        except (gymnasium.error.UnregisteredEnv, gymnasium.error.DeprecatedEnv) as error:
            if name.rpartition(":")[2] in gymnasium.registry:
                raise  # it was found, and asked for another one itself
            nameless = isinstance(error, (gymnasium.error.NameNotFound, gymnasium.error.NamespaceNotFound))
            # Gymnasium ends some of its sentences with "?." and some with nothing.
            said = str(error).replace("?.", "?")
            said += "" if said.endswith((".", "?")) else "."
            raise EnvironmentNotFound(f"{said} {_advice(name)}" if nameless else said) from error
    for wrapper in description["wrappers"]:
        env = resolve(wrapper["wrapper"])(env, **wrapper["kwargs"])
    missing = [part for part in ("reset", "step", "observation_space", "action_space") if not hasattr(env, part)]
    if missing:
        raise TypeError(f"{name!r} made a {type(env).__name__}, which lacks {', '.join(missing)}: not an environment")
    return env  # type: ignore[no-any-return]  # duck-typed on purpose; checked just above


def _import_registrar(module: str, name: str) -> None:
    try:
        importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or not (module + ".").startswith(error.name + "."):
            raise
        raise EnvironmentNotFound(
            f"{name!r} is registered by {error.name!r}, and there is no such module in the sandbox;"
            f" install it{_where()}"
        ) from error


def _seen() -> str:
    return "the packages of its image" if os.path.exists(_OF_MACHINES) else "the installed packages"


def _where() -> str:
    """Where packages are installed for the environment, unless that is where everybody installs them."""
    if not os.path.exists(_OF_MACHINES):
        return ""
    return " into the machine's image (agentenv image build NAME --from SOURCE --pip PACKAGE)"


def _advice(name: str) -> str:
    """What to write instead of an id that Gymnasium does not know."""
    module, _, attribute = name.rpartition(".")
    if module and all(part.isidentifier() for part in name.split(".")):
        return f'For {attribute} of the module {module}: env = "{module}:{attribute}".'
    return (
        "An environment registered in __main__ or in a module the sandbox has not imported is unknown there: name the"
        f' package that registers it, as in env = "package:{name}", or give "module:callable".'
    )


def _is_registered(name: str) -> bool:
    """Whether ``module:Id`` is a registration of Gymnasium once the module is imported."""
    module_name, _, rest = name.partition(":")
    try:
        importlib.import_module(module_name)
    except ModuleNotFoundError:
        return False
    return rest in gymnasium.registry
