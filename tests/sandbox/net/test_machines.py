"""Real machines in a small world: what they reach, what they do not, and what is left of them afterwards."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest

from agentenv import AgentENV, AgentVectorEnv, load_config
from agentenv.testing import traces
from machines_ground import need_machines
from sandbox.net.inside import Inside
from sandbox.net.world import CONTAINER, HOST, METADATA, OTHER_PUBLIC, PRIVATE, PUBLIC, World, made

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.timeout(300)]

HELLO = f"hello {HOST}"
CLOSED = "EHOSTUNREACH"
NETWORKS: dict[str, Any] = {
    "first": "internet",
    "second": "internet",  # at 16 megabits a second
    "listed": {"allow": [f"{METADATA}:80", f"tcp://{HOST}:80", "10.1.0.0/16", f"udp://{PUBLIC}:443"]},
    "denied": {"deny": [f"{PUBLIC}:80", OTHER_PUBLIC]},
    "all": {"allow": ["0.0.0.0/0"], "deny": [f"tcp://{PRIVATE}"]},
    "none": "none",
}


def configuration(networks: dict[str, Any], **keys: Any) -> dict[str, Any]:
    environments = [
        {
            "id": name,
            "env": "networked:Networked",
            "memory_mb": 256,
            "start_timeout_s": 120.0,
            "network": network,
            **keys,
        }
        for name, network in networks.items()
    ]
    for environment in environments:
        if environment["id"] == "second":
            environment["network_mbps"] = 16
    return {"global": {"runtime": "qemu"}, "environments": environments}


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    need_machines()
    with made() as world:
        yield world


@pytest.fixture(scope="module")
def machines(world: World) -> Iterator[AgentVectorEnv]:
    """One of each, all at once, brought back from one snapshot but for the one without a network."""
    config = load_config({**configuration(NETWORKS), "network": {"dns": [OTHER_PUBLIC, PRIVATE]}})
    before = traces.take()
    with closing(AgentVectorEnv(config)) as vec:
        vec.reset(seed=1)
        yield vec
    assert world.inventory() == world.before
    assert traces.take().left_since(before) == []


def reached(vec: AgentVectorEnv, name: str, attempt: str) -> list[str]:
    return [said for said in ask(vec, name, "attempt", attempt) if said]


def ask(vec: AgentVectorEnv, name: str, method: str, *arguments: Any) -> Any:
    return vec.call(method, *arguments)[list(NETWORKS).index(name)]


TARGETS = [
    f"{protocol}://{address}:{port}"
    for address in (HOST, PUBLIC, OTHER_PUBLIC, METADATA, PRIVATE, CONTAINER)
    for protocol in ("tcp", "udp")
    for port in (80, 443)
]
OPEN: dict[str, set[str]] = {
    "first": {f"{p}://{a}:{n}" for p in ("tcp", "udp") for a in (PUBLIC, OTHER_PUBLIC) for n in (80, 443)},
    "listed": {
        f"tcp://{METADATA}:80",
        f"udp://{METADATA}:80",
        f"tcp://{HOST}:80",
        f"udp://{PUBLIC}:443",
        *(f"{p}://{PRIVATE}:{n}" for p in ("tcp", "udp") for n in (80, 443)),
    },
    "denied": {f"{p}://{PUBLIC}:443" for p in ("tcp", "udp")},
    "all": {t for t in TARGETS if not t.startswith(f"tcp://{PRIVATE}")},
}
OPEN["second"] = OPEN["first"]


def test_each_reaches_exactly_what_is_open_to_it(machines: AgentVectorEnv) -> None:
    answers = dict(zip(NETWORKS, machines.call("reach", TARGETS), strict=True))
    for name, opened in OPEN.items():
        found = {target for target, answer in answers[name].items() if answer.startswith("hello")}
        assert found == opened, name
        refused = {answer for target, answer in answers[name].items() if target not in opened}
        assert refused == {CLOSED}, name
    assert set(answers["none"].values()) == {"ENETUNREACH"}


def test_the_internet_sees_the_host_and_the_host_sees_whose_machine_it_is(machines: AgentVectorEnv) -> None:
    target = f"tcp://{PUBLIC}:443"
    for name in ("first", "second", "denied", "all"):
        assert ask(machines, name, "reach", [target]) == {target: HELLO}
    seen = {ask(machines, name, "reach", [f"tcp://{HOST}:80"])[f"tcp://{HOST}:80"] for name in ("listed", "all")}
    assert len(seen) == 2
    assert all(one.startswith("hello 10.213.") for one in seen)


def test_no_environment_reaches_another(machines: AgentVectorEnv, world: World) -> None:
    machines.call("listen", 7777)
    addresses = [str(sandbox.link.address) for sandbox in machines._fleet.sandboxes if sandbox.link is not None]
    assert len(set(addresses)) == 5
    devices = [address["local"] for one in world.programs.show("addr") for address in one.get("addr_info", ())]
    own = [address for address in devices if address.startswith("10.213.")]
    targets = [f"tcp://{address}:{port}" for address in (*addresses, *own) for port in (7777, 80)]
    for name in ("first", "all"):
        assert set(ask(machines, name, "reach", targets).values()) == {CLOSED}


def test_a_port_of_the_host_that_leads_elsewhere_is_as_closed_as_the_host(machines: AgentVectorEnv) -> None:
    target = f"tcp://{HOST}:8080"
    assert ask(machines, "first", "reach", [target]) == {target: CLOSED}
    assert ask(machines, "listed", "reach", [target]) == {target: CLOSED}
    # It is the container that answers, and it sees whose port was asked.
    assert ask(machines, "all", "reach", [target])[target].startswith("hello ")


def test_names_are_resolved_by_those_it_may_ask(machines: AgentVectorEnv) -> None:
    texts = machines.call("read", "/etc/resolv.conf")
    found = {
        name: [line.split()[1] for line in text.splitlines() if line.startswith("nameserver")]
        for name, text in zip(NETWORKS, texts, strict=True)
        if name != "none"
    }
    assert found == {
        "first": [OTHER_PUBLIC],
        "second": [OTHER_PUBLIC],
        "listed": [PRIVATE],
        "denied": [],
        "all": [OTHER_PUBLIC, PRIVATE],
    }


def test_what_a_machine_without_a_network_has(machines: AgentVectorEnv) -> None:
    devices = dict(zip(NETWORKS, machines.call("devices"), strict=True))
    assert devices["none"] == ["lo"]
    assert devices["first"] == devices["all"] == ["eth0", "lo"]


def test_the_attacks_on_the_network_reach_nothing(machines: AgentVectorEnv) -> None:
    assert reached(machines, "none", "outside") == []
    assert reached(machines, "all", "outside") != []
    for name in ("none", "first", "all"):
        assert reached(machines, name, "families") == [], name
        assert reached(machines, name, "own_loopback") == [], name


def test_a_machine_that_is_killed_comes_back_with_its_network(machines: AgentVectorEnv, world: World) -> None:
    target = f"tcp://{PUBLIC}:443"
    sandbox = machines._fleet.sandboxes[0]
    before = sandbox.link.address
    os.kill(sandbox.pid, signal.SIGKILL)
    machines.step(machines.action_space.sample())
    assert machines._fleet.sandboxes[0] is not sandbox
    assert ask(machines, "first", "reach", [target]) == {target: HELLO}
    assert sandbox.link.closed
    assert before not in {one.link.address for one in machines._fleet.sandboxes[1:] if one.link is not None}
    devices = [name for name in world.inventory()["devices"] if name.startswith("aev")]
    assert len(devices) == 5


def test_a_limit_holds_in_both_directions(machines: AgentVectorEnv, world: World) -> None:
    found = {}
    for name, sandbox in zip(NETWORKS, machines._fleet.sandboxes, strict=True):
        if sandbox.link is not None:
            with Inside(sandbox.link) as inside:
                found[name] = inside.limits(world)
    assert found["second"] == {"tap0": 16e6 / 8, "up0": 16e6 / 8}
    assert found["first"] == {}


def test_a_machine_that_is_forked_has_a_network_of_its_own(world: World) -> None:
    target = f"tcp://{HOST}:80"
    keys: dict[str, Any] = {"runtime": "qemu", "memory_mb": 256, "start_timeout_s": 120.0, "step_timeout_s": 120.0}
    with closing(AgentENV.from_env("networked:Networked", network={"allow": [target]}, **keys)) as env:
        env.reset(seed=1)
        env.call("listen", 7777)  # which no pickle carries: the machine is copied as a whole
        first = env.call("reach", [target])[target]
        (child,) = env.fork(1)
        with closing(child):
            other = child.call("reach", [target])[target]
            assert child.call("reach", ["tcp://127.0.0.1:7777"]) == {"tcp://127.0.0.1:7777": "the other environment"}
        assert env.call("reach", [target]) == {target: first}
    assert first.startswith("hello 10.213.")
    assert other.startswith("hello 10.213.")
    assert first != other
