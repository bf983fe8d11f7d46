"""Makes agentenv's own environments known to `gymnasium.make`.

Gymnasium reads no entry points of installed packages, so somebody has to import us first: after ``import agentenv``, or
as ``gymnasium.make("agentenv:agentenv/GridWorld-v0")``. A registration names the class and does not import it.
"""

from __future__ import annotations

import gymnasium

GRIDWORLD_ID = "agentenv/GridWorld-v0"
GRIDWORLD_MAX_EPISODE_STEPS = 200


def register_envs() -> None:
    """Register the built-in environments; a second call changes nothing."""
    if GRIDWORLD_ID not in gymnasium.registry:
        gymnasium.register(
            id=GRIDWORLD_ID,
            entry_point="agentenv.envs.gridworld:GridWorld",
            max_episode_steps=GRIDWORLD_MAX_EPISODE_STEPS,
        )
