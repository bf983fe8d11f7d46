"""Isolated, reproducible environments for reinforcement-learning agents, behind the Gymnasium API."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from agentenv.envs.registration import register_when_loaded

if TYPE_CHECKING:
    from agentenv.boxes.box import Sandbox as Sandbox
    from agentenv.config import Config as Config
    from agentenv.config import load_config as load_config
    from agentenv.envs.env import AgentENV as AgentENV
    from agentenv.envs.snapshots import Snapshot as Snapshot
    from agentenv.envs.snapshots import load_snapshot as load_snapshot
    from agentenv.envs.vector import AgentVectorEnv as AgentVectorEnv

__version__ = "0.1.0"

_NAMES = {
    "AgentENV": "agentenv.envs.env",
    "AgentVectorEnv": "agentenv.envs.vector",
    "Config": "agentenv.config",
    "load_config": "agentenv.config",
    "Sandbox": "agentenv.boxes.box",
    "Snapshot": "agentenv.envs.snapshots",
    "load_snapshot": "agentenv.envs.snapshots",
    **dict.fromkeys(
        (
            "AgentEnvError",
            "Cause",
            "ClosedError",
            "ConcurrentUse",
            "ConfigError",
            "EnvError",
            "InvalidAction",
            "ProgramFailed",
            "ProtocolError",
            "ResourceLimit",
            "RunDamaged",
            "RuntimeUnavailable",
            "SandboxDied",
            "SandboxError",
            "SnapshotDamaged",
            "SnapshotError",
            "SnapshotUnknown",
            "StepTimeout",
        ),
        "agentenv.errors",
    ),
}

__all__ = ["__version__", *_NAMES]  # names of strings


def __getattr__(name: str) -> Any:
    """Import on first use: what runs inside a sandbox imports this package without wanting any of it."""
    if name in _NAMES:
        value = getattr(importlib.import_module(_NAMES[name]), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module 'agentenv' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)


register_when_loaded()
