"""Machines by Firecracker, which needs a KVM that works."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from agentenv.sandbox.runtimes._vm.machine import Hypervisor, Spawn
from agentenv.sandbox.runtimes._vm.runtime import VmRuntime
from agentenv.sandbox.runtimes.firecracker.hypervisor import FirecrackerHypervisor, find_jailer
from agentenv.sandbox.runtimes.firecracker.jail import JailOptions

_NOBODY = 65534


class FirecrackerRuntime(VmRuntime):
    """See ``agentenv.sandbox.contract.Runtime``."""

    name = "firecracker"

    def find_hypervisor(self, spawn: Spawn) -> Hypervisor:
        """Firecracker; see the base."""
        settings = self._options.settings
        return FirecrackerHypervisor(
            spawn,
            binary=settings.get("binary"),
            jail=_jail(settings),
            log_level=settings.get("log_level") or "warning",
        )


def _jail(settings: Mapping[str, Any]) -> JailOptions | None:
    jailer = settings.get("jailer")
    if not jailer:
        return None
    program = find_jailer(None if jailer is True else jailer)
    return JailOptions(program, settings.get("jailer_uid") or _NOBODY, settings.get("jailer_gid") or _NOBODY)
