"""What is said of networks, and every mistake in it at its place."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from agentenv.config import load_config
from agentenv.config.load import config_from_keywords
from agentenv.config.network import NetworkTable
from agentenv.errors import ConfigError, Problem

ProblemsOf = Callable[..., list[Problem]]
MACHINES = '[global]\nruntime = "qemu"\n[[environments]]\nid = "a"\n'
EXAMPLES = 'such as "10.0.0.0/8", "1.2.3.4:443", "tcp://1.2.3.0/24:80-90" or "udp://9.9.9.9:53"'
IPV6 = "machines have IPv4 only; leave IPv6 out"
NAMES = "names are not resolved: who answers for a name could open anything; write the addresses"
WHERE = "expected an address or a network, got "


def loaded(network: Any, **settings: Any) -> Any:
    config = load_config({"global": {"runtime": "qemu"}, "environments": [{"id": "a", "network": network}], **settings})
    assert load_config(config.to_dict()) == config
    return config.environments[0].network


@pytest.mark.parametrize(
    ("written", "kept"), [(True, "internet"), (False, "none"), ("internet", "internet"), ("none", "none")]
)
def test_words(written: Any, kept: str) -> None:
    assert loaded(written) == kept


def test_lists_are_kept_in_one_spelling() -> None:
    written = {"allow": ["TCP://1.2.3.4/32:80-80", "internet", "1.2.3.4", "1.2.3.4"], "deny": ["10.0.0.0/8"]}
    assert loaded(written) == NetworkTable(allow=("tcp://1.2.3.4:80", "internet", "1.2.3.4"), deny=("10.0.0.0/8",))


def test_every_wrong_entry_is_reported_at_its_line(problems_of: ProblemsOf) -> None:
    text = MACHINES + 'network = { allow = [\n  "example.com:80",\n  "10.0.0.1/8", "::1",\n  3, "1.2.3.4:0",\n] }\n'
    port = "expected a port from 1 to 65535, or the first and the last of several"
    assert problems_of(text) == [
        Problem("f.toml:6", "environments[0].network.allow[0]", WHERE + 'the name "example.com:80"', NAMES),
        Problem(
            "f.toml:7",
            "environments[0].network.allow[1]",
            'expected a network without bits set after its prefix, got "10.0.0.1/8"',
            'write "10.0.0.0/8" for the whole network or "10.0.0.1" for the one address',
        ),
        Problem("f.toml:7", "environments[0].network.allow[2]", 'expected an IPv4 address or network, got "::1"', IPV6),
        Problem("f.toml:8", "environments[0].network.allow[3]", "expected a string, got 3 (an integer)", ""),
        Problem("f.toml:8", "environments[0].network.allow[4]", f'{port}, got "1.2.3.4:0"', EXAMPLES),
    ]


@pytest.mark.parametrize(
    ("value", "path", "message", "hint"),
    [
        ("{}", "", 'expected "allow", "deny" or both, got an empty table', 'for no network write "none"'),
        ("{ alow = [] }", ".alow", "unknown key", "valid keys of a network: allow, deny"),
        (
            "{ allow = [] }",
            ".allow",
            "expected a non-empty list of strings, got an empty list",
            'to open nothing write network = "none"',
        ),
        (
            '{ deny = "1.2.3.4" }',
            ".deny",
            'expected a non-empty list of strings, got "1.2.3.4" (a string)',
            'write ["1.2.3.4"]',
        ),
        ('{ deny = ["internet"] }', ".deny[0]", WHERE + 'the name "internet"', NAMES),
    ],
)
def test_tables_that_are_none(value: str, path: str, message: str, hint: str, problems_of: ProblemsOf) -> None:
    expected = Problem("f.toml:5", f"environments[0].network{path}", message, hint)
    assert problems_of(f"{MACHINES}network = {value}\n") == [expected]


@pytest.mark.parametrize(
    ("settings", "who"),
    [
        ({}, 'runtime "auto" may be bubblewrap, which'),
        ({"runtime": "bubblewrap"}, 'runtime "bubblewrap"'),
        ({"runtime": "process"}, 'runtime "process"'),
    ],
)
def test_what_the_runtime_cannot_enforce_is_refused(settings: dict[str, Any], who: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(
            {
                "global": {**settings, "defaults": {"network": {"deny": ["1.2.3.4"]}}},
                "environments": [{"id": "a"}, {"id": "b", "network": "none"}, {"id": "c", "network_mbps": 3.0}],
            }
        )
    hint = 'set runtime = "qemu" or "firecracker" in [global]'
    assert list(caught.value.problems) == [
        Problem(
            "dict",
            "global.defaults.network",
            f'expected "none" or "internet", got a table: {who} cannot enforce allow and deny',
            hint,
        ),
        Problem("dict", "environments[2].network_mbps", f"expected no network_mbps: {who} cannot enforce it", hint),
    ]


@pytest.mark.parametrize("settings", [{"runtime": "qemu"}, {"runtime": "firecracker"}, {"isolation": "vm"}])
def test_machines_take_every_network(settings: dict[str, Any]) -> None:
    load_config(
        {"global": settings, "environments": [{"id": "a", "network": {"deny": ["1.2.3.4"]}, "network_mbps": 3}]}
    )


def test_a_limit_of_no_network_is_refused_where_it_stands(problems_of: ProblemsOf) -> None:
    message, hint = (
        'expected a network to limit, got 20 with network = "none"',
        'set network = "internet", or leave it out',
    )
    assert problems_of(MACHINES + "network_mbps = 20\n") == [
        Problem("f.toml:5", "environments[0].network_mbps", message, hint)
    ]
    assert problems_of(MACHINES, "environments.a.network_mbps=20") == [
        Problem("--set", "environments[0].network_mbps", message, hint)
    ]
    settings = '[global]\nruntime = "qemu"\n[global.defaults]\nnetwork_mbps = 20\n'
    assert problems_of(settings + '[[environments]]\nid = "a"\nnetwork = false\n') == [
        Problem("f.toml:4", "global.defaults.network_mbps", message, hint)
    ]
    with pytest.raises(ConfigError) as caught:
        config_from_keywords("CartPole-v1", runtime="qemu", network_mbps=20)
    assert list(caught.value.problems) == [Problem("keyword argument", "network_mbps", message, hint)]


def test_a_limit_in_the_defaults_is_for_those_with_a_network() -> None:
    environments = [{"id": "a", "network": "internet"}, {"id": "b"}]
    config = load_config(
        {"global": {"runtime": "qemu", "defaults": {"network_mbps": 20}}, "environments": environments}
    )
    assert [one.network_mbps for one in config.environments] == [20, None]
    assert load_config(config.to_dict()) == config


def test_where_networks_come_from(problems_of: ProblemsOf) -> None:
    text = MACHINES + '[network]\npool = "8.0.0.0/8"\nuplink = "a b"\ndns = ["dns.example"]\nsubnet = 1\n'
    assert problems_of(text) == [
        Problem(
            "f.toml:6",
            "network.pool",
            'expected a private network with a prefix from /8 to /30, got "8.0.0.0/8"',
            'such as "10.213.0.0/16"',
        ),
        Problem(
            "f.toml:7",
            "network.uplink",
            'expected "auto" or the name of an interface, got "a b" (a string)',
            'such as "eth0"',
        ),
        Problem(
            "f.toml:8", "network.dns[0]", 'expected an IPv4 address, got "dns.example" (a string)', 'such as "9.9.9.9"'
        ),
        Problem("f.toml:9", "network.subnet", "unknown key", 'did you mean "pool"?'),
    ]
