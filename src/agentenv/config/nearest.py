"""What somebody probably meant by a key or a value that does not exist.

Three sources, in this order: names other systems use for the same thing, keys of another table, and spelling.
It only suggests; nothing is ever corrected silently.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from types import MappingProxyType

from agentenv.config.machines import DriveConfig, FirecrackerConfig, QemuConfig
from agentenv.config.model import (
    BubblewrapConfig,
    ConfigTable,
    EnvironmentConfig,
    EnvironmentDefaults,
    GlobalTable,
    NetworkConfig,
    WrapperConfig,
    keys_of,
)

TOP, GLOBAL, DEFAULTS, ENVIRONMENT = "the file", "[global]", "[global.defaults]", "[[environments]]"
RUNTIMES = ("[bubblewrap]", "[qemu]", "[firecracker]", "[network]")
"""The tables that stand alone."""
WRAPPER = "a wrapper"
DRIVE = "a drive"

KEYS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        TOP: keys_of(ConfigTable),
        GLOBAL: keys_of(GlobalTable),
        DEFAULTS: keys_of(EnvironmentDefaults),
        ENVIRONMENT: keys_of(EnvironmentConfig),
        "[bubblewrap]": keys_of(BubblewrapConfig),
        "[qemu]": keys_of(QemuConfig),
        "[firecracker]": keys_of(FirecrackerConfig),
        "[network]": keys_of(NetworkConfig),
        WRAPPER: keys_of(WrapperConfig),
        DRIVE: keys_of(DriveConfig),
    }
)

_SYNONYMS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "count": ("num_env", "num_envs", "n_env", "n_envs", "number_of_envs", "replicas", "copies", "instances"),
        "id": ("name", "agent_id", "agent", "environment_id"),
        "env": ("env_id", "environment", "env_name", "gym_id", "environment_name", "game", "entry_point"),
        "env_kwargs": ("kwargs", "env_config", "env_args", "make_kwargs", "params", "parameters", "hyperparameters"),
        "env_vars": ("envvars", "vars", "variables", "environment_variables", "environ", "env_variables"),
        "wrappers": ("wrapper", "wrapper_class", "wrap"),
        "memory_mb": ("memory", "mem", "mem_mb", "ram", "ram_mb", "memory_limit", "mem_limit", "mem_size_mib"),
        "vcpu_count": ("cpu", "cpus", "vcpu", "vcpus", "cpu_count", "num_cpus", "cores"),
        "pids": ("max_pids", "pids_limit", "max_processes", "processes"),
        "disk_mb": ("disk", "disk_size", "disk_size_mb", "tmp_mb", "shm_mb", "shm_size"),
        "network": ("net", "internet", "allow_network", "network_access", "allow_internet_access"),
        "network_mbps": ("bandwidth", "bandwidth_mbps", "network_rate", "rate_limit", "mbps", "network_mb"),
        "pool": ("subnet", "cidr", "address_pool", "addresses"),
        "uplink": ("interface", "device", "outgoing", "nic"),
        "dns": ("resolver", "resolvers", "nameserver", "nameservers", "dns_servers"),
        "step_timeout_s": ("timeout", "step_timeout", "timeout_ms", "timeout_seconds"),
        "reset_timeout_s": ("reset_timeout",),
        "start_timeout_s": ("start_timeout", "startup_timeout", "startup_timeout_s", "boot_timeout", "boot_timeout_s"),
        "timeout_s": ("command_timeout", "command_timeout_s"),
        "command": ("cmd", "entrypoint", "args", "argv", "run"),
        "max_episode_steps": ("max_steps", "time_limit", "episode_length", "max_episode_length", "horizon"),
        "episodes": ("num_episodes", "n_episodes", "max_episodes", "episode_count"),
        "policy": ("agent_policy", "actor"),
        "render_mode": ("render", "render_as"),
        "max_message_mb": ("max_message", "max_message_size", "max_observation_mb"),
        "kernel_image": ("kernel", "vmlinux", "kernel_path", "kernel_image_path"),
        "rootfs_image": ("rootfs", "root_fs", "rootfs_path", "image", "root_image"),
        "max_parallel_envs": ("max_envs", "parallel", "max_parallel", "parallelism", "concurrency", "max_concurrent"),
        "envs_per_sandbox": ("per_sandbox", "sandbox_size", "pack"),
        "run_dir": ("runs_dir", "output_dir", "out_dir", "log_dir", "results_dir", "rundir"),
        "log_level": ("level", "loglevel", "verbosity", "logging"),
        "runtime": ("backend", "driver", "engine"),
        "isolation": ("isolation_level", "min_isolation"),
        "seed": ("random_seed", "rng_seed"),
        "defaults": ("default", "environment_defaults", "common"),
        "binary": ("bwrap", "bwrap_path", "bwrap_binary", "path"),
        "wrapper": ("class", "cls", "callable", "name"),
        "global": ("globals", "general", "settings", "common"),
        "environments": ("environment", "env", "envs", "agent", "agents", "env_list"),
        "bubblewrap": ("bwrap",),
    }
)


def suggest_key(key: str, table: str) -> str:
    """A hint for an unknown key of ``table`` (one of the names above)."""
    wanted = key.strip().lower().replace("-", "_")
    own = KEYS[table]
    if own_match := _known(wanted, own):
        return f"did you mean {_spelled(own_match, table)}?"
    other_match = _known(wanted, _elsewhere(table))
    if other_match == wanted:
        return f"{wanted} belongs in {_home(wanted)}"
    if not other_match:
        if close := _closest(wanted, own):
            return f"did you mean {_spelled(close, table)}?"
        other_match = _closest(wanted, _elsewhere(table))
    if other_match:
        return f'did you mean "{other_match}"? It belongs in {_home(other_match)}'
    return f"valid keys of {table}: {', '.join(own)}"


def suggest_keyword(key: str) -> str:
    """A hint for a keyword argument that is a key of neither the environments nor the global table."""
    keys = KEYS[ENVIRONMENT] + KEYS[GLOBAL]
    wanted = key.strip().lower()
    match = _known(wanted, keys) or _closest(wanted, keys)
    if match == "count":
        return "for several environments: AgentVectorEnv.from_env(env, num_envs=N)"
    return f'did you mean "{match}"?' if match else f"valid keywords: {', '.join(dict.fromkeys(keys))}"


def suggest_value(value: object, choices: Iterable[object]) -> str:
    """A hint for a value that is none of the choices; empty where none is near."""
    names = [choice for choice in choices if isinstance(choice, str)]
    match = _closest(value.lower(), names) if isinstance(value, str) else None
    return f'did you mean "{match}"?' if match else ""


def _known(wanted: str, keys: Iterable[str]) -> str | None:
    keys = tuple(keys)
    if wanted in keys:
        return wanted
    return next((key for key in keys if wanted in _SYNONYMS.get(key, ())), None)


def _closest(wanted: str, keys: Iterable[str]) -> str | None:
    keys = tuple(keys)
    # Two letters swapped in a short word, which the ratio below counts as half of it.
    swapped = [key for key in keys if sorted(key) == sorted(wanted)]
    matches = swapped or difflib.get_close_matches(wanted, keys, n=1, cutoff=0.7)
    return matches[0] if matches else None


def _elsewhere(table: str) -> tuple[str, ...]:
    others = (ENVIRONMENT, GLOBAL, *RUNTIMES) if table not in (WRAPPER, DRIVE) else ()
    return tuple(key for other in others for key in KEYS[other] if key not in KEYS[table])


def _home(key: str) -> str:
    if key in KEYS[DEFAULTS]:
        return f"{ENVIRONMENT} or {DEFAULTS}"
    return next(table for table in (ENVIRONMENT, GLOBAL, *RUNTIMES) if key in KEYS[table])


def _spelled(key: str, table: str) -> str:
    if table != TOP:
        return f'"{key}"'
    return f"[[{key}]]" if key == "environments" else f"[{key}]"
