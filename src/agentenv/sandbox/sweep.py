"""What killed runs left behind: whatever has a name carries the run's id, from which one sees that it is dead."""

from __future__ import annotations

from agentenv.sandbox.runtimes._cgroup import sweep as sweep_groups
from agentenv.sandbox.runtimes._net.sweep import sweep_networks
from agentenv.sandbox.runtimes._vm.homes import sweep_homes
from agentenv.sandbox.taking import sweep_taking


def sweep() -> tuple[str, ...]:
    """Remove control groups, machines' directories and networks' rules of runs that are dead; returns their ids.

    Directories also where they hold half a snapshot.

    Raises:
        AgentEnvError: A control group cannot be removed.
    """
    return tuple(dict.fromkeys((*sweep_homes(), *sweep_taking(), *sweep_networks(), *sweep_groups())))
