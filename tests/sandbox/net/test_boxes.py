"""Sandboxes by hand in a small world: what one reaches, what its copies do, and those that a command leaves behind."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from agentenv import Sandbox
from agentenv.testing import traces
from cli_watch import poll
from machines_ground import need_machines
from sandbox.net.world import HOST, METADATA, OTHER_PUBLIC, PRIVATE, PUBLIC, World, made

pytestmark = pytest.mark.timeout(300)

LISTED = f"{PUBLIC}:80"
NETWORK = {"allow": [LISTED]}
# Each target is tried by a thread of its own: what is dropped instead of refused costs its patience once.
REACHING = """
import concurrent.futures, errno, json, socket, sys

def reach(target):
    address, _, port = target.partition(":")
    try:
        with socket.create_connection((address, int(port)), timeout=5) as connection:
            return connection.recv(100).decode()
    except TimeoutError:
        return "silent"
    except OSError as error:
        return errno.errorcode.get(error.errno, str(error))

targets = sys.argv[1:]
with concurrent.futures.ThreadPoolExecutor(len(targets)) as pool:
    print(json.dumps(dict(zip(targets, pool.map(reach, targets)))))
"""
PORT = 7777
OWN = f"127.0.0.1:{PORT}"
SERVING = f"""
import os, socket

listener = socket.create_server(("0.0.0.0", {PORT}))
if os.fork():
    os._exit(0)
while True:
    with listener.accept()[0] as connection:
        connection.sendall(b"mine")
"""
TARGETS = [f"{address}:{port}" for address in (PUBLIC, OTHER_PUBLIC, HOST, METADATA, PRIVATE) for port in (80, 443)]
REACHED = {target: f"hello {HOST}" if target == LISTED else "EHOSTUNREACH" for target in TARGETS}


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    need_machines()
    path = tmp_path_factory.mktemp("ground")
    with pytest.MonkeyPatch.context() as patch, made() as world:
        patch.setenv("AGENTENV_DATA", str(path / "data"))
        patch.setenv("XDG_RUNTIME_DIR", str(path))
        yield world


def reach(box: Sandbox, targets: list[str]) -> dict[str, str]:
    done = box.exec(["python3", "-c", REACHING, *targets], timeout_s=60, check=True)
    found: dict[str, str] = json.loads(done.text)
    return found


def address(box: Sandbox) -> str:
    """Of its machine, among those of this host's machines."""
    return str(box._access._sandbox.link.address)  # type: ignore[attr-defined]  # it is one of this process


def devices() -> list[str]:
    """Those that lead to machines."""
    return [name for _, name in socket.if_nameindex() if name.startswith("aev")]


def test_copies_and_what_is_brought_back_reach_the_same_and_nothing_else(world: World) -> None:
    before = traces.take()
    with Sandbox.create(runtime="qemu", memory_mb=256, network=NETWORK, network_mbps=16) as box:
        box.exec(["python3", "-c", SERVING], check=True)
        (kid,) = box.fork()
        with kid:
            for one, other in ((box, kid), (kid, box)):
                found = {OWN: "mine", f"{address(other)}:{PORT}": "EHOSTUNREACH"} | REACHED
                assert reach(one, list(found)) == found
            kept = box.snapshot()
            for one in (box, kid):
                assert (one.describe().network, one.describe().network_mbps) == (NETWORK, 16.0)
    assert world.inventory() == world.before
    with Sandbox.from_snapshot(kept) as back:
        assert reach(back, TARGETS) == REACHED
        assert (back.describe().network, back.describe().network_mbps) == (NETWORK, 16.0)
    assert world.inventory() == world.before
    assert traces.take().left_since(before) == []


def test_those_of_a_command_keep_theirs_and_what_killed_ones_leave_is_removed(world: World) -> None:
    def shell(*arguments: str) -> Any:
        argv = [sys.executable, "-m", "agentenv.cli", *arguments, "--json"]
        done = subprocess.run(argv, capture_output=True, timeout=200)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    options = ["--name", "web", "--runtime", "qemu", "--memory-mb", "256", "--allow", LISTED]
    (web,) = shell("sandbox", "create", *options)["sandboxes"]
    try:
        (kid,) = shell("sandbox", "fork", "web", "--name", "kid")["sandboxes"]
        assert web["network"] == kid["network"] == NETWORK
        assert [one["network"] for one in shell("sandbox", "ls")["sandboxes"]] == [NETWORK, NETWORK]
        assert reach(Sandbox.connect("kid-1"), TARGETS) == REACHED
        keeper = Sandbox.connect("web")._access.owner.pid  # type: ignore[attr-defined]  # a keeper holds it
        os.kill(keeper, signal.SIGKILL)
        poll(lambda: len(devices()) == 1, "the machine whose keeper was killed is gone")
        shell("sweep")
        assert reach(Sandbox.connect("kid-1"), TARGETS) == REACHED
    finally:
        shell("sandbox", "rm", "--all")
    assert world.inventory() == world.before
