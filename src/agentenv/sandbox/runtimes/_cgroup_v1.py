"""Control groups of version 1: one hierarchy per controller, and one directory of ours in each.

Groups stand directly under each controller's mount. Version 1 cannot kill a group and has no group-wide OOM kill: the
freezer holds the processes still while they are killed, so that none can fork away, and whoever watches `oom_kills`
must end the rest. Where a controller is not mounted or not writable, its limit is absent and `probe` says why.

Source: Documentation/admin-guide/cgroup-v1/ of Linux.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path

from agentenv.sandbox.runtimes import _cgroupfs as fs
from agentenv.sandbox.runtimes._cgroup_contract import PERIOD_US, Cgroup, CgroupLimits, CgroupStats

_LIMIT_FILES = {"memory": "memory.limit_in_bytes", "cpu": "cpu.cfs_quota_us", "pids": "pids.max"}
_ACCOUNTING_FILES = {"cpuacct": "cpuacct.usage", "blkio": "blkio.throttle.io_service_bytes", "freezer": "freezer.state"}
_FREEZE_WITHIN_S = 0.2
_NOWHERE = Path("/proc/self/absent")  # control files of a controller that is not there: absent, so zero


class HierarchyV1:
    """The controllers of version 1 that can be used here.

    Attributes:
        version: "v1".
        controllers: Those that can be limited, of memory, cpu, pids, and io where it is counted.
        reasons: Why others cannot, by controller.
    """

    version = "v1"

    def __init__(self, mounts: Mapping[str, Path], reasons: Mapping[str, str]) -> None:
        # Controllers mounted together (cpu,cpuacct) are one directory under two names; resolved, they are equal.
        self._mounts = {name: Path(os.path.realpath(mount)) for name, mount in mounts.items()}
        self.reasons = dict(reasons)
        named = {"blkio": "io"}
        self.controllers = frozenset(named.get(name, name) for name in mounts) & {"memory", "cpu", "pids", "io"}

    @classmethod
    def probe(cls, root: Path, probe_name: str) -> HierarchyV1:
        """Tries every controller by making and removing a group."""
        mounts: dict[str, Path] = {}
        reasons: dict[str, str] = {}
        for controller, file in (_LIMIT_FILES | _ACCOUNTING_FILES).items():
            mount = root / controller
            trial = mount / probe_name
            try:
                trial.mkdir()
            except FileNotFoundError:
                reasons[controller] = f"{mount} is not mounted"
                continue
            except OSError as error:
                reasons[controller] = f"no group can be made in {mount}: {error.strerror}"
                continue
            if (trial / file).exists():
                mounts[controller] = mount
            else:
                reasons[controller] = f"{trial / file} did not appear: this kernel lacks it, or it is no control group"
            trial.rmdir()
        return cls(mounts, {name: why for name, why in reasons.items() if name in _LIMIT_FILES})

    def make_run(self, run: str) -> None:
        """Makes the directories that hold one run's groups."""
        for directory in dict.fromkeys(self._at(run).values()):
            directory.mkdir()

    def make_group(self, run: str, name: str, limits: CgroupLimits) -> Cgroup:
        """Makes one group under its limits; nothing is left if that fails."""
        at = self._at(f"{run}/{name}")
        made: list[Path] = []
        try:
            for directory in dict.fromkeys(at.values()):
                directory.mkdir()
                made.append(directory)
            _set_limits(at, limits)
        except OSError:
            for directory in made:
                fs.remove(directory)
            raise
        return CgroupV1(name, at)

    def set_share(self, run: str, processes: float) -> None:
        """Let the run weigh as much as so many busy processes outside any group."""
        if cpu := self._at(run).get("cpu"):
            fs.write(cpu / "cpu.shares", str(max(2, min(262144, round(1024 * processes)))))

    def runs(self) -> set[str]:
        """Returns the names of everything directly under the mounts."""
        found: set[str] = set()
        for mount in self._mounts.values():
            found.update(entry.name for entry in os.scandir(mount) if entry.is_dir(follow_symlinks=False))
        return found

    def holds_foreign(self, run: str) -> bool:
        """Whether a run has processes of another pid namespace. Version 1 does not list those, but counts them.

        Processes that died and were not waited for count as well; such a run can be looked at again later.
        """
        at = self._at(run)
        return not fs.members(at.values()) and fs.read_number(at.get("pids", _NOWHERE) / "pids.current") > 0

    def remove_run(self, run: str) -> None:
        """Kills and removes all groups of a run and what held them."""
        at = self._at(run)
        _kill(at)
        for directory in at.values():
            fs.remove(directory)

    def _at(self, path: str) -> dict[str, Path]:
        return {name: mount / path for name, mount in self._mounts.items()}


class CgroupV1(Cgroup):
    """A group with one directory per controller."""

    def __init__(self, name: str, at: Mapping[str, Path]) -> None:
        super().__init__(name)
        self._at = dict(at)

    @property
    def directories(self) -> tuple[Path, ...]:
        return tuple(dict.fromkeys(self._at.values()))

    def kill(self) -> None:
        _kill(self._at)

    def stats(self) -> CgroupStats:
        self._check_open()
        memory, cpu, cpuacct, pids, io = (
            self._at.get(name, _NOWHERE) for name in ("memory", "cpu", "cpuacct", "pids", "blkio")
        )
        used = fs.read_table(memory / "memory.stat")
        transfers = fs.read_words(io / "blkio.throttle.io_service_bytes")
        moved = list(itertools.pairwise(transfers))
        return CgroupStats(
            cpu_s=fs.read_number(cpuacct / "cpuacct.usage") / 1e9,
            memory_bytes=used.get("total_rss", 0) + used.get("total_shmem", 0),
            memory_peak_bytes=fs.read_number(memory / "memory.max_usage_in_bytes"),
            pids=fs.read_number(pids / "pids.current"),
            oom_kills=fs.read_table(memory / "memory.oom_control").get("oom_kill", 0),
            io_read_bytes=sum(int(value) for key, value in moved if key == "Read"),
            io_write_bytes=sum(int(value) for key, value in moved if key == "Write"),
            charged_bytes=fs.read_number(memory / "memory.usage_in_bytes"),
            throttled_periods=fs.read_table(cpu / "cpu.stat").get("nr_throttled", 0),
        )


def _set_limits(at: Mapping[str, Path], limits: CgroupLimits) -> None:
    if memory := at.get("memory"):
        amount = str(limits.memory_bytes)
        fs.write(memory / "memory.limit_in_bytes", amount)
        # Memory and swap together, so no swap; only after the first, which it may never be below.
        _write_if_there(memory / "memory.memsw.limit_in_bytes", amount)
        _write_if_there(memory / "memory.swappiness", "0")
    if cpu := at.get("cpu"):
        fs.write(cpu / "cpu.cfs_period_us", str(PERIOD_US))
        fs.write(cpu / "cpu.cfs_quota_us", str(limits.quota_us))
    if pids := at.get("pids"):
        fs.write(pids / "pids.max", str(limits.pids))


def _write_if_there(path: Path, value: str) -> None:
    with suppress(FileNotFoundError):
        fs.write(path, value)


def _kill(at: Mapping[str, Path]) -> None:
    directories = tuple(dict.fromkeys(at.values()))
    if not fs.wait_until(lambda: not _members_after_killing(directories, at.get("freezer")), fs.EMPTY_WITHIN_S):
        raise fs.still_alive(directories)


def _members_after_killing(directories: Iterable[Path], freezer: Path | None) -> set[int]:
    every = tuple(directories)
    if not fs.members(every):
        return set()
    frozen = freezer is not None and freezer.exists()
    if freezer is not None and frozen:
        fs.write(freezer / "freezer.state", "FROZEN")
        # A process in uninterruptible sleep freezes late; killing goes on without, and is repeated until all are gone.
        fs.wait_until(lambda: fs.read_words(freezer / "freezer.state") == ["FROZEN"], _FREEZE_WITHIN_S)
    try:
        fs.kill_members(every)
    finally:
        if freezer is not None and frozen:
            fs.write(freezer / "freezer.state", "THAWED")  # the signal is taken only now
    return fs.members(every)
