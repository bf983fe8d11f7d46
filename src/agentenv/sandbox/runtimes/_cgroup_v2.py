"""Control groups of version 2: one hierarchy, one directory a group, a kill the kernel does.

Groups need a parent without processes of its own (the no-internal-process rule) that passes the controllers on. For
root that is the root group, which the rule exempts. For an ordinary user it is the nearest ancestor of the caller's own
group that was delegated to that user and holds no process. The caller is never moved: who started it decided where it
belongs.

Source: Documentation/admin-guide/cgroup-v2.rst of Linux; delegation: systemd.io/CGROUP_DELEGATION.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from agentenv.errors import RuntimeUnavailable
from agentenv.sandbox.runtimes import _cgroupfs as fs
from agentenv.sandbox.runtimes._cgroup_contract import PERIOD_US, Cgroup, CgroupLimits, CgroupStats

_LIMITED = ("memory", "cpu", "pids")
_OPTIONAL = ("io",)


class HierarchyV2:
    """The parent under which groups of version 2 can be made here.

    Attributes:
        version: "v2".
        controllers: Those the parent passes on, of memory, cpu, pids and io.
        reasons: Why others cannot be used, by controller.
    """

    version = "v2"

    def __init__(self, parent: Path, controllers: frozenset[str], reasons: Mapping[str, str]) -> None:
        self._parent = parent
        self.controllers = controllers
        self.reasons = dict(reasons)

    @classmethod
    def probe(cls, root: Path, probe_name: str) -> HierarchyV2:
        """Tries the possible parents by making a group with controllers in each, and takes the best."""
        tried = [_try_parent(parent, probe_name) for parent in _possible_parents(root)]
        best = max(tried, key=lambda one: len(one.controllers & set(_LIMITED)))
        return best if best.controllers else tried[0]

    def make_run(self, run: str) -> None:
        """Makes the directory that holds one run's groups."""
        (self._parent / run).mkdir()
        _pass_on(self._parent / run)

    def make_group(self, run: str, name: str, limits: CgroupLimits) -> Cgroup:
        """Makes one group under its limits; nothing is left if that fails."""
        directory = self._parent / run / name
        directory.mkdir()
        try:
            _set_limits(directory, limits, self.controllers)
        except OSError:
            fs.remove(directory)
            raise
        return CgroupV2(name, directory)

    def set_share(self, run: str, processes: float) -> None:
        """Let the run weigh as much as so many busy processes outside any group."""
        if "cpu" in self.controllers:
            fs.write(self._parent / run / "cpu.weight", str(max(1, min(10000, round(100 * processes)))))

    def runs(self) -> set[str]:
        """Returns the names of everything directly under the parent."""
        return {entry.name for entry in os.scandir(self._parent) if entry.is_dir(follow_symlinks=False)}

    def holds_foreign(self, run: str) -> bool:
        """Whether a run has processes of another pid namespace, which version 2 lists as 0."""
        return 0 in fs.members([self._parent / run])

    def remove_run(self, run: str) -> None:
        """Kills and removes all groups of a run and what held them."""
        _kill(self._parent / run)
        fs.remove(self._parent / run)


class CgroupV2(Cgroup):
    """A group in the one hierarchy."""

    def __init__(self, name: str, directory: Path) -> None:
        super().__init__(name)
        self._directory = directory

    @property
    def directories(self) -> tuple[Path, ...]:
        return (self._directory,)

    def kill(self) -> None:
        _kill(self._directory)

    def stats(self) -> CgroupStats:
        self._check_open()
        at = self._directory
        used, times = fs.read_table(at / "memory.stat"), fs.read_table(at / "cpu.stat")
        events = fs.read_table(at / "memory.events")
        moved = [word.partition("=") for word in fs.read_words(at / "io.stat")]
        return CgroupStats(
            cpu_s=times["usage_usec"] / 1e6,
            memory_bytes=used.get("anon", 0) + used.get("shmem", 0),
            memory_peak_bytes=fs.read_number(at / "memory.peak"),
            pids=fs.read_number(at / "pids.current"),
            oom_kills=_processes_killed(events.get("oom_kill", 0), events.get("oom_group_kill", 0)),
            io_read_bytes=sum(int(value) for key, _, value in moved if key == "rbytes"),
            io_write_bytes=sum(int(value) for key, _, value in moved if key == "wbytes"),
            charged_bytes=fs.read_number(at / "memory.current"),
            throttled_periods=times.get("nr_throttled", 0),
        )


def _processes_killed(kills: int, group_kills: int) -> int:
    """Corrects the kernel's count: with memory.oom.group it counts the process that reached the limit twice.

    It kills that one, then all of the group and that one again (oom_kill_process in mm/oom_kill.c; seen on Linux 6.1),
    unless it died in between. Each group kill is at least one process. Before Linux 5.17 group kills are not counted,
    and the doubled figure stands.
    """
    return max(kills - group_kills, group_kills)


def _possible_parents(root: Path) -> list[Path]:
    if os.geteuid() == 0:
        return [root]
    own = root / _own_group().lstrip("/")
    # The caller's own group holds the caller, so it can pass nothing on; its ancestors may. Up to the first that is
    # not this user's: moving a process needs the right to the ancestor common to both groups.
    parents = []
    for ancestor in own.parents:
        if not ancestor.is_relative_to(root) or not ancestor.exists() or ancestor.stat().st_uid != os.geteuid():
            break
        parents.append(ancestor)
    return parents or [own]


def _own_group() -> str:
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        if line.startswith("0::"):
            return line[3:]
    return "/"


def _try_parent(parent: Path, probe_name: str) -> HierarchyV2:
    trial = parent / probe_name
    try:
        trial.mkdir()
    except OSError as error:
        why = f"no group can be made in {parent}: {error.strerror}"
        return HierarchyV2(parent, frozenset(), dict.fromkeys(_LIMITED, why))
    try:
        refused = _pass_on(parent)
        passed = frozenset(name for name in (*_LIMITED, *_OPTIONAL) if (trial / _file_of(name)).exists())
        reasons = {name: refused.get(name, f"{parent} does not have it") for name in _LIMITED if name not in passed}
        if passed and (why_not := _try_adding(trial)):
            passed, reasons = frozenset(), dict.fromkeys(_LIMITED, why_not)
        return HierarchyV2(parent, passed, reasons)
    finally:
        fs.remove(trial)


def _file_of(controller: str) -> str:
    return "io.stat" if controller == "io" else f"{controller}.max"


def _pass_on(directory: Path) -> dict[str, str]:
    """Enables what it can of our controllers for the groups beneath; returns why not, for those it cannot."""
    refused = {}
    available = fs.read_words(directory / "cgroup.controllers")
    enabled = fs.read_words(directory / "cgroup.subtree_control")
    for name in (*_LIMITED, *_OPTIONAL):
        if name in enabled:
            continue
        if name not in available:
            refused[name] = f"{directory} was not given it"
            continue
        try:
            fs.write(directory / "cgroup.subtree_control", f"+{name}")
        except OSError as error:
            refused[name] = f"{directory} cannot pass it on: {error.strerror}"
    return refused


def _try_adding(trial: Path) -> str:
    """Moves a process of ours into a group and ends it; returns why not, or nothing.

    Only a real move shows it: the kernel asks for rights to an ancestor that may lie above what was delegated.
    """
    if os.geteuid() == 0:
        return ""
    command = [sys.executable, "-I", "-S", "-c", "input()"]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as child:
        try:
            CgroupV2("probe", trial).add(child.pid)
        except RuntimeUnavailable as error:
            return str(error).partition("\n")[0]
        finally:
            child.kill()
    return ""


def _set_limits(directory: Path, limits: CgroupLimits, controllers: frozenset[str]) -> None:
    if "memory" in controllers:
        fs.write(directory / "memory.max", str(limits.memory_bytes))
        with suppress(FileNotFoundError):  # a kernel without swap, or that does not count it
            fs.write(directory / "memory.swap.max", "0")
        # One process killed would leave the others a husk that looks healthy.
        with suppress(FileNotFoundError):  # before Linux 4.19
            fs.write(directory / "memory.oom.group", "1")
    if "cpu" in controllers:
        fs.write(directory / "cpu.max", f"{limits.quota_us} {PERIOD_US}")
    if "pids" in controllers:
        fs.write(directory / "pids.max", str(limits.pids))


def _kill(directory: Path) -> None:
    if not fs.wait_until(lambda: not _members_after_killing(directory), fs.EMPTY_WITHIN_S):
        raise fs.still_alive((directory,))


def _members_after_killing(directory: Path) -> set[int]:
    if not fs.members([directory]):
        return set()
    try:
        fs.write(directory / "cgroup.kill", "1")
    except FileNotFoundError:  # before Linux 5.14; repeated until nothing is left, so forks cannot outrun it for long
        fs.kill_members((directory,))
    return fs.members([directory])
