"""Machines that really run in Firecracker, jailed and not."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from agentenv.sandbox.runtimes._vm.accelerator import probe_kvm
from agentenv.sandbox.runtimes._vm.machine import Hypervisor, Spawn
from agentenv.sandbox.runtimes.firecracker.hypervisor import FirecrackerHypervisor
from agentenv.sandbox.runtimes.firecracker.jail import JailOptions
from sandbox.vm.assets import Assets
from sandbox.vm.machine_suite import MachineSuite

if not (_kvm := probe_kvm()).works:
    pytest.skip(f"{_kvm.detail}; {_kvm.remedy}", allow_module_level=True)

_NOBODY = 65534


@pytest.fixture(scope="module", params=["plain", "jailed"])
def hypervisor(request: pytest.FixtureRequest, spawn: Spawn, machine_assets: Assets) -> Iterator[Hypervisor]:
    jail = None
    if request.param == "jailed":
        if os.geteuid() != 0:
            pytest.skip("jailing needs root")
        jail = JailOptions(str(machine_assets.bin / "jailer"), _NOBODY, _NOBODY)
    made = FirecrackerHypervisor(spawn, binary=str(machine_assets.bin / "firecracker"), jail=jail)
    yield made
    made.close()


class TestFirecracker(MachineSuite):
    """See the suite."""
