"""What of the network a sandbox is to reach: as it is given, written down, and refused where this host cannot."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from typing import Any

import pytest

from agentenv.boxes.access import Description
from agentenv.boxes.commands import make_spec
from agentenv.boxes.plans import Plan
from agentenv.boxes.reach import read_reach
from agentenv.cli.sandbox_words import network_text, read_network
from agentenv.config import load_config
from agentenv.errors import ConfigError
from agentenv.fleet.networks import network_of
from agentenv.sandbox.network import write_network

SETTINGS: list[Any] = [
    "internet",
    {"allow": ["203.0.113.10:80"]},
    {"allow": ["internet", "udp://10.0.0.2:53"]},
    {"allow": ["0.0.0.0/0"], "deny": ["tcp://10.1.0.0/16:80-90"]},
    {"deny": ["198.51.100.0/24"]},
]


@pytest.mark.parametrize("setting", SETTINGS)
def test_a_setting_means_what_it_does_in_a_configuration_and_is_written_as_it_was(setting: Any) -> None:
    environment = {"id": "a", "network": setting, "network_mbps": 20}
    config = load_config({"global": {"runtime": "qemu"}, "environments": [environment]})
    found = read_reach(setting, 20)
    assert found is not None
    assert found == network_of(config.environments[0])
    assert write_network(found) == setting
    assert (
        json.loads(json.dumps(Plan("qemu", {}, make_spec(image=None, name="n", network=setting)).to_record()))[
            "network"
        ]
        == setting
    )


@pytest.mark.parametrize("setting", ["none", False, None])
def test_nothing_is_no_network(setting: Any) -> None:
    assert read_reach(setting) is None
    assert write_network(None) == "none"


def test_a_record_of_before_there_were_networks_has_none() -> None:
    record = Plan("qemu", {}, make_spec(image=None, name="n")).to_record()
    assert record.pop("network") == "none"
    assert record.pop("network_mbps") is None
    assert Plan.from_record(record).spec.network is None


def test_a_record_that_names_no_addresses_is_none() -> None:
    record = Plan("qemu", {}, make_spec(image=None, name="n")).to_record()
    with pytest.raises(ValueError, match="expected an address"):
        Plan.from_record({**record, "network": {"allow": ["example.com"]}})


@pytest.mark.parametrize(
    ("word", "allow", "deny", "setting"),
    [
        (None, [], [], "none"),
        ("none", [], [], "none"),
        ("internet", [], [], "internet"),
        (None, ["1.2.3.4"], [], {"allow": ["1.2.3.4"]}),
        (None, [], ["1.2.3.4"], {"deny": ["1.2.3.4"]}),
        ("internet", [], ["1.2.3.4"], {"deny": ["1.2.3.4"]}),
        ("internet", ["10.0.0.1"], [], {"allow": ["internet", "10.0.0.1"]}),
        (None, ["10.0.0.0/8"], ["10.0.0.1"], {"allow": ["10.0.0.0/8"], "deny": ["10.0.0.1"]}),
    ],
)
def test_options_of_the_command_line(word: str | None, allow: list[str], deny: list[str], setting: Any) -> None:
    assert read_network(word, allow, deny, None) == setting


@pytest.mark.parametrize(
    ("word", "allow", "deny", "mbps", "options"),
    [
        ("yes", [], [], None, ["--network"]),
        ("yes", ["1.2.3.4"], [], None, ["--network"]),
        ("none", [], ["1.2.3.4"], None, ["--network"]),
        (None, ["1.2.3.4", "example.com"], ["::1"], 0.0, ["--allow", "--deny", "--network-mbps"]),
        (None, [], [], 3.0, ["--network-mbps"]),
    ],
)
def test_mistakes_name_the_option(
    word: str | None, allow: list[str], deny: list[str], mbps: float | None, options: list[str]
) -> None:
    with pytest.raises(ConfigError) as caught:
        read_network(word, allow, deny, mbps)
    assert [(one.where, one.path) for one in caught.value.problems] == [("command line", one) for one in options]


@pytest.mark.parametrize(
    ("network", "mbps", "text"),
    [
        ("none", None, "none"),
        ("", None, "-"),
        ("internet", 2.5, "internet; 2.5 Mbit/s"),
        ({"allow": ["1.2.3.4:80"], "deny": ["a", "b", "c", "d"]}, None, "allow 1.2.3.4:80; deny a, b and 2 more"),
    ],
)
def test_a_network_in_few_words(network: Any, mbps: float | None, text: str) -> None:
    described = Description("a", "running", "", "qemu", "", 256, 1.0, 0.0, "", 1, network, mbps)
    assert network_text(described) == text


CREATING = """
from agentenv import Sandbox
from agentenv.boxes import birth
from agentenv.boxes.commands import make_spec
from agentenv.boxes.plans import Plan
from agentenv.errors import RuntimeUnavailable

spec = make_spec(image=None, name="n", network="internet")
kept = Plan("qemu", {}, spec, snapshot="s" * 32, source="snapshot ready")
for make in (lambda: Sandbox.create(runtime="qemu", network="internet"), lambda: birth.create([kept])):
    try:
        make()
    except RuntimeUnavailable as error:
        print(str(error).replace("\\n", " "))
"""


def test_without_rights_it_is_refused_before_anything_starts() -> None:
    prefix = []
    if os.geteuid() == 0:
        if shutil.which("setpriv") is None:
            pytest.skip("no setpriv here: apt-get install util-linux")
        prefix = ["setpriv", "--bounding-set=-net_admin", "--inh-caps=-net_admin"]
    if any(shutil.which(name, path="/usr/sbin:/sbin:/usr/bin") is None for name in ("ip", "tc", "nft")):
        pytest.skip("missing: apt-get install iproute2 nftables")
    done = subprocess.run([*prefix, sys.executable, "-c", CREATING], capture_output=True, text=True, timeout=60)
    new, kept = done.stdout.splitlines()
    assert new.startswith("networks of machines need root")
    assert new.endswith('be root, or set network = "none"')
    assert kept.startswith("snapshot ready was made of a sandbox with a network, and is brought back with it only: ")
    assert kept.endswith("remedy: be root")
