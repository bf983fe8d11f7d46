"""Limits of memory, processor time and processes for each environment, through the kernel's control groups.

Both versions are served by one contract, `Cgroup`. Which one works here is found by making and removing a group,
because permissions on these files say little about what the kernel will allow. Every group's name carries its run's id,
so `sweep` can remove what a killed run left. It refuses to guess: where no group can be made, the answer says why and
what would help.

    <parent>/agentenv.<run id>/<environment>
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from agentenv.errors import ClosedError, RuntimeUnavailable
from agentenv.sandbox.runtimes._cgroup_contract import Cgroup, CgroupLimits, CgroupStats
from agentenv.sandbox.runtimes._cgroup_v1 import HierarchyV1
from agentenv.sandbox.runtimes._cgroup_v2 import HierarchyV2
from agentenv.sandbox.runtimes._runid import is_run_id, new_run_id, run_is_alive

__all__ = ["Cgroup", "CgroupLimits", "CgroupRun", "CgroupStats", "CgroupSupport", "detect", "open_run", "sweep"]

ROOT = Path("/sys/fs/cgroup")
_PREFIX = "agentenv."
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
# Measured with two processors and 10 environments that do nothing: 2 gave 210k steps/s, 1 90k, 5 110k.
_MODEST_SHARE = 2
_LIMITED = ("memory", "cpu", "pids")


@dataclass(frozen=True, slots=True)
class CgroupSupport:
    """What this process can limit on this machine.

    Attributes:
        version: "v1", "v2", or "none" if nothing can be limited.
        controllers: Those that work, of memory, cpu, pids, io.
        reason: Why something is missing, in words; empty if memory, cpu and pids all work.
        remedy: What would help; empty likewise.
    """

    version: str
    controllers: frozenset[str]
    reason: str = ""
    remedy: str = ""


class CgroupRun:
    """All groups of one run. A context manager; `close` removes whatever is still there."""

    def __init__(self, run_id: str, hierarchy: HierarchyV1 | HierarchyV2) -> None:
        self.run_id = run_id
        self.version = hierarchy.version
        self.controllers = hierarchy.controllers
        self._hierarchy = hierarchy
        self._run = _PREFIX + run_id
        self._closed = False
        self._shares: list[tuple[Cgroup, float]] = []
        self._modest = False
        try:
            hierarchy.make_run(self._run)
        except FileExistsError as error:
            raise RuntimeUnavailable(
                f"control groups of run {run_id} exist already: {error.filename}", "open each run once"
            ) from None
        except OSError as error:
            hierarchy.remove_run(self._run)
            raise RuntimeUnavailable(f"cannot make {error.filename}: {error.strerror}", _remedy()) from error

    def create(self, name: str, *, memory_mb: int, vcpu_count: float, pids: int) -> Cgroup:
        """Makes a group; a limit whose controller is not in `controllers` is not enforced.

        Args:
            name: 1 to 64 letters, digits, dots, dashes, underscores, the first a letter or digit; unique in the run.
            memory_mb: MiB of memory, tmpfs and page cache included, no swap.
            vcpu_count: Processors' worth of time; may be a fraction.
            pids: Processes and threads at once.

        Raises:
            ValueError: The name or a limit is out of range.
            ClosedError: The run was closed.
            RuntimeUnavailable: The name is taken, or the kernel refused.
        """
        if self._closed:
            raise ClosedError(f"control groups of run {self.run_id} were closed; open another run")
        if not _NAME.fullmatch(name):
            raise ValueError(f"group name {name!r}: expected 1 to 64 of A-Z a-z 0-9 _ . -, the first a letter or digit")
        limits = CgroupLimits(memory_mb=memory_mb, vcpu_count=vcpu_count, pids=pids)
        try:
            group = self._hierarchy.make_group(self._run, name, limits)
            self._shares = [(one, share) for one, share in self._shares if not one.destroyed]
            self._shares.append((group, vcpu_count))
            self._set_share()
            return group
        except FileExistsError:
            raise RuntimeUnavailable(
                f"control group {name!r} exists already in run {self.run_id}, or the kernel has a file of that name",
                "choose another name",
            ) from None
        except OSError as error:
            raise RuntimeUnavailable(f"cannot make control group {name!r}: {error}", _remedy()) from error

    def weigh(self, modestly: bool) -> None:
        """Says whether what runs in the groups waits by giving way, and so never sleeps.

        What counts for as many processes as there are environments would then keep the rest of the machine, and with it
        whoever asks the environments, from having its turn: it counts for two a processor at most.
        """
        self._modest = modestly
        with suppress(OSError):  # closed meanwhile
            self._set_share()

    def _set_share(self) -> None:
        # A group of many weighs as little as one process by default: on a busy machine every run would starve.
        share = sum(share for _, share in self._shares)
        most = _MODEST_SHARE * len(os.sched_getaffinity(0))
        self._hierarchy.set_share(self._run, min(share, most) if self._modest else share)

    def close(self) -> None:
        """Kills and removes all groups of the run. May be called again.

        Raises:
            AgentEnvError: Something in it cannot be killed or removed; see `Cgroup.destroy`.
        """
        if not self._closed:
            self._hierarchy.remove_run(self._run)
            self._closed = True

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


def detect(root: Path = ROOT) -> CgroupSupport:
    """Finds what can be limited here, by making and removing a group. Takes milliseconds; leaves nothing."""
    hierarchy = _probe(root)
    missing = [name for name in _LIMITED if name not in hierarchy.controllers]
    return CgroupSupport(
        version=hierarchy.version if hierarchy.controllers & set(_LIMITED) else "none",
        controllers=hierarchy.controllers if len(missing) < len(_LIMITED) else frozenset(),
        reason=_reason({name: hierarchy.reasons.get(name, "absent") for name in missing}),
        remedy=_remedy() if missing else "",
    )


def open_run(run_id: str, root: Path = ROOT) -> CgroupRun | None:
    """Prepares control groups for a run.

    Args:
        run_id: From `new_run_id`.
        root: Where control groups are mounted.

    Returns:
        The run, or None where nothing can be limited; `detect` says why.

    Raises:
        ValueError: Not a run id.
        RuntimeUnavailable: It was opened already, or the kernel refused.
    """
    if not is_run_id(run_id):
        raise ValueError(f"{run_id!r} is not a run id; expected one from new_run_id()")
    hierarchy = _probe(root)
    return CgroupRun(run_id, hierarchy) if hierarchy.controllers & set(_LIMITED) else None


def sweep(is_alive: Callable[[str], bool] = run_is_alive, root: Path = ROOT) -> tuple[str, ...]:
    """Kills and removes the groups of runs that are dead.

    Touches nothing but ``agentenv.<run id>``. A run with processes of another pid namespace is left alone: whether
    its maker lives cannot be seen from here.

    Args:
        is_alive: Tells from a run id whether the run lives.
        root: Where control groups are mounted.

    Returns:
        The ids of the runs removed.

    Raises:
        AgentEnvError: Something cannot be killed or removed; see `Cgroup.destroy`.
    """
    hierarchy = _probe(root)
    if not hierarchy.controllers:
        return ()
    removed = []
    for run in sorted(hierarchy.runs()):
        run_id = run.removeprefix(_PREFIX)
        if run == run_id or not is_run_id(run_id) or is_alive(run_id) or hierarchy.holds_foreign(run):
            continue
        hierarchy.remove_run(run)
        removed.append(run_id)
    return tuple(removed)


def _probe(root: Path) -> HierarchyV1 | HierarchyV2:
    probe_name = _PREFIX + new_run_id()  # so that a sweep removes it should this process be killed right here
    # Only a hierarchy of version 2 has this file at its root. Where both are mounted ("hybrid"), version 1 has the
    # controllers and version 2 stands beside it in a directory of its own.
    kind = HierarchyV2 if (root / "cgroup.controllers").exists() else HierarchyV1
    return kind.probe(root, probe_name)


def _reason(missing: dict[str, str]) -> str:
    if len(set(missing.values())) == 1:
        return f"{', '.join(missing)}: {next(iter(missing.values()))}"
    return "; ".join(f"{name}: {why}" for name, why in missing.items())


def _remedy() -> str:
    if os.geteuid() == 0:
        return (
            "mount the control groups writable: in a container, share the host's (docker: --cgroupns=host "
            "-v /sys/fs/cgroup:/sys/fs/cgroup:rw) or run a service manager as its first process"
        )
    if (ROOT / "cgroup.controllers").exists():
        return (
            "start it in a group delegated to you, for instance: systemd-run --user --scope -p Delegate=yes COMMAND; "
            "for the cpu controller an administrator adds Delegate=cpu memory pids to user@.service"
        )
    return "run as root: control groups of version 1 are root's; or boot with systemd.unified_cgroup_hierarchy=1"
