"""Which module registers a Gymnasium id: Gymnasium 1.x imports no third-party package by itself.

A table of the id's first characters, or of its last, for packages in wide use, so that ``env = "ALE/Breakout-v5"``
and ``env = "PongNoFrameskip-v4"`` work as they stand.
An id not listed here works as ``module:Id-v0``, or when the host process has it registered.
"""

from __future__ import annotations

import re
from itertools import chain
from typing import Any

import gymnasium

_REGISTRARS = (
    ("ALE/", "ale_py"),
    ("MiniGrid-", "minigrid"),
    ("BabyAI-", "minigrid"),
    ("MiniWorld-", "miniworld"),
    ("highway-", "highway_env"),
    ("merge-", "highway_env"),
    ("roundabout-", "highway_env"),
    ("parking-", "highway_env"),
    ("intersection-", "highway_env"),
    ("racetrack-", "highway_env"),
    ("Fetch", "gymnasium_robotics"),
    ("HandManipulate", "gymnasium_robotics"),
    ("PointMaze_", "gymnasium_robotics"),
    ("AntMaze_", "gymnasium_robotics"),
    ("AdroitHand", "gymnasium_robotics"),
    ("FrankaKitchen-", "gymnasium_robotics"),
    ("procgen", "procgen"),
    ("browsergym/", "browsergym"),
    ("agentenv/", "agentenv.envs.registration"),
)
# Atari's older ids have no prefix in common. The bare "Pong-v4" could be anybody's and stays out.
_REGISTRARS_BY_SUFFIX = ((re.compile(r"\w+?(-ram)?(NoFrameskip|Deterministic|-ram)-v\d+", re.ASCII), "ale_py"),)


def registrar(env_id: str) -> str | None:
    """The module to import so that the id is registered, or None when Gymnasium has it itself or nobody knows."""
    try:
        entry: Any = gymnasium.spec(env_id).entry_point
    except gymnasium.error.Error:
        by_prefix = (module for prefix, module in _REGISTRARS if env_id.startswith(prefix))
        by_suffix = (module for pattern, module in _REGISTRARS_BY_SUFFIX if pattern.fullmatch(env_id))
        return next(chain(by_prefix, by_suffix), None)
    if not isinstance(entry, str):
        return None
    package = entry.partition(":")[0].partition(".")[0]
    if env_id.startswith("agentenv/"):
        return "agentenv.envs.registration"
    return None if package == "gymnasium" else package


def implementation(env_id: str) -> str | None:
    """The module that implements a registered id, or None."""
    try:
        entry: Any = gymnasium.spec(env_id).entry_point
    except gymnasium.error.Error:
        return None
    return entry.partition(":")[0] if isinstance(entry, str) else None
