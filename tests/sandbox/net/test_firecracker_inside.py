"""Firecracker's machines in a small world, jailed and not, where KVM works."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest

from agentenv import AgentVectorEnv, load_config
from agentenv.sandbox.runtimes._vm.accelerator import probe_kvm
from machines_ground import need_machines
from sandbox.net.world import HOST, METADATA, PRIVATE, PUBLIC, World, made

if not (_kvm := probe_kvm()).works:
    pytest.skip(f"{_kvm.detail}; {_kvm.remedy}", allow_module_level=True)
if shutil.which("firecracker") is None:
    pytest.skip("expected firecracker on PATH: see docs/runtimes.md", allow_module_level=True)

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.timeout(1200)]

NETWORKS: list[Any] = ["internet", {"allow": [f"tcp://{METADATA}:80"]}, "none"]
TARGETS = [f"tcp://{address}:80" for address in (PUBLIC, METADATA, PRIVATE, HOST)]


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    need_machines()
    with made() as world:
        yield world


@pytest.mark.parametrize("jailed", [False, True], ids=["plain", "jailed"])
def test_each_reaches_exactly_what_is_open_to_it(world: World, jailed: bool) -> None:
    if jailed and (os.geteuid() != 0 or shutil.which("jailer") is None):
        pytest.skip("expected to be root, and jailer on PATH")
    keys: dict[str, Any] = {"env": "networked:Networked", "memory_mb": 256, "start_timeout_s": 240.0}
    environments = [{"id": f"env-{n}", **keys, "network": network} for n, network in enumerate(NETWORKS)]
    table = {"global": {"runtime": "firecracker"}, "firecracker": {"jailer": jailed}, "environments": environments}
    with closing(AgentVectorEnv(load_config(table))) as vec:
        vec.reset(seed=1)
        internet, listed, none = vec.call("reach", TARGETS)
    assert [internet[target].partition(" ")[0] for target in TARGETS] == ["hello", *["EHOSTUNREACH"] * 3]
    assert [listed[target].partition(" ")[0] for target in TARGETS] == ["EHOSTUNREACH", "hello", *["EHOSTUNREACH"] * 2]
    assert set(none.values()) == {"ENETUNREACH"}
    assert world.inventory() == world.before
