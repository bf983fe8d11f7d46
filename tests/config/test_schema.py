"""The schema and the loader agree wherever a schema can say it at all."""

from __future__ import annotations

from typing import Any

import pytest
from jsonschema import Draft202012Validator

from agentenv.config import json_schema, load_config
from agentenv.errors import ConfigError

GOOD: list[dict[str, Any]] = [
    {"environments": [{"id": "a"}]},
    {
        "qemu": {"huge_pages": "2M", "drives": [{"path": "a.img", "mount": "/a"}], "disk_mb_per_s": 5},
        "firecracker": {"jailer": "/opt/jailer", "jailer_uid": 7, "balloon_mb": 64, "log_level": "debug"},
        "environments": [{"id": "a"}],
    },
    {"global": {}, "bubblewrap": {}, "environments": [{"id": "a", "count": 3, "env": "CartPole-v1"}]},
    {
        "global": {
            "name": "n",
            "log_level": "debug",
            "runtime": "qemu",
            "isolation": "vm",
            "max_parallel_envs": 3,
            "envs_per_sandbox": 2,
            "seed": 0,
            "run_dir": "out",
            "defaults": {"memory_mb": 64, "env_vars": {"A": 1, "B": True, "C": "x", "D": 0.5}},
        },
        "bubblewrap": {"binary": "/usr/bin/bwrap", "nested": "never"},
        "network": {"pool": "10.9.0.0/16", "uplink": "eth0", "dns": ["9.9.9.9"]},
        "environments": [
            {
                "id": "a",
                "env": "m:Env",
                "env_kwargs": {"x": {"y": [1, "z"]}},
                "wrappers": ["a:B", {"wrapper": "c:D", "kwargs": {"e": 1}}],
                "policy": "p:act",
                "episodes": 2,
                "max_episode_steps": 5,
                "seed": 1,
                "vcpu_count": 0.5,
                "pids": 4,
                "disk_mb": 1,
                "network": True,
                "step_timeout_s": 0.1,
                "reset_timeout_s": 1,
                "start_timeout_s": 1,
                "invalid_action": "clip",
                "render_mode": "ansi",
                "kernel_image": "k",
                "rootfs_image": "r",
                "max_message_mb": 1,
            },
            {
                "id": "b",
                "command": ["true"],
                "timeout_s": 3,
                "network": {"allow": ["1.2.3.4:80"], "deny": ["10.0.0.0/8"]},
            },
        ],
    },
]


def environment(**keys: Any) -> dict[str, Any]:
    return {"environments": [{"id": "a", **keys}]}


BAD: list[dict[str, Any]] = [
    {},
    {"environments": []},
    {"environments": {"id": "a"}},
    {"environments": [{}]},
    {"environment": [{"id": "a"}]},
    {"environments": [{"id": "a/b"}]},
    {**environment(), "global": {"sed": 1}},
    {**environment(), "global": {"runtime": "docker"}},
    {**environment(), "global": {"defaults": {"id": "a"}}},
    {**environment(), "bubblewrap": {"nested": True}},
    environment(num_env=8),
    environment(count=0),
    environment(count="8"),
    environment(count=True),
    environment(memory_mb=15),
    environment(vcpu_count=0),
    environment(network="yes"),
    environment(network={}),
    environment(network={"allow": []}),
    environment(network={"open": ["1.2.3.4"]}),
    environment(network_mbps=0),
    {**environment(), "network": {"pools": "10.0.0.0/8"}},
    environment(env_vars={"1A": "x"}),
    environment(env_vars={"A": []}),
    environment(env_kwargs=[]),
    environment(wrappers=["x"]),
    environment(wrappers=[{"kwargs": {}}]),
    environment(wrappers=[{"wrapper": "a:B", "kw": {}}]),
    environment(policy="greedy"),
    environment(command=[]),
    environment(command="true"),
    environment(command=["true"], env="X-v0"),
    environment(render_mode="human"),
]


def validator() -> Draft202012Validator:
    Draft202012Validator.check_schema(json_schema())
    return Draft202012Validator(json_schema())


@pytest.mark.parametrize("document", GOOD)
def test_what_loads_is_valid(document: dict[str, Any]) -> None:
    assert [error.message for error in validator().iter_errors(document)] == []
    config = load_config(document)
    assert [error.message for error in validator().iter_errors(config.to_dict())] == []


@pytest.mark.parametrize("document", BAD, ids=repr)
def test_what_is_refused_is_invalid(document: dict[str, Any]) -> None:
    assert not validator().is_valid(document)
    with pytest.raises(ConfigError):
        load_config(document)


def test_every_key_is_explained_and_no_null_is_offered() -> None:
    schema = json_schema()
    assert set(schema["properties"]) == {"global", "environments", "bubblewrap", "qemu", "firecracker", "network"}
    assert schema["title"] == "agentenv configuration"
    keys = 0
    for name, definition in schema["$defs"].items():
        for table in definition.get("anyOf", [definition]):
            for key, node in table.get("properties", {}).items():
                keys += 1
                assert node["description"].endswith((".", "?")), (name, key)
                assert node.get("default", "") is not None, (name, key)
                assert {"type": "null"} not in node.get("anyOf", []), (name, key)
    assert keys > 50


def test_the_caller_may_change_what_it_got() -> None:
    json_schema()["properties"].clear()
    assert json_schema()["properties"]
