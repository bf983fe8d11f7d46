"""Networks without machines: a test sends the frames that a machine could, and looks at what is left on the host."""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
import subprocess
from collections.abc import Callable, Iterator
from ipaddress import IPv4Network
from pathlib import Path
from typing import Any

import pytest

from agentenv.errors import RuntimeUnavailable
from agentenv.sandbox.network import read_network
from agentenv.sandbox.runtimes._net import forwarding
from agentenv.sandbox.runtimes._net.namespace import open_own
from agentenv.sandbox.runtimes._net.networks import Networks
from agentenv.sandbox.runtimes._net.policy import MOST_FLOWS
from agentenv.sandbox.runtimes._net.pool import slots, taken_networks
from agentenv.sandbox.runtimes._net.programs import NetworkError, Programs
from agentenv.sandbox.runtimes._net.sweep import sweep_networks
from agentenv.sandbox.runtimes._runid import new_run_id
from sandbox.net.inside import Inside
from sandbox.net.world import (
    BRIDGE,
    CONTAINER,
    HOST,
    METADATA,
    OTHER_PUBLIC,
    PRIVATE,
    PUBLIC,
    World,
    made,
    set_forwarding,
)

Open = Callable[..., Networks]
DEAD = "1-1-00000000"  # the first process of this system began later


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    with made() as world:
        yield world


@pytest.fixture
def open_networks(world: World) -> Iterator[Open]:
    """Networks of runs; closed after the test, after which the host is as before."""
    held: list[Networks] = []

    def open_one(run_id: str | None = None, **settings: Any) -> Networks:
        networks = Networks(run_id or new_run_id(), settings)
        held.append(networks)
        networks.open()
        return networks

    yield open_one
    for networks in held:
        networks.close()
    assert world.inventory() == world.before


FRAMES: list[tuple[Any, set[str]]] = [
    ("internet", {PUBLIC, OTHER_PUBLIC}),
    ({"deny": [PUBLIC]}, {OTHER_PUBLIC}),
    ({"allow": [f"{METADATA}:80"]}, {METADATA}),
    ({"allow": [f"udp://{PUBLIC}:70-90", f"tcp://{OTHER_PUBLIC}:80", f"{PRIVATE}:81"]}, {PUBLIC}),
    ({"allow": [HOST, CONTAINER]}, {HOST, CONTAINER}),
    ({"allow": ["internet", "10.0.0.0/8"], "deny": [f"{OTHER_PUBLIC}:80"]}, {PUBLIC, PRIVATE}),
    (
        {"allow": ["0.0.0.0/0"], "deny": [f"udp://{HOST}:80"]},
        {PUBLIC, OTHER_PUBLIC, METADATA, PRIVATE, CONTAINER, BRIDGE},
    ),
]


@pytest.mark.parametrize(("setting", "opened"), FRAMES, ids=[str(setting) for setting, _ in FRAMES])
def test_frames_go_where_they_may(open_networks: Open, setting: Any, opened: set[str]) -> None:
    network = read_network(setting)
    assert network is not None
    with Inside(open_networks().attach(network)) as machine:
        machine.plug_in()
        targets = (HOST, PUBLIC, OTHER_PUBLIC, METADATA, PRIVATE, CONTAINER, BRIDGE)
        found = {target: machine.answer(target, 80, 4000 + number) for number, target in enumerate(targets)}
    assert {target for target, verdict in found.items() if verdict == "open"} == opened
    assert {verdict for target, verdict in found.items() if target not in opened} == {"refused"}


@pytest.mark.parametrize(
    ("setting", "verdict"),
    [
        ("internet", "refused"),
        ({"allow": [CONTAINER]}, "refused"),
        ({"allow": [f"udp://{HOST}:8081"]}, "refused"),
        ({"allow": [f"udp://{HOST}:8080"]}, "open"),
        ({"allow": [HOST], "deny": [f"{HOST}:8080"]}, "refused"),
    ],
    ids=str,
)
def test_a_port_of_the_host_that_leads_to_a_container(open_networks: Open, setting: Any, verdict: str) -> None:
    network = read_network(setting)
    assert network is not None
    # As with any container, the host passes on what comes back from it.
    set_forwarding("bridge0", "1")
    try:
        with Inside(open_networks().attach(network)) as machine:
            machine.plug_in()
            assert machine.answer(HOST, 8080, 4000) == verdict
    finally:
        set_forwarding("bridge0", "0")


@pytest.mark.timeout(60)
def test_who_has_what_is_shared_for_long_was_stopped(open_networks: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    networks = open_networks()
    monkeypatch.setattr(forwarding, "_PATIENCE_S", 0.2)
    held = open_own()
    try:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(RuntimeUnavailable, match=r"(?s)another process has kept .*remedy: .*kill -CONT PID"):
            networks.attach(read_network("internet"))
    finally:
        os.close(held)
    networks.attach(read_network("internet"))


def test_a_name_of_another_is_not_believed(open_networks: Open) -> None:
    network = read_network({"allow": ["0.0.0.0/0"]})
    assert network is not None
    link = open_networks().attach(network)
    with Inside(link) as machine, socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(0x0800)) as wire:
        wire.bind((link._slot.device, 0x0800))
        wire.setblocking(False)
        machine.plug_in()
        for source in ("192.0.0.3", HOST, "10.213.0.2", "198.51.100.7"):
            machine.ask(PUBLIC, 80, source=source, own_port=5000)
        # What is answered was sent after them.
        assert machine.answer(PUBLIC, 80, 5001) == "open"
        frames = []
        with contextlib.suppress(BlockingIOError):
            while True:
                frames.append(wire.recv(2048))
    assert {socket.inet_ntoa(frame[26:30]) for frame in frames} == {link.address}


def test_what_is_not_ipv4_goes_nowhere_and_a_ping_does(open_networks: Open) -> None:
    network = read_network("internet")
    assert network is not None
    with Inside(open_networks().attach(network)) as machine:
        machine.plug_in()
        # A neighbour solicitation for the gateway's address, and a datagram to everybody.
        machine.send(
            bytes.fromhex("6000000000183aff") + bytes(16) + bytes.fromhex("ff02" + "00" * 13 + "01"), kind=0x86DD
        )
        machine.ask("255.255.255.255", 67)
        assert machine.ping(PUBLIC) == "open"
        assert machine.ping(PRIVATE) == "refused"
        assert not any(frame[12:14] == b"\x86\xdd" for frame in machine.seen)


def test_a_machine_cannot_fill_the_hosts_table_of_connections(open_networks: Open) -> None:
    network = read_network("internet")
    assert network is not None
    with Inside(open_networks().attach(network)) as machine:
        machine.plug_in()
        assert machine.answer(PUBLIC, 80, 4000) == "open"
        for port in range(10_000, 10_000 + MOST_FLOWS):
            machine.ask(PUBLIC, 80, own_port=port)
            if port % 100 == 0:
                machine.receive(0)
        assert machine.answer(PUBLIC, 80, 4001) == "refused"


def test_nobody_outside_reaches_a_machine_that_did_not_ask(open_networks: Open) -> None:
    network = read_network("internet")
    assert network is not None
    link = open_networks().attach(network)
    with Inside(link) as machine, socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as host:
        machine.plug_in()
        host.sendto(b"unasked", (link.address, 6000))
        assert machine.answer(PUBLIC, 80, 6000) == "open"
        assert not any(b"unasked" in frame for frame in machine.seen)


def test_runs_know_nothing_of_each_other_and_take_different_addresses(open_networks: Open) -> None:
    network = read_network({"allow": ["0.0.0.0/0"]})
    assert network is not None
    one, other = open_networks(), open_networks()
    links = [networks.attach(network) for networks in (one, other, one, other)]
    addresses = [link.address for link in links]
    assert len(set(addresses)) == 4
    with Inside(links[0]) as machine:
        machine.plug_in()
        assert machine.answer(addresses[1], 80, 7000) == "refused"
        other.close()
        other.close()
        assert machine.answer(PUBLIC, 80, 7001) == "open"
    again = open_networks().attach(network)
    assert again.address in addresses


def test_addresses_that_somebody_uses_are_left_alone(world: World, open_networks: Open) -> None:
    network = read_network("internet")
    assert network is not None
    try:
        world.programs.links(
            "tuntap add dev mine mode tap",
            "address add 10.213.0.2/30 dev mine",  # .0 to .3: the first pair
            "link set mine up",
            "route add 10.213.0.4/31 dev mine",  # the second
            "tuntap add dev aev3 mode tap",  # the third, in its device's name
        )
        assert open_networks().attach(network).address == "10.213.0.9"
    finally:
        for device in ("mine", "aev3"):
            world.programs.links(f"link delete {device}")


def test_a_pool_that_is_not_free(world: World, open_networks: Open) -> None:
    network = read_network("internet")
    assert network is not None
    world.programs.links("tuntap add dev lan mode tap", "address add 10.9.9.9/8 dev lan", "link set lan up")
    try:
        with pytest.raises(
            RuntimeUnavailable, match=r"10\.1\.0\.0/16, belong to 10\.0\.0\.0/8.*\n.*pool in \[network\]"
        ):
            open_networks(pool="10.1.0.0/16")
    finally:
        world.programs.links("link delete lan")
    tiny = open_networks(pool="192.168.77.0/29")
    assert [tiny.attach(network).address for _ in range(3)] == ["192.168.77.3", "192.168.77.5", "192.168.77.7"]
    with pytest.raises(RuntimeUnavailable, match=r"no address is left for a machine in 192\.168\.77\.0/29"):
        tiny.attach(network)


def test_pairs_of_a_pool() -> None:
    pool = IPv4Network("10.0.0.0/28")
    assert [str(slot.machine) for slot in slots(pool, ())] == [f"10.0.0.{n}" for n in range(3, 16, 2)]
    addresses = [{"ifname": "eth0", "addr_info": [{"local": "10.0.0.5", "prefixlen": 30}]}, {}]
    routes = [
        {"dst": "default", "dev": "eth0"},
        {"dst": "10.0.0.0/8", "dev": "tun0"},
        {"dst": "10.0.0.12/31", "dev": "tun0"},
        {"type": "local", "dst": "10.0.0.9"},
    ]
    taken = taken_networks(pool, addresses, routes)
    assert [str(slot.host) for slot in slots(pool, taken)] == ["10.0.0.2", "10.0.0.8", "10.0.0.10", "10.0.0.14"]


def test_a_table_of_the_same_name_is_replaced(world: World, open_networks: Open) -> None:
    run_id = new_run_id()
    world.programs.rules(
        f"add table inet agentenv_{run_id}",
        f"add chain inet agentenv_{run_id} input {{ type filter hook input priority filter; policy drop; }}",
    )
    network = read_network({"allow": [HOST]})
    assert network is not None
    with Inside(open_networks(run_id).attach(network)) as machine:
        machine.plug_in()
        assert machine.answer(HOST, 80, 8000) == "open"


def test_forwarding_is_switched_on_where_it_is_needed_and_off_by_the_last(world: World, open_networks: Open) -> None:
    network, listed = read_network("internet"), read_network({"allow": [CONTAINER]})
    assert network is not None
    assert listed is not None
    one, other = open_networks(), open_networks()
    assert state() == {"all": "0", "eth0": "0", "bridge0": "0"}
    one.attach(network)
    other.attach(network)
    assert state() == {"all": "0", "eth0": "1", "bridge0": "0"}
    other.attach(listed)
    assert state() == {"all": "0", "eth0": "1", "bridge0": "1"}
    one.close()
    assert state() == {"all": "0", "eth0": "1", "bridge0": "1"}
    other.close()
    assert state() == {"all": "0", "eth0": "0", "bridge0": "0"}


def test_rules_that_another_program_removes_are_made_again_with_the_next_machine(
    world: World, open_networks: Open, caplog: pytest.LogCaptureFixture
) -> None:
    """As a service of a firewall does that starts anew. Until then the host is as closed as before."""
    network, listed = read_network("internet"), read_network({"allow": [CONTAINER]})
    assert network is not None
    assert listed is not None
    run_id = new_run_id()
    networks = open_networks(run_id)
    with Inside(networks.attach(network)) as machine:
        machine.plug_in()
        assert [machine.answer(one, 80, 4000) for one in (PUBLIC, HOST)] == ["open", "refused"]
        world.programs.rules(f"delete table inet agentenv_{run_id}")
        assert machine.answer(HOST, 80, 4001) == "refused"
        networks.attach(network).close()
        assert "are made again" in caplog.text
        assert [machine.answer(one, 80, 4002) for one in (PUBLIC, HOST)] == ["open", "refused"]
        assert forwarding.guarded(world.programs, f"agentenv_{run_id}") == ["eth0"]
        networks.attach(listed).close()
        assert caplog.text.count("are made again") == 1


def test_forwarding_is_switched_off_where_the_rules_are_gone(world: World, open_networks: Open) -> None:
    network, run_id = read_network("internet"), new_run_id()
    assert network is not None
    networks = open_networks(run_id)
    networks.attach(network)
    assert state()["eth0"] == "1"
    world.programs.rules(f"delete table inet agentenv_{run_id}")
    networks.close()
    assert state() == {"all": "0", "eth0": "0", "bridge0": "0"}


def test_forwarding_that_was_on_stays_on(open_networks: Open) -> None:
    network = read_network("internet")
    assert network is not None
    set_forwarding("all", "1")
    try:
        networks = open_networks()
        networks.attach(network)
        networks.close()
        assert state() == {"all": "1", "eth0": "1", "bridge0": "1"}
    finally:
        set_forwarding("all", "0")


def test_a_host_that_did_not_forward_forwards_for_machines_only(world: World, open_networks: Open) -> None:
    network = read_network({"allow": ["internet", CONTAINER]})
    assert network is not None
    target = (CONTAINER, 80)

    def ask_container() -> bytes | None:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as neighbour:
            neighbour.bind((PUBLIC, 0))
            neighbour.settimeout(0.5)
            neighbour.sendto(b"let me through", target)
            try:
                return neighbour.recv(100)
            except TimeoutError:
                return None

    world.internet.run(lambda: world.programs.links(f"route add {CONTAINER}/32 via {HOST} dev isp0"))
    networks = open_networks()
    with Inside(networks.attach(network)) as machine:
        machine.plug_in()
        assert machine.answer(CONTAINER, 80, 9000) == "open"
        assert state()["eth0"] == state()["bridge0"] == "1"
        assert world.internet.run(ask_container) is None
    networks.close()
    # With a host that forwards for everybody, the same neighbour is answered: the attempt above was a real one.
    set_forwarding("all", "1")
    try:
        with Inside(open_networks().attach(network)) as machine:
            assert world.internet.run(ask_container) is not None
    finally:
        set_forwarding("all", "0")


def test_an_uplink_that_is_named_is_the_only_one(open_networks: Open) -> None:
    network = read_network({"allow": [PUBLIC, CONTAINER]})
    assert network is not None
    with Inside(open_networks(uplink="eth0").attach(network)) as machine:
        machine.plug_in()
        assert machine.answer(PUBLIC, 80, 4000) == "open"
        assert machine.answer(CONTAINER, 80, 4001) == "refused"
    with pytest.raises(RuntimeUnavailable, match='uplink = "eth7": this host has no such interface'):
        open_networks(uplink="eth7")


def test_what_dead_runs_left_is_swept_and_nothing_else(world: World, open_networks: Open) -> None:
    network = read_network("internet")
    assert network is not None
    living = open_networks()
    living.attach(network)
    dead = Networks(DEAD, {})
    link = dead.attach(network)
    # Its device is still there: its run may live in another pid namespace.
    assert sweep_networks() == ()
    link.close()
    assert forwarding.guarded(world.programs, f"agentenv_{DEAD}") == ["eth0"]
    assert sweep_networks() == (DEAD,)
    assert sweep_networks() == ()
    with Inside(living.attach(network)) as machine:
        machine.plug_in()
        assert machine.answer(PUBLIC, 80, 4000) == "open"
    living.close()
    dead.close()  # whose table is gone


@pytest.mark.parametrize("moment", ["before it is looked at", "before it is removed"])
def test_a_table_that_another_sweep_removes_first_is_no_failure(
    moment: str, world: World, open_networks: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = [Networks(run_id, {}) for run_id in (DEAD, DEAD.replace("0000", "1111", 1))]
    for networks in left:
        networks.open()
    others: list[str] = []

    def other_sweep(run_id: str) -> bool:
        """What another process does just then; says that the run is dead."""
        if not others and run_id.startswith("1-1-"):
            others.append(run_id)
            assert forwarding.remove_table(world.programs, f"agentenv_{run_id}")
        return False

    if moment == "before it is looked at":
        swept = sweep_networks(other_sweep)
    else:
        remove = forwarding.remove_table

        def late(programs: Programs, table: str) -> bool:
            monkeypatch.setattr(forwarding, "remove_table", remove)
            other_sweep(table.removeprefix(forwarding.TABLE_PREFIX))
            return remove(programs, table)

        monkeypatch.setattr(forwarding, "remove_table", late)
        swept = sweep_networks(lambda _run_id: False)
    dead = {DEAD, DEAD.replace("0000", "1111", 1)}
    assert set(others) < dead
    assert set(swept) == dead - set(others)
    for networks in left:
        networks.close()  # whose tables are gone


def test_a_namespace_nobody_holds_takes_its_device_along(open_networks: Open) -> None:
    network = read_network("internet")
    assert network is not None
    link = open_networks().attach(network)
    device = link._slot.device
    assert device in (name for _, name in socket.if_nameindex())
    link._namespace.close()
    while device in (name for _, name in socket.if_nameindex()):
        os.sched_yield()  # the test's own deadline ends this
    link.close()
    link.close()


def test_what_cannot_be_made_leaves_nothing(world: World, open_networks: Open) -> None:
    networks = open_networks()
    # One of this name that is another's: what is to be added to is not there.
    table = networks._table.name
    world.programs.rules(f"delete table inet {table}", f"add table inet {table}", f"add chain inet {table} input")
    network = read_network("internet")
    assert network is not None
    set_forwarding("eth0", "1")
    try:
        with pytest.raises(NetworkError, match=r"nft refused: .*No such file or directory"):
            networks.attach(network)
    finally:
        set_forwarding("eth0", "0")
    assert not [name for _, name in socket.if_nameindex() if name.startswith("aev")]


@pytest.mark.parametrize("missing", ["nft", "rights"])
def test_what_is_missing_is_said_before_anything_starts(missing: str, tmp_path: Path) -> None:
    code = (
        "import agentenv.sandbox.runtimes._net.programs as programs\n"
        f"programs._PLACES = {str(tmp_path)!r}\n"
        "from agentenv.errors import RuntimeUnavailable\n"
        "try:\n    programs.find_programs()\nexcept RuntimeUnavailable as error:\n    print(error)\n"
    )
    places = str(tmp_path)
    for name in ("ip", "tc") if missing == "nft" else ("ip", "tc", "nft"):
        (tmp_path / name).symlink_to("/bin/true")
    drop = [] if missing == "nft" else ["setpriv", "--bounding-set=-net_admin", "--inh-caps=-net_admin", "--"]
    done = subprocess.run(
        [*drop, os.sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env={"PATH": places + ":/usr/bin"},
    )
    if missing == "nft":
        assert "need nft, not found on PATH" in done.stdout
        assert "apt-get install iproute2 nftables" in done.stdout
    else:
        assert "networks of machines need root (CAP_NET_ADMIN and CAP_SYS_ADMIN)" in done.stdout
        assert 'set network = "none"' in done.stdout


def state() -> dict[str, str]:
    return {
        device: Path(f"/proc/sys/net/ipv4/conf/{device}/forwarding").read_text(encoding="ascii").strip()
        for device in ("all", "eth0", "bridge0")
    }
