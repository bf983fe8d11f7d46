"""The tables of the monitors of machines, [qemu] and [firecracker], with every key's unit, meaning and default."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from agentenv.config.monitors import Jailer, KernelWords, Place
from agentenv.config.record import MAX_MB, LogLevel, Record
from agentenv.config.values import FilePath

MAX_OPS = 1_000_000_000
MAX_ID = 2**32 - 2  # the last number stands for "nobody said"


class DriveConfig(Record):
    """A drive that every machine has, read-only and shared by all of them."""

    path: FilePath = Field(description="An ext4 or squashfs image, relative to this file. It must not change in a run.")
    mount: Place = Field(description="Directory in the machine at which it is mounted.")
    readonly: bool = Field(default=True, strict=True, description="Only true: all machines share the file.")


class MonitorConfig(Record):
    """What may be said of the machines of every monitor."""

    boot_args: KernelWords = Field(default="", strict=True, description="Words added to the kernel's command line.")
    drives: tuple[DriveConfig, ...] = Field(
        default=(), max_length=8, description="Further drives of every machine: tables of path and mount."
    )
    disk_mb_per_s: int | None = Field(
        default=None,
        strict=True,
        ge=1,
        le=MAX_MB,
        description="MiB a second that each drive of a machine reads and writes at most. Unset: no limit.",
    )
    disk_ops_per_s: int | None = Field(
        default=None,
        strict=True,
        ge=1,
        le=MAX_OPS,
        description="Operations a second on each drive of a machine at most. Unset: no limit.",
    )
    balloon_mb: int = Field(
        default=0,
        strict=True,
        ge=0,
        le=MAX_MB,
        description="MiB of a machine's memory that a balloon leaves to the host until the machine would run out of"
        " memory without it. Only Firecracker has one.",
    )
    huge_pages: Literal["none", "2M"] = Field(
        default="none",
        description="Pages of the host that machines' memory consists of; 2M takes those that the host has set aside."
        " Only QEMU takes them.",
    )


# The bases stand in this order because pydantic lists the fields of the last one first: the binary should come first.
class QemuProgram(Record):
    """What only QEMU has."""

    binary: FilePath | None = Field(default=None, description="The qemu-system-x86_64 program. Unset: the one on PATH.")
    accelerator: Literal["auto", "kvm", "hvf", "tcg"] = Field(
        default="auto", description="What runs the machines' code; auto takes KVM where a guest really runs on it."
    )
    agent_port: Literal["serial", "vsock", "auto"] = Field(
        default="serial",
        description="Device by which the agent in a machine is reached; auto takes vsock where this host has"
        " vhost-vsock. With vsock machines reach every vsock port of this host.",
    )


class QemuConfig(MonitorConfig, QemuProgram):
    """Settings of the qemu runtime."""


class FirecrackerProgram(Record):
    """What only Firecracker has."""

    binary: FilePath | None = Field(default=None, description="The firecracker program. Unset: the one on PATH.")
    jailer: Jailer = Field(
        default=False,
        description="Whether each Firecracker is jailed by its own jailer: true for the one on PATH, or its path. Needs"
        " root.",
    )
    jailer_uid: int | None = Field(
        default=None,
        strict=True,
        ge=1,
        le=MAX_ID,
        description="User that a jailed Firecracker runs as. Unset: 65534, nobody.",
    )
    jailer_gid: int | None = Field(
        default=None,
        strict=True,
        ge=1,
        le=MAX_ID,
        description="Group that a jailed Firecracker runs as. Unset: 65534, nobody.",
    )
    log_level: LogLevel = Field(
        default="warning", description="Least severity that Firecracker itself logs, among what its machine prints."
    )


class FirecrackerConfig(MonitorConfig, FirecrackerProgram):
    """Settings of the firecracker runtime."""
