"""Machines by QEMU: with KVM where that works, emulated where it does not."""

from __future__ import annotations

from agentenv.sandbox.runtimes._vm.machine import Hypervisor, Spawn
from agentenv.sandbox.runtimes._vm.runtime import VmRuntime
from agentenv.sandbox.runtimes.qemu.hypervisor import QemuHypervisor


class QemuRuntime(VmRuntime):
    """See ``agentenv.sandbox.contract.Runtime``."""

    name = "qemu"

    def find_hypervisor(self, spawn: Spawn) -> Hypervisor:
        """QEMU; see the base."""
        settings = self._options.settings
        return QemuHypervisor(
            spawn,
            binary=settings.get("binary"),
            accelerator=settings.get("accelerator", "auto"),
            agent_port=settings.get("agent_port", "serial"),
        )
