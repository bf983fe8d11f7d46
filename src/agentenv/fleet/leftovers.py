"""What a killed run left behind, removed by the next one."""

from __future__ import annotations

import logging

from agentenv.errors import AgentEnvError, counted
from agentenv.sandbox.sweep import sweep

logger = logging.getLogger("agentenv.fleet")


def remove_leftovers() -> None:
    """Remove what has a name and belongs to runs that are dead; a failure to do so is no reason not to run."""
    try:
        removed = sweep()
    except (AgentEnvError, OSError) as error:
        logger.warning("cannot remove what an earlier run left behind: %s", error)
        return
    if removed:
        logger.info("removed what was left of %s that were killed", counted(len(removed), "run"))
