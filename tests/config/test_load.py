from __future__ import annotations

import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from agentenv.config import Config, config_from_keywords, load_config
from agentenv.errors import ConfigError

KNOWN_FORM = """\
[global]
log_level = "info"
max_parallel_envs = 10

[[environments]]
id = "agent_1"
kernel_image = "./vmlinux"        # used by VM runtimes; accepted and ignored, with a note in the log, elsewhere
rootfs_image = "./rootfs.ext4"
memory_mb = 512
vcpu_count = 1
env_vars = { TRAINING_SEED = "42", AGENT_TYPE = "dqn" }

[[environments]]
id = "agent_2"
"""


def load_text(text: str, tmp_path: Path) -> Config:
    path = tmp_path / "run.toml"
    path.write_text(text)
    return load_config(path)


def environment(**keys: Any) -> dict[str, Any]:
    return {"id": "a", **keys}


def test_the_form_users_know_loads_as_it_stands(tmp_path: Path) -> None:
    config = load_text(KNOWN_FORM, tmp_path)
    first, second = config.expand()
    assert config.global_.max_parallel_envs == 10
    assert config.global_.runtime == "auto"
    assert (first.id, first.memory_mb, first.vcpu_count) == ("agent_1", 512, 1.0)
    assert first.env_vars == {"TRAINING_SEED": "42", "AGENT_TYPE": "dqn"}
    assert first.kernel_image == "./vmlinux"
    assert config.resolve("./vmlinux") == tmp_path / "vmlinux"
    assert config.resolve("/boot/vmlinux") == Path("/boot/vmlinux")
    assert second.id == "agent_2"
    assert second.env is None
    assert second.command is None
    assert config.base_dir == tmp_path
    assert config.source == str(tmp_path / "run.toml")
    assert config.name == "run"


def test_numpy_scalars_and_paths_count_as_what_they_are() -> None:
    config = config_from_keywords(
        "X-v0", memory_mb=np.int64(64), env_kwargs={"lr": np.float64(0.5), "n": [np.int8(3)]}, run_dir=Path("out")
    )
    [only] = config.environments
    assert only.env_kwargs == {"lr": 0.5, "n": [3]}
    assert type(only.memory_mb) is int
    assert type(only.env_kwargs["lr"]) is float
    assert config.global_.run_dir == "out"


def test_keywords_go_to_the_table_that_has_them() -> None:
    config = config_from_keywords(
        "CartPole-v1", count=4, seed=3, runtime="process", max_parallel_envs=2, render_mode=None
    )
    [only] = config.environments
    assert (only.id, only.env, only.count, only.seed) == ("env", "CartPole-v1", 4, 3)
    assert (config.global_.runtime, config.global_.max_parallel_envs, config.global_.seed) == ("process", 2, None)
    assert (config.source, config.name, config.base_dir) == ("keyword argument", "run", Path.cwd())
    assert config_from_keywords(env=None, command=["true"], id="job").environments[0].command == ("true",)
    own = config_from_keywords("CartPole-v1", qemu={"agent_port": "vsock"}, firecracker={"balloon_mb": 64})
    assert (own.qemu.agent_port, own.firecracker.balloon_mb) == ("vsock", 64)


def test_a_wrong_key_of_a_runtimes_table_is_named_as_it_was_given() -> None:
    with pytest.raises(ConfigError) as caught:
        config_from_keywords("CartPole-v1", qemu={"agent_prt": "vsock"}, firecracker=3)
    said = [(problem.path, problem.hint) for problem in caught.value.problems]
    assert said[0] == ("qemu.agent_prt", 'did you mean "agent_port"?')
    assert said[1][0] == "firecracker"
    with pytest.raises(ConfigError, match="global: unknown keyword"):
        config_from_keywords("CartPole-v1", **{"global": {"seed": 1}})


@pytest.mark.parametrize(
    ("file_name", "name"),
    [
        ("a.toml", "a"),
        ("my config (2).toml", "my-config-2"),
        ("...toml", "run"),
        ("é.toml", "run"),
        (f"{'x' * 90}.toml", "x" * 63),
    ],
)
def test_a_run_is_named_after_its_file(file_name: str, name: str, tmp_path: Path) -> None:
    path = tmp_path / file_name
    path.write_text(KNOWN_FORM)
    assert load_config(path).name == name
    assert load_config(path, overrides=["global.name=other"]).name == "other"


def test_a_byte_order_mark_and_windows_line_ends_are_no_mistake(tmp_path: Path) -> None:
    path = tmp_path / "w.toml"
    path.write_bytes(b"\xef\xbb\xbf" + KNOWN_FORM.replace("\n", "\r\n").encode())
    (tmp_path / "u.toml").write_text(KNOWN_FORM)
    assert load_config(path) == load_config(os.fspath(tmp_path / "u.toml"))


def test_the_callers_dict_stays_as_it_was() -> None:
    table = {"global": {"seed": 1}, "environments": [environment(env_kwargs={"a": [1]})]}
    config = load_config(table, overrides=["global.seed=2", "environments.a.env_kwargs.a[0]=9"])
    assert table == {"global": {"seed": 1}, "environments": [environment(env_kwargs={"a": [1]})]}
    assert config.environments[0].env_kwargs == {"a": [9]}


def test_a_config_passes_through_and_survives_pickling() -> None:
    config = load_config({"environments": [environment(env_kwargs={"a": [1, None]})]})
    assert load_config(config) is config
    assert pickle.loads(pickle.dumps(config)) == config


def test_a_config_cannot_be_changed() -> None:
    config = load_config({"environments": [environment()]})
    with pytest.raises(AttributeError):
        config.environments = ()  # type: ignore[misc]  # wrong on purpose
    with pytest.raises(ValueError, match="frozen"):
        config.environments[0].memory_mb = 3


def test_importing_it_loads_neither_gymnasium_nor_numpy() -> None:
    code = "import sys, agentenv.config; sys.exit(', '.join({'gymnasium', 'numpy'} & set(sys.modules)) or 0)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_hundred_thousand_copies_of_one_id_collide_in_no_time() -> None:
    table = {"environments": [environment(count=100_000), environment(count=100_000)]}
    with pytest.raises(ConfigError, match='got "a-0" a second time'):
        load_config(table)
