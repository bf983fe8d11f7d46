"""Makes agentenv's own environments known to `gymnasium.make`, without importing anything for it.

Gymnasium reads no entry points of installed packages, so somebody has to import us first: ``import agentenv``, or
``gymnasium.make("agentenv:agentenv/GridWorld-v0")``. Where Gymnasium is not loaded yet, the registration waits until it
is: a command line that only prints its help, or a program that only wants our errors, does not pay for it. A
registration names the class and does not import it.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

GRIDWORLD_ID = "agentenv/GridWorld-v0"
GRIDWORLD_MAX_EPISODE_STEPS = 200


def register_envs() -> None:
    """Register the built-in environments; a second call changes nothing."""
    import gymnasium

    if GRIDWORLD_ID not in gymnasium.registry:
        gymnasium.register(
            id=GRIDWORLD_ID,
            entry_point="agentenv.envs.gridworld:GridWorld",
            vector_entry_point="agentenv.envs.registration:make_gridworlds",
            max_episode_steps=GRIDWORLD_MAX_EPISODE_STEPS,
        )


def register_when_loaded() -> None:
    """Register now if Gymnasium is loaded, else as soon as it has been."""
    if "gymnasium" in sys.modules:
        # Half-loaded when Gymnasium itself is importing us; whoever does that calls register_envs.
        if hasattr(sys.modules["gymnasium"], "register"):
            register_envs()
    elif not any(isinstance(finder, _Waiting) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Waiting())


def make_gridworlds(num_envs: int = 1, *, max_episode_steps: int | None = None, **kwargs: Any) -> Any:
    """What ``gymnasium.make_vec`` calls for GridWorld: isolated environments in an ``AgentVectorEnv``.

    Args:
        num_envs: Number of environments.
        max_episode_steps: Steps after which an episode is truncated.
        kwargs: Arguments of ``AgentVectorEnv.from_env`` (such as ``runtime`` or ``autoreset_mode``) and of GridWorld.
    """
    from agentenv.config import EnvironmentConfig
    from agentenv.config.model import GlobalTable, keys_of
    from agentenv.envs.vector import AgentVectorEnv

    ours = {"autoreset_mode", "copy", *keys_of(EnvironmentConfig), *keys_of(GlobalTable)}
    settings = {key: value for key, value in kwargs.items() if key in ours}
    layout = {key: value for key, value in kwargs.items() if key not in ours}
    settings["env_kwargs"] = {**settings.get("env_kwargs", {}), **layout}
    return AgentVectorEnv.from_env(GRIDWORLD_ID, num_envs, max_episode_steps=max_episode_steps, **settings)


class _Waiting(MetaPathFinder):
    """Stands first among the finders until ``gymnasium`` is imported, then steps aside."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != "gymnasium":
            return None
        sys.meta_path.remove(self)
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = _Registering(spec.loader)
        return spec


class _Registering(Loader):
    """Loads Gymnasium as its own loader does, then registers."""

    def __init__(self, loader: Loader) -> None:
        self._loader = loader

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        spec = module.__spec__
        if spec is not None:
            spec.loader = self._loader  # what importlib.resources and others ask must be the real one
        module.__loader__ = self._loader
        self._loader.exec_module(module)
        register_envs()
