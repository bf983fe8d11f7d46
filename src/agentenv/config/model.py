"""The configuration as frozen records: every key with its unit, its meaning and its default.

This is the one place a key is declared; the JSON Schema, the reference page and the messages about mistakes are all
derived from it. Types are strict: ``"8"`` and ``true`` are not integers, and an unknown key is an error, never ignored.
Nothing here reads files, imports an environment or looks at the machine.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, ConfigDict, Field
from pydantic.json_schema import JsonSchemaValue

from agentenv.config.machines import FirecrackerConfig as FirecrackerConfig
from agentenv.config.machines import QemuConfig as QemuConfig
from agentenv.config.names import EntryPoint, EnvName, Identifier, Policy, check_entry_point, check_render_mode
from agentenv.config.network import InterfaceName, NetworkSetting, Pool, Resolver
from agentenv.config.record import MAX_MB, LogLevel, Record
from agentenv.config.values import CheckpointEvery, Command, FilePath, Keywords, Variables

MAX_COUNT = 100_000
MAX_PIDS = 1 << 22  # the kernel's own limit on 64-bit machines
MAX_S = 1e8  # three years
MAX_MBPS = 400_000
MAX_SEED = 2**64 - 1

RuntimeName = Literal["auto", "bubblewrap", "process", "firecracker", "qemu"]
IsolationLevel = Literal["vm", "sandbox", "process"]
RenderMode = Literal["rgb_array", "ansi", "rgb_array_list"]


class WrapperConfig(Record):
    """A Gymnasium wrapper to put around the environment."""

    wrapper: EntryPoint = Field(description="The wrapper as module:callable; called with the environment first.")
    kwargs: Keywords = Field(default={}, description="Keyword arguments of the wrapper.")

    @classmethod
    def __get_pydantic_json_schema__(cls, core_schema: Any, handler: Any) -> JsonSchemaValue:
        table: JsonSchemaValue = handler.resolve_ref_schema(handler(core_schema))
        return {"anyOf": [{"type": "string", "pattern": table["properties"]["wrapper"]["pattern"]}, {**table}]}


def _as_wrapper(value: object) -> object:
    return {"wrapper": check_entry_point(value)} if isinstance(value, str) or callable(value) else value


class EnvironmentDefaults(Record):
    """What may be said of one environment, or in the defaults of all of them."""

    env: EnvName | None = Field(
        default=None,
        description="A Gymnasium id, or module:callable. Without it, and without command: the built-in GridWorld.",
    )
    env_kwargs: Keywords = Field(
        default={},
        description='Keyword arguments of the environment. The string "@none" stands for None, which TOML lacks.',
    )
    wrappers: tuple[Annotated[WrapperConfig, BeforeValidator(_as_wrapper)], ...] = Field(
        default=(),
        description="Wrappers put around it, the first innermost: module:callable, or a table with its kwargs.",
    )
    command: Command | None = Field(
        default=None,
        description="Instead of env: a program and its arguments, run in the sandbox to its end. In a machine,"
        ' "@entrypoint" as the first stands for the ENTRYPOINT of the image, and its CMD where nothing follows.',
    )
    policy: Policy = Field(
        default="random",
        description='Who acts in a run without a trainer: "random", or module:callable. Ignored by trainers.',
    )
    episodes: int = Field(default=1, strict=True, ge=1, description="Episodes to play in a run without a trainer.")
    max_episode_steps: int | None = Field(
        default=None,
        strict=True,
        ge=1,
        description="Steps after which an episode is truncated. Unset: as the environment is registered.",
    )
    seed: int | None = Field(
        default=None,
        strict=True,
        ge=0,
        le=MAX_SEED,
        description="Seed of the first reset; copy i of a count uses seed + i. Unset: derived from the global seed.",
    )
    env_vars: Variables = Field(
        default={},
        description="Environment variables inside the sandbox. Numbers and booleans become strings; null omits one.",
    )
    memory_mb: int = Field(default=512, strict=True, ge=16, le=MAX_MB, description="Memory limit in MiB.")
    vcpu_count: float = Field(
        default=1.0, strict=True, ge=0.01, le=65536, description="CPU limit in cores; fractions are allowed."
    )
    pids: int = Field(default=128, strict=True, ge=4, le=MAX_PIDS, description="Most processes and threads at once.")
    disk_mb: int = Field(
        default=64, strict=True, ge=1, le=MAX_MB, description="Size in MiB of /tmp and of /dev/shm, each."
    )
    network: NetworkSetting = Field(
        default="none",
        description='What is reachable: "none"; "internet", which is everything public; or a table of allow and deny,'
        " which machines alone can hold to (networks.md). false and true stand for the first two.",
    )
    network_mbps: float | None = Field(
        default=None,
        strict=True,
        ge=0.1,
        le=MAX_MBPS,
        description="Most megabits (10^6 bits) a second in each direction; for machines only. Unset: no limit.",
    )
    start_timeout_s: float = Field(
        default=60.0, strict=True, gt=0, le=MAX_S, description="Seconds the environment may take to be built."
    )
    reset_timeout_s: float = Field(
        default=120.0, strict=True, gt=0, le=MAX_S, description="Seconds one reset may take."
    )
    step_timeout_s: float = Field(default=60.0, strict=True, gt=0, le=MAX_S, description="Seconds one step may take.")
    on_crash: Literal["recover", "truncate", "raise"] = Field(
        default="recover",
        description="What the death of the environment's process does: bring it back to where it was, end the episode"
        " as truncated, or raise an error.",
    )
    checkpoint_every: CheckpointEvery = Field(
        default="auto",
        description='How often its state is saved for recovery: "auto" (as often as costs at most 3 % of its own time),'
        ' a number of steps, seconds as in "2.5s", or "never" (everything is done again from the start).',
    )
    restart: Literal["always", "on-failure", "never"] = Field(
        default="on-failure",
        description='Whether it is started again when it died: "on-failure" does not when it exited with status 0.',
    )
    max_restarts: int = Field(
        default=10, strict=True, ge=0, le=MAX_COUNT, description="Most restarts within restart_window_s."
    )
    restart_window_s: float = Field(
        default=600.0, strict=True, gt=0, le=MAX_S, description="Seconds within which restarts are counted."
    )
    restart_backoff_s: float = Field(
        default=0.5,
        strict=True,
        ge=0,
        le=MAX_S,
        description="Most seconds to wait before the fourth restart in the window; before each further one twice as"
        " many.",
    )
    on_quarantine: Literal["truncate", "raise"] = Field(
        default="truncate",
        description="What one of several environments does when its restarts are used up: every step of it is truncated"
        " with reward 0, or the error is raised. One that is alone raises.",
    )
    timeout_s: float | None = Field(
        default=None,
        strict=True,
        gt=0,
        le=MAX_S,
        description="Seconds a command may take in all. Unset: no limit. Only with command.",
    )
    invalid_action: Literal["error", "clip"] = Field(
        default="error", description="What an action outside its space does: raise an error, or be clipped into a Box."
    )
    trace_mb: int = Field(
        default=64,
        strict=True,
        ge=0,
        le=MAX_MB,
        description="MiB kept of its recorded actions and digests in a run; older episodes go first. 0 keeps none.",
    )
    render_mode: Annotated[RenderMode | None, check_render_mode] = Field(
        default=None, description='Gymnasium render mode. "human" is refused: there is no display inside a sandbox.'
    )
    max_message_mb: int = Field(
        default=64,
        strict=True,
        ge=1,
        description="Largest observation plus info in MiB that the host accepts. Once read, it may take 8 times as much"
        " memory, or 64 MiB where that is more.",
    )
    kernel_image: FilePath | None = Field(
        default=None,
        description="Kernel for VM runtimes, relative to this file. Noted in the log and ignored elsewhere.",
    )
    rootfs_image: FilePath | None = Field(
        default=None,
        description="Root file system for VM runtimes, relative to this file. Noted and ignored elsewhere.",
    )


class EnvironmentIdentity(Record):
    """What only an environment itself can say, never the defaults."""

    id: Identifier = Field(description="Name of the environment, unique in the file; a directory and a host name.")
    count: int = Field(
        default=1, strict=True, ge=1, le=MAX_COUNT, description="Copies. More than one are named id-0, id-1 and so on."
    )


# The bases stand in this order because pydantic lists the fields of the last one first, and the id should come first.
class EnvironmentConfig(EnvironmentDefaults, EnvironmentIdentity):
    """One environment, with the defaults merged under what it says itself."""

    model_config = ConfigDict(json_schema_extra={"not": {"required": ["env", "command"]}})


class GlobalConfig(Record):
    """What holds for the whole run."""

    name: Identifier | None = Field(
        default=None, description="Name of the run. Unset: the name of the file without .toml."
    )
    log_level: LogLevel = Field(default="info", description="Least severity that is logged.")
    runtime: RuntimeName = Field(
        default="auto", description="What isolates the environments; auto takes the strongest that works here."
    )
    isolation: IsolationLevel | None = Field(
        default=None,
        description="Least isolation that is accepted, vm being the most. Unset: whatever the runtime gives.",
    )
    max_parallel_envs: int | None = Field(
        default=None,
        strict=True,
        ge=1,
        description="Most environments running at once. Unset: what the machine has room for.",
    )
    envs_per_sandbox: int = Field(
        default=1,
        strict=True,
        ge=1,
        description="Environments that share one sandbox, for speed at the price of isolation.",
    )
    seed: int | None = Field(
        default=None,
        strict=True,
        ge=0,
        le=MAX_SEED,
        description="Seed from which every unset environment seed is derived. Unset: random.",
    )
    warm: int = Field(
        default=0,
        strict=True,
        ge=0,
        le=1000,
        description="Machines that runtimes qemu and firecracker keep ready beyond those that run, so that one that is"
        " restarted or asked for is there sooner.",
    )
    run_dir: FilePath = Field(
        default="runs",
        description="Directory that receives one folder a run, relative to where the command is started.",
    )


class GlobalTable(GlobalConfig):
    """What holds for the whole run, and the defaults of its environments."""

    defaults: EnvironmentDefaults = Field(
        default_factory=EnvironmentDefaults,
        description="Any key of an environment but id and count, for every environment that does not say otherwise.",
    )


class BubblewrapConfig(Record):
    """Settings of the bubblewrap runtime."""

    binary: FilePath | None = Field(
        default=None,
        description="The bwrap program. Unset: the one on PATH, else the one that was installed with agentenv.",
    )
    nested: Literal["auto", "never"] = Field(
        default="auto", description="Fork environments inside one outer sandbox where the kernel allows it, or never."
    )


class NetworkConfig(Record):
    """Where the network of machines comes from."""

    pool: Pool = Field(
        default="10.213.0.0/16",
        description="Private network from which each machine gets two addresses on this host. Nothing else may use it.",
    )
    uplink: InterfaceName = Field(
        default="auto",
        description="The only interface of this host by which machines go out; auto leaves it to the host's routes.",
    )
    dns: tuple[Resolver, ...] = Field(
        default=(),
        description="Resolvers given to machines that may reach them. Unset: those of this host.",
    )


class ConfigTable(Record):
    """A configuration file."""

    global_: GlobalTable = Field(
        default_factory=GlobalTable, alias="global", description="What holds for the whole run."
    )
    environments: tuple[EnvironmentConfig, ...] = Field(min_length=1, description="The environments to run.")
    bubblewrap: BubblewrapConfig = Field(
        default_factory=BubblewrapConfig, description="Settings of the bubblewrap runtime."
    )
    qemu: QemuConfig = Field(default_factory=QemuConfig, description="Settings of the qemu runtime.")
    firecracker: FirecrackerConfig = Field(
        default_factory=FirecrackerConfig, description="Settings of the firecracker runtime."
    )
    network: NetworkConfig = Field(
        default_factory=NetworkConfig, description="Where the network of machines comes from."
    )


def keys_of(record: type[Record]) -> tuple[str, ...]:
    """The keys a table accepts, as written in the file."""
    return tuple(field.alias or name for name, field in record.model_fields.items())


def as_plain(record: Record) -> dict[str, Any]:
    """A record as JSON values, without the keys that are unset or empty."""
    # Not mode="json", which turns an infinite keyword argument into null in some versions of pydantic.
    dumped = {key: list(value) if isinstance(value, tuple) else value for key, value in record.model_dump().items()}
    return {key: value for key, value in dumped.items() if value is not None and value not in ([], {})}
