"""From what a user writes to rules of nftables, and what they mean: tables, without a kernel."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv4Network
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentenv.config.openings import Opening, OpeningError, parse_opening
from agentenv.errors import RuntimeUnavailable
from agentenv.sandbox.network import SPECIAL, Network, expect_whole, read_network
from agentenv.sandbox.runtimes._net.host import table_rules
from agentenv.sandbox.runtimes._net.policy import host_rules, machine_rules
from agentenv.sandbox.runtimes._net.resolvers import host_resolvers, reachable

POOL = IPv4Network("10.213.0.0/16")
REFUSE = "reject with icmpx admin-prohibited"
FIRST = [f"ct count over 4096 {REFUSE}", f"ip daddr 10.213.0.0/16 {REFUSE}"]
CLOSED = ", ".join(str(one) for one in SPECIAL)
PUBLIC = [
    f"ip daddr {{ {CLOSED} }} {REFUSE}",
    "meta l4proto { tcp, udp } accept",
    "icmp type echo-request accept",
]

# What is written; the rules for what a machine sends; those for what of it arrives at the host.
TABLE: list[tuple[Any, list[str], list[str]]] = [
    ("internet", PUBLIC, []),
    (
        {"allow": ["1.2.3.4:443"]},
        ["ip daddr 1.2.3.4/32 meta l4proto { tcp, udp } th dport 443 accept"],
        [
            "ct original ip daddr 1.2.3.4/32 meta l4proto tcp ct original proto-dst 443 accept",
            "ct original ip daddr 1.2.3.4/32 meta l4proto udp ct original proto-dst 443 accept",
        ],
    ),
    (
        {"allow": ["tcp://1.2.3.0/24:80-90", "udp://9.9.9.9"]},
        [
            "ip daddr 1.2.3.0/24 meta l4proto tcp th dport 80-90 accept",
            "ip daddr 9.9.9.9/32 meta l4proto udp accept",
        ],
        [
            "ct original ip daddr 1.2.3.0/24 meta l4proto tcp ct original proto-dst 80-90 accept",
            "ct original ip daddr 9.9.9.9/32 meta l4proto udp accept",
        ],
    ),
    (
        {"allow": ["10.0.0.0/8"], "deny": ["10.1.0.0/16", "tcp://10.2.0.1:22"]},
        [
            f"ip daddr 10.1.0.0/16 {REFUSE}",
            f"ip daddr 10.2.0.1/32 meta l4proto tcp th dport 22 {REFUSE}",
            "ip daddr 10.0.0.0/8 meta l4proto { tcp, udp } accept",
            "ip daddr 10.0.0.0/8 icmp type echo-request accept",
        ],
        [
            f"ct original ip daddr 10.1.0.0/16 {REFUSE}",
            f"ct original ip daddr 10.2.0.1/32 meta l4proto tcp ct original proto-dst 22 {REFUSE}",
            "ct original ip daddr 10.0.0.0/8 meta l4proto { tcp, udp } accept",
            "ct original ip daddr 10.0.0.0/8 icmp type echo-request accept",
        ],
    ),
    (
        {"deny": ["8.8.8.8"]},
        [f"ip daddr 8.8.8.8/32 {REFUSE}", *PUBLIC],
        [f"ct original ip daddr 8.8.8.8/32 {REFUSE}"],
    ),
    (
        {"allow": ["internet", "udp://10.0.0.2:53"]},
        ["ip daddr 10.0.0.2/32 meta l4proto udp th dport 53 accept", *PUBLIC],
        ["ct original ip daddr 10.0.0.2/32 meta l4proto udp ct original proto-dst 53 accept"],
    ),
]


@pytest.mark.parametrize(("setting", "sent", "arriving"), TABLE, ids=[str(row[0]) for row in TABLE])
def test_rules(setting: Any, sent: list[str], arriving: list[str]) -> None:
    network = read_network(setting)
    assert network is not None
    assert machine_rules(network, POOL) == [*FIRST, *sent, REFUSE]
    assert host_rules(network) == [*arriving, REFUSE]


@pytest.mark.parametrize(
    ("text", "opening"),
    [
        ("1.2.3.4", Opening(IPv4Network("1.2.3.4/32"))),
        ("10.0.0.0/8", Opening(IPv4Network("10.0.0.0/8"))),
        ("1.2.3.4:443", Opening(IPv4Network("1.2.3.4/32"), None, (443, 443))),
        ("1.2.3.0/24:80-90", Opening(IPv4Network("1.2.3.0/24"), None, (80, 90))),
        ("tcp://1.2.3.4", Opening(IPv4Network("1.2.3.4/32"), "tcp")),
        ("UDP://1.2.3.4:1-65535", Opening(IPv4Network("1.2.3.4/32"), "udp", (1, 65535))),
        ("0.0.0.0/0", Opening(IPv4Network("0.0.0.0/0"))),
    ],
)
def test_entries(text: str, opening: Opening) -> None:
    assert parse_opening(text, to_allow=True) == opening
    assert parse_opening(str(opening), to_allow=True) == opening


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("example.com", "got the name"),
        ("example.com:443", "got the name"),
        ("*.example.com", "got the name"),
        ("localhost", "got the name"),
        ("::1", "expected an IPv4 address"),
        ("[2001:db8::1]:443", "expected an IPv4 address"),
        ("10.0.0.1/8", "bits set after its prefix"),
        ("1.2.3.4/33", "expected an address or a network"),
        ("1.2.3", "expected an address or a network"),
        ("", "expected an address or a network"),
        ("1.2.3.4:", "expected a port"),
        ("1.2.3.4:0", "expected a port"),
        ("1.2.3.4:65536", "expected a port"),
        ("1.2.3.4:90-80", "expected a port"),
        ("icmp://1.2.3.4", 'expected "tcp://" or "udp://"'),
        ("http://1.2.3.4", 'expected "tcp://" or "udp://"'),
        ("127.0.0.1:80", "outside the machine"),
        ("224.0.0.1", "one host or a network"),
        ('1.2.3.4"; drop', "expected an address or a network"),
        ("1.2.3.4\n", "expected an address or a network"),
    ],
)
def test_what_is_no_entry(text: str, said: str) -> None:
    with pytest.raises(OpeningError, match=r"^expected") as caught:
        parse_opening(text, to_allow=True)
    assert said in str(caught.value)
    assert caught.value.hint


@given(st.text(max_size=40))
def test_text_is_an_entry_or_refused_and_never_more_than_it_says(text: str) -> None:
    try:
        opening = parse_opening(text, to_allow=False)
    except OpeningError:
        return
    assert set(str(opening)) <= set("0123456789./:-tcpud")


@pytest.mark.parametrize(
    ("setting", "address", "port", "is_open"),
    [
        ("internet", "1.2.3.10", 80, True),
        ("internet", "10.1.2.3", 80, False),
        ("internet", "100.64.0.1", 80, False),
        ("internet", "169.254.169.254", 80, False),
        ("internet", "172.31.0.1", 80, False),
        ("internet", "172.32.0.1", 80, True),
        ("internet", "192.168.1.1", 80, False),
        ("internet", "224.0.0.251", 80, False),
        ("internet", "255.255.255.255", 80, False),
        ({"allow": ["10.0.0.0/8:53"]}, "10.1.2.3", 53, True),
        ({"allow": ["10.0.0.0/8:53"]}, "10.1.2.3", 54, False),
        ({"allow": ["10.0.0.0/8:53"]}, "1.2.3.10", 53, False),
        ({"allow": ["168.63.129.16:80"]}, "168.63.129.16", 80, True),
        ({"allow": ["203.0.113.10"]}, "203.0.113.10", 80, True),
        ({"allow": ["tcp://10.0.0.0/8"]}, "10.1.2.3", 53, False),
        ({"allow": ["10.0.0.0/8"], "deny": ["10.1.2.3"]}, "10.1.2.3", 53, False),
        ({"deny": ["1.2.3.10"]}, "1.2.3.10", 80, False),
        ({"deny": ["1.2.3.10"]}, "1.2.3.11", 80, True),
        ({"deny": ["1.2.3.10"]}, "10.0.0.1", 80, False),
    ],
)
def test_what_is_open(setting: Any, address: str, port: int, is_open: bool) -> None:
    network = read_network(setting)
    assert network is not None
    assert network.opens(address, "udp", port) is is_open


@given(st.integers(0, 2**32 - 1).map(IPv4Address))
def test_the_internet_is_what_the_registry_calls_global(address: IPv4Address) -> None:
    if Network(internet=True).opens(str(address), "tcp", 443):
        assert address.is_global


# First and last address of what "internet" leaves out, and whether what lies before and behind it is open:
# https://www.iana.org/assignments/iana-ipv4-special-registry, multicast (RFC 5771), and Azure's WireServer.
EDGES = [
    ("0.0.0.0", "0.255.255.255", True),
    ("10.0.0.0", "10.255.255.255", True),
    ("100.64.0.0", "100.127.255.255", True),
    ("127.0.0.0", "127.255.255.255", True),
    ("168.63.129.16", "168.63.129.16", True),
    ("169.254.0.0", "169.254.255.255", True),
    ("172.16.0.0", "172.31.255.255", True),
    ("192.0.0.0", "192.0.0.255", True),
    ("192.0.2.0", "192.0.2.255", True),
    ("192.88.99.0", "192.88.99.255", True),
    ("192.168.0.0", "192.168.255.255", True),
    ("198.18.0.0", "198.19.255.255", True),
    ("198.51.100.0", "198.51.100.255", True),
    ("203.0.113.0", "203.0.113.255", True),
    ("224.0.0.0", "239.255.255.255", False),
    ("240.0.0.0", "255.255.255.255", False),
]


@pytest.mark.parametrize(("first", "last", "alone"), EDGES)
def test_the_internet_leaves_out_what_is_special_to_its_edges(first: str, last: str, alone: bool) -> None:
    network = Network(internet=True)
    low, high = IPv4Address(first), IPv4Address(last)
    assert not any(network.opens(str(one), "tcp", 80) for one in (low, low + (int(high) - int(low)) // 2, high))
    if alone:
        around = [int(low) - 1, int(high) + 1]
        assert all(network.opens(str(IPv4Address(one)), "tcp", 80) for one in around if one >= 0)
    (rule,) = [rule for rule in machine_rules(network, POOL) if rule.startswith("ip daddr {")]
    closed = [IPv4Network(text.strip()) for text in rule.split("{")[1].split("}")[0].split(",")]
    assert any(low in one for one in closed)
    assert any(high in one for one in closed)


def test_the_hosts_own_addresses_are_not_public() -> None:
    """Also where only a machine's own rules are left; what an allow list names of them is open before that."""
    own = {"1.2.3.1", "10.0.0.1", "127.0.0.1"}
    (rule,) = [rule for rule in machine_rules(Network(internet=True), POOL, own) if rule.startswith("ip daddr {")]
    assert rule == f"ip daddr {{ {CLOSED}, 1.2.3.1 }} {REFUSE}"
    network = read_network({"allow": ["internet", "1.2.3.1:443"]})
    assert network is not None
    rules = machine_rules(network, POOL, own)
    assert rules.index("ip daddr 1.2.3.1/32 meta l4proto { tcp, udp } th dport 443 accept") < rules.index(rule)


def test_none_is_no_network() -> None:
    assert read_network("none") is None


def test_a_runtime_without_rules_takes_nothing_that_it_cannot_hold() -> None:
    expect_whole("bubblewrap", "a", None)
    expect_whole("bubblewrap", "a", Network(internet=True))
    for network in (read_network({"deny": ["1.2.3.4"]}), read_network("internet", 5.0)):
        with pytest.raises(RuntimeUnavailable, match="a: runtime 'bubblewrap' cannot enforce"):
            expect_whole("bubblewrap", "a", network)


def test_an_uplink_of_ones_own_is_the_only_way_out() -> None:
    assert 'iif @machines oifname != "wan0" reject' in table_rules("t", "wan0")
    assert 'oifname != "wan0"' not in table_rules("t", None)


def test_resolvers(tmp_path: Any) -> None:
    stub, real = tmp_path / "stub", tmp_path / "real"
    stub.write_text("# a comment\nnameserver 127.0.0.53\nnameserver ::1\nsearch example.com\n")
    real.write_text("nameserver 9.9.9.9\nnameserver 192.168.1.1\nnameserver not-an-address\n")
    assert host_resolvers([str(stub), str(real)]) == ["9.9.9.9", "192.168.1.1"]
    assert host_resolvers([str(tmp_path / "nothing")]) == []
    internet = Network(internet=True)
    assert reachable(["9.9.9.9", "192.168.1.1"], internet, own=()) == ["9.9.9.9"]
    assert reachable(["9.9.9.9"], internet, own=("9.9.9.9",)) == []
    listed = read_network({"allow": ["internet", "192.168.1.1:53", "9.9.9.9"]})
    assert listed is not None
    assert reachable(["9.9.9.9", "192.168.1.1"], listed, own=("9.9.9.9",)) == ["9.9.9.9", "192.168.1.1"]
