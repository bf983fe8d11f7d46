"""Machines by Firecracker, which needs a KVM that works."""

from __future__ import annotations

from agentenv.sandbox.runtimes._vm.machine import Hypervisor, Spawn
from agentenv.sandbox.runtimes._vm.runtime import VmRuntime
from agentenv.sandbox.runtimes.firecracker.hypervisor import FirecrackerHypervisor


class FirecrackerRuntime(VmRuntime):
    """See ``agentenv.sandbox.contract.Runtime``."""

    name = "firecracker"

    def find_hypervisor(self, spawn: Spawn) -> Hypervisor:
        """Firecracker; see the base."""
        return FirecrackerHypervisor(spawn, binary=self._options.settings.get("binary"))
