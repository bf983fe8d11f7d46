"""What of the network a sandbox reaches: read as a configuration is, and seen to be possible before anything starts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from agentenv.errors import RuntimeUnavailable
from agentenv.sandbox.network import NONE, Network

Setting = str | Mapping[str, Sequence[str]]
"""As ``network`` of a configuration: "none", "internet", or lists "allow" and "deny"."""
_INSTEAD = ', or set network = "none"'


def read_reach(network: Setting, mbps: float | None = None) -> Network | None:
    """What a user gives, checked by the code that checks configurations; None for nothing.

    Args:
        network: What is open.
        mbps: Most megabits a second in each direction; None for no limit.

    Raises:
        ConfigError: A value cannot be used; has all mistakes, by the names of the keyword arguments.
    """
    if network == NONE and mbps is None:
        return None
    from agentenv.config.load import config_from_keywords
    from agentenv.fleet.networks import network_of

    # Some runtimes cannot hold to lists. Those that make sandboxes can, all of them.
    config = config_from_keywords(None, runtime="qemu", network=network, network_mbps=mbps)
    return network_of(config.environments[0])


def expect_networks(source: str = "") -> None:
    """See that this host can give machines a network; what killed ones left of theirs is removed.

    Args:
        source: The snapshot that is to be brought back, for people; "" for a new sandbox.

    Raises:
        RuntimeUnavailable: It cannot; says why.
    """
    from agentenv.sandbox.runtimes._net.programs import find_programs
    from agentenv.sandbox.runtimes._net.sweep import sweep_networks

    try:
        find_programs()
    except RuntimeUnavailable as error:
        if not source:
            raise
        said = str(error).partition("\n  remedy: ")[0]
        raise RuntimeUnavailable(
            f"{source} was made of a sandbox with a network, and is brought back with it only: {said}",
            error.remedy.removesuffix(_INSTEAD),
        ) from error
    sweep_networks()
