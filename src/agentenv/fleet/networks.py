"""From what environments say of their network to what their sandbox has of it."""

from __future__ import annotations

from collections.abc import Sequence

from agentenv.config import EnvironmentConfig
from agentenv.config.network import NetworkTable
from agentenv.errors import RuntimeUnavailable
from agentenv.sandbox.network import Network, read_network


def network_of(environment: EnvironmentConfig) -> Network | None:
    """What one environment reaches."""
    setting = environment.network
    lists = setting.model_dump() if isinstance(setting, NetworkTable) else setting
    return read_network(lists, environment.network_mbps)


def shared_network(sandbox_id: str, environments: Sequence[EnvironmentConfig]) -> Network | None:
    """What the environments of one sandbox reach together; one that says "none" reaches what the others do.

    Raises:
        RuntimeUnavailable: They say different things, of which one sandbox could enforce only one.
    """
    said = {network for environment in environments if (network := network_of(environment)) is not None}
    if len(said) > 1:
        raise RuntimeUnavailable(
            f"{sandbox_id}: its environments say different things of their network, and share it",
            "set envs_per_sandbox = 1, or the same network and network_mbps for all of them",
        )
    return next(iter(said), None)
