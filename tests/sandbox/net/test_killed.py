"""A host process that is killed: what of its machines' networks ends by itself, and what the next run removes."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from agentenv.sandbox.sweep import sweep
from machines_ground import need_machines
from sandbox.net.world import HOST, PUBLIC, World, made

pytestmark = pytest.mark.timeout(300)

# Starts two machines, lets them reach the internet, says so, and waits to be killed.
_HOST = f"""
import json, sys
from agentenv import AgentVectorEnv

keys = dict(runtime="qemu", memory_mb=256, start_timeout_s=120.0, network="internet")
vec = AgentVectorEnv.from_env("networked:Networked", num_envs=2, **keys)
vec.reset(seed=1)
said = [list(answers.values()) for answers in vec.call("reach", ["tcp://{PUBLIC}:80"])]
print(json.dumps([vec._context.run_id, said]), flush=True)
sys.stdin.read()
"""
_PATIENCE_S = 30.0


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    need_machines()
    with made() as world:
        yield world


def becomes(condition: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + _PATIENCE_S
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0)
    return True


def devices() -> list[str]:
    return [name for _, name in socket.if_nameindex() if name.startswith("aev")]


def test_nothing_is_left_of_a_run_that_was_killed(world: World) -> None:
    with subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", _HOST],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[2],
    ) as host:
        assert host.stdout is not None
        run_id, said = json.loads(host.stdout.readline())
        assert said == [[f"hello {HOST}"]] * 2
        assert len(devices()) == 2
        assert run_id not in sweep()
        host.kill()
    # The kernel's part: devices go with the namespaces, these with the machines.
    assert becomes(lambda: devices() == [])
    assert f"agentenv_{run_id}" in world.inventory()["tables"]
    # Ours; the directory of its machines is removed by whoever comes first, its relay or we.
    assert becomes(lambda: run_id in sweep() or f"agentenv_{run_id}" not in world.inventory()["tables"])
    assert world.inventory() == world.before
