"""Properties of a checked configuration: it survives TOML, its digest names it, its counts scale."""

from __future__ import annotations

import math
import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentenv.config import Config, load_config
from agentenv.config.emit import emit_value
from agentenv.errors import ConfigError

IDS = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,20}", fullmatch=True)
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
FLOATS = st.floats(allow_nan=False)
ENTRIES = st.sampled_from(["a:B", "pkg.mod:Class.method"])
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | FLOATS | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=6,
)
KWARGS = st.dictionaries(TEXT, JSON, max_size=3)
VARIABLES = st.dictionaries(
    st.from_regex(r"[A-Za-z_][A-Za-z0-9_]{0,8}", fullmatch=True),
    st.none() | st.booleans() | st.integers() | FLOATS | TEXT.filter(lambda text: "\0" not in text),
    max_size=3,
)
SECONDS = st.floats(min_value=0, max_value=1e8, exclude_min=True)
ENTRIES_OF_NETWORKS = st.sampled_from(
    ["1.2.3.4", "10.0.0.0/8", "1.2.3.4:443", "1.2.3.0/24:80-90", "tcp://9.9.9.9", "udp://9.9.9.9:53"]
)
LISTS = st.lists(ENTRIES_OF_NETWORKS, min_size=1, max_size=3)
NETWORKS = (
    st.booleans()
    | st.sampled_from(["none", "internet"])
    | st.fixed_dictionaries({"allow": LISTS}, optional={"deny": LISTS})
    | st.fixed_dictionaries({"deny": LISTS})
)
COMMON: dict[str, Any] = {
    "env_vars": VARIABLES,
    "memory_mb": st.integers(16, 1 << 24),
    "vcpu_count": st.floats(0.01, 65536),
    "network": NETWORKS,
    "network_mbps": st.none() | st.floats(0.1, 400_000),
    "step_timeout_s": SECONDS,
    "seed": st.none() | st.integers(0, 2**64 - 1),
    "invalid_action": st.sampled_from(["error", "clip"]),
    "kernel_image": TEXT.filter(lambda text: text and "\0" not in text),
}
PLAYED = {
    "env": st.sampled_from(["CartPole-v1", "ALE/Breakout-v5", "m:Env"]),
    "env_kwargs": KWARGS,
    "wrappers": st.lists(
        ENTRIES | st.fixed_dictionaries({"wrapper": ENTRIES}, optional={"kwargs": KWARGS}), max_size=2
    ),
    "render_mode": st.sampled_from([None, "rgb_array", "ansi"]),
}
COMMAND = st.lists(TEXT.filter(lambda text: text and "\0" not in text), min_size=1, max_size=3)
COUNTS = {"id": st.just(""), "count": st.integers(1, 6)}
TABLES = st.fixed_dictionaries(COUNTS, optional={**COMMON, **PLAYED}) | st.fixed_dictionaries(
    {**COUNTS, "command": COMMAND}, optional={**COMMON, "timeout_s": SECONDS}
)
SETTINGS = st.fixed_dictionaries(
    {"runtime": st.just("qemu")},  # which takes every network
    optional={
        "name": IDS,
        "seed": st.none() | st.integers(0, 2**64 - 1),
        "max_parallel_envs": st.integers(min_value=1),
        "isolation": st.sampled_from([None, "vm", "sandbox", "process"]),
        "run_dir": TEXT.filter(lambda text: text and "\0" not in text),
        "defaults": st.fixed_dictionaries({}, optional={**COMMON, **PLAYED, "timeout_s": SECONDS}),
    },
)


@st.composite
def configs(draw: st.DrawFn) -> Config:
    tables = draw(st.lists(TABLES, min_size=1, max_size=4))
    # A letter for each keeps the ids apart whatever the counts.
    tables = [{**table, "id": "abcd"[index] + draw(IDS)} for index, table in enumerate(tables)]
    nested = draw(st.sampled_from([{}, {"bubblewrap": {"binary": "/bin/bwrap", "nested": "never"}}]))
    network = draw(st.sampled_from([{}, {"network": {"pool": "10.9.0.0/16", "uplink": "eth0", "dns": ["9.9.9.9"]}}]))
    settings = draw(SETTINGS)
    # A limit needs a network: of one of all for the defaults'.
    closed = [
        table.get("network", settings.get("defaults", {}).get("network", "none")) in ("none", False) for table in tables
    ]
    for table, is_closed in zip([*tables, settings.get("defaults", {})], [*closed, all(closed)], strict=True):
        if is_closed:
            table.pop("network_mbps", None)
    return load_config({"global": settings, "environments": tables, **nested, **network})


@given(configs())
def test_toml_and_back_is_the_same(config: Config) -> None:
    text = config.to_toml()
    again = load_config(tomllib.loads(text))
    assert again == config
    assert again.digest() == config.digest()
    assert again.to_toml() == text.replace(text.partition("\n")[0], again.to_toml().partition("\n")[0], 1)
    assert load_config(config.to_dict()) == config


@given(configs(), st.data())
def test_scaling_gives_the_total_asked_for(config: Config, data: st.DataObject) -> None:
    before = [environment.count for environment in config.environments]
    n = data.draw(st.integers(len(before), 200))
    scaled = config.scaled(n)
    after = [environment.count for environment in scaled.environments]
    assert sum(after) == n == len(scaled.expand())
    assert min(after) >= 1
    assert scaled == config.scaled(n)
    # Who had more before never has less now.
    for more, its_share in zip(before, after, strict=True):
        for less, other_share in zip(before, after, strict=True):
            assert more <= less or its_share >= other_share
    if n == sum(before):
        assert after == before


@pytest.mark.parametrize(
    ("counts", "n", "shares"),
    [
        ([1, 9], 10, [1, 9]),
        ([1, 9], 100, [10, 90]),
        ([1, 1, 1], 10, [4, 3, 3]),
        ([1, 2], 2, [1, 1]),
        ([3, 5, 2], 5, [2, 2, 1]),
        ([1, 1, 98], 10, [1, 1, 8]),
        ([1] * 50, 50, [1] * 50),
        ([5, 5] + [1] * 10, 14, [2, 2] + [1] * 10),
    ],
)
def test_shares(counts: list[int], n: int, shares: list[int]) -> None:
    config = load_config({"environments": [{"id": f"e{i}", "count": count} for i, count in enumerate(counts)]})
    assert [environment.count for environment in config.scaled(n).environments] == shares


@pytest.mark.parametrize("n", [0, 1, -3, 100_001, 2.0, True, "4"])
def test_a_number_that_cannot_be_shared_out(n: Any) -> None:
    config = load_config({"environments": [{"id": "a"}, {"id": "b", "count": 3}]})
    with pytest.raises(
        ConfigError, match=r"--envs: number of environments: expected an integer from 2 to 100000, got "
    ):
        config.scaled(n)


def test_ids_that_collide_only_when_scaled() -> None:
    config = load_config({"environments": [{"id": "a"}, {"id": "a-1"}]})
    assert [e.id for e in config.scaled(2).expand()] == ["a", "a-1"]
    with pytest.raises(ConfigError, match='got "a-1"'):
        config.scaled(3)


def test_the_digest_is_of_what_is_said_not_of_where() -> None:
    spelled = load_config({"environments": [{"id": "a", "vcpu_count": 1, "memory_mb": 512}]})
    short = load_config({"environments": [{"id": "a"}]})
    assert spelled.digest() == short.digest()
    assert len(short.digest()) == 64
    other = load_config({"environments": [{"id": "a", "memory_mb": 511}]})
    assert other.digest() != short.digest()


def test_a_file_name_cannot_smuggle_keys_into_the_toml(tmp_path: Path) -> None:
    path = tmp_path / "x\n[global]\nseed = 3.toml"
    path.write_text('[[environments]]\nid = "a"\n')
    assert "seed" not in tomllib.loads(load_config(path).to_toml())["global"]


@given(JSON.filter(lambda value: value is not None))
def test_one_value_and_back(value: Any) -> None:
    def none_spelled(item: Any) -> Any:
        if isinstance(item, dict):
            return {key: none_spelled(inner) for key, inner in item.items()}
        if isinstance(item, list):
            return [none_spelled(inner) for inner in item]
        return "@none" if item is None else item

    assert tomllib.loads(f"v = {emit_value(value)}")["v"] == none_spelled(value)


def test_what_toml_cannot_say_is_refused() -> None:
    assert math.isnan(tomllib.loads(f"v = {emit_value(math.nan)}")["v"])
    with pytest.raises(TypeError, match="got bytes"):
        emit_value(b"")
