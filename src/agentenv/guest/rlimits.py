"""Per-process limits for an environment where no control group may be written.

Weaker than a control group, and said so: every limit here is per process or per user, never per environment, so an
environment of n processes may use n times the memory. It refuses to pretend otherwise: what a kernel cannot enforce is
left out of the plan and named in its notes.

Why RLIMIT_DATA and not RLIMIT_AS for memory. RLIMIT_AS counts addresses, and numpy, MuJoCo and torch reserve
many they never touch (64 MiB per thread for a malloc arena, GiB for CUDA), map their libraries' read-only pages, and
map the step channel: a limit near the declared memory refuses programs that use a tenth of it. RLIMIT_DATA counts
private writable memory only, since Linux 4.7 also from mmap: not reservations without access, not read-only
libraries, not shared mappings. Pages still shared with the zygote count although nobody copied them, hence the
allowance for what is inherited. What is written to shared memory is limited by the size of /dev/shm, not here.
"""

from __future__ import annotations

import difflib
import errno
import os
import resource
from collections.abc import Mapping
from dataclasses import dataclass

KEYS = ("memory_mb", "pids", "open_files", "disk_mb")
"""The limits understood: unshared memory in MiB, processes and threads, descriptors, size of one file in MiB."""

_MIB = 1024 * 1024
_USED = (
    resource.RLIMIT_DATA,
    resource.RLIMIT_NPROC,
    resource.RLIMIT_NOFILE,
    resource.RLIMIT_FSIZE,
    resource.RLIMIT_CORE,
)


@dataclass(frozen=True)
class Plan:
    """What to set and what could not be had.

    Attributes:
        limits: Resource (`resource.RLIMIT_*`) -> (soft, hard), in the order to set them.
        notes: One sentence for each limit that is weaker than asked, or absent.
    """

    limits: Mapping[int, tuple[int, int]]
    notes: tuple[str, ...]


def plan(
    limits: Mapping[str, int],
    *,
    inherited_bytes: int,
    hard: Mapping[int, int],
    kernel: tuple[int, int],
    user_is_root: bool = False,
) -> Plan:
    """Decides the limits; reads nothing and sets nothing.

    Args:
        limits: Any of `KEYS`, each at least 1. Core dumps are always off.
        inherited_bytes: Private writable memory the process has already (VmData), not to be charged to it.
        hard: Present hard limits by resource; -1 (RLIM_INFINITY) or absent means none. They are never raised.
        kernel: Linux version, (major, minor).
        user_is_root: The environments belong to the machine's own user 0, inside whatever namespace. Only the host
            can know; it changes the notes, not the limits.

    Returns:
        The plan. Soft and hard limit are equal, so that the environment cannot raise them again.

    Raises:
        ValueError: An unknown key, or a value below 1.
    """
    for key, value in limits.items():
        if key not in KEYS:
            nearest = difflib.get_close_matches(key, KEYS, n=1)
            hint = f"; did you mean {nearest[0]!r}?" if nearest else ""
            raise ValueError(f"unknown limit {key!r}; expected one of {', '.join(KEYS)}{hint}")
        if value < 1:
            raise ValueError(f"limit {key} is {value}; expected at least 1, or leave it out for no limit")

    wanted: dict[int, int] = {resource.RLIMIT_CORE: 0}
    notes: list[str] = []
    if "memory_mb" in limits:
        wanted[resource.RLIMIT_DATA] = limits["memory_mb"] * _MIB + inherited_bytes
        notes.append("memory is limited per process, not per environment")
    if "disk_mb" in limits:
        wanted[resource.RLIMIT_FSIZE] = limits["disk_mb"] * _MIB
        notes.append("disk is limited per file, not per environment")
    if "open_files" in limits:
        wanted[resource.RLIMIT_NOFILE] = limits["open_files"]
    if "pids" in limits:
        if kernel < (5, 14):
            # Until then the kernel counted a user's processes over all namespaces: this environment would be refused
            # a fork because of its siblings and of whatever else the user runs.
            notes.append(f"pids is not limited: Linux {kernel[0]}.{kernel[1]} counts per user, 5.14 per user namespace")
        else:
            wanted[resource.RLIMIT_NPROC] = limits["pids"]
            if user_is_root:
                notes.append("pids does not bind: the kernel exempts processes of the machine's root user from it")

    settled: dict[int, tuple[int, int]] = {}
    for which, value in wanted.items():
        ceiling = hard.get(which, resource.RLIM_INFINITY)
        bounded = value if ceiling == resource.RLIM_INFINITY else min(value, ceiling)
        settled[which] = (bounded, bounded)
    return Plan(limits=settled, notes=tuple(notes))


def apply(limits: Mapping[str, int]) -> None:
    """Sets the limits on this process; children inherit them.

    Call it in the environment's process, inside its own user namespace (processes are counted there) and after the
    zygote's fork (memory it has by then is not charged). Nothing is set unless everything can be read first.

    Args:
        limits: As for `plan`.

    Raises:
        ValueError: As for `plan`.
        OSError: /proc/self is not readable, or the kernel refused a limit.
    """
    decided = plan(
        limits,
        inherited_bytes=_private_writable_bytes() if "memory_mb" in limits else 0,
        hard={which: resource.getrlimit(which)[1] for which in _USED},
        kernel=_kernel_version(os.uname().release),
    )
    for which, pair in decided.limits.items():
        resource.setrlimit(which, pair)


def _private_writable_bytes() -> int:
    with open("/proc/self/status", encoding="ascii", errors="replace") as status:
        for line in status:
            if line.startswith("VmData:"):
                return int(line.split()[1]) * 1024
    raise OSError(
        errno.ENODATA, "no VmData in /proc/self/status; expected the proc file system of this machine at /proc"
    )


def _kernel_version(release: str) -> tuple[int, int]:
    major, minor = release.split("-")[0].split("+")[0].split(".")[:2]
    return int(major), int(minor)
