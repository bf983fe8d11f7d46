"""What processes use now: from /proc where there is no control group, from the group's figures where there is one.

Memory is counted the way it adds up. Environments forked from one parent share most of what they show as resident, so
resident sizes add up to several times the truth; unshared memory is what ending the environment would give back. Plain
reads of /proc, no library: this runs for every environment every second. It refuses to fail because a process
ended meanwhile, and to pass off a partial reading as a whole one: see `Usage.partial`.

Source: proc_pid_stat(5), proc_pid_smaps(5), proc_pid_io(5).
"""

from __future__ import annotations

import os
from collections.abc import Iterable

from agentenv.sandbox.contract import Usage
from agentenv.sandbox.runtimes._cgroup_contract import CgroupStats

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


def read_usage(source: Iterable[int] | CgroupStats) -> Usage:
    """Reads what processes use.

    Args:
        source: Their pids, each counted once, or a control group's figures. Processes that are gone, and zombies,
            count as nothing.

    Returns:
        The sum.
    """
    if isinstance(source, CgroupStats):
        return Usage(
            cpu_s=source.cpu_s,
            memory_bytes=source.memory_bytes,
            rss_bytes=source.charged_bytes,
            processes=source.pids,
            io_read_bytes=source.io_read_bytes,
            io_write_bytes=source.io_write_bytes,
            oom_kills=source.oom_kills,
        )
    found = [one for one in map(_read_process, dict.fromkeys(source)) if one is not None]
    return Usage(
        cpu_s=sum(one.cpu_s for one in found),
        memory_bytes=sum(one.memory_bytes for one in found),
        rss_bytes=sum(one.rss_bytes for one in found),
        processes=len(found),
        io_read_bytes=sum(one.io_read_bytes for one in found),
        io_write_bytes=sum(one.io_write_bytes for one in found),
        partial=any(one.partial for one in found),
    )


def host_oom_kills() -> int:
    """Kills for want of memory the kernel has counted on this machine since it started, whoever's limit was reached."""
    try:
        with open("/proc/vmstat", "rb") as figures:
            return next((int(line.split()[1]) for line in figures if line.startswith(b"oom_kill ")), 0)
    except OSError:
        return 0


def descendants(pid: int) -> list[int]:
    """Returns all living descendants of a process, parents before their children; not the process itself.

    One snapshot of /proc, so a process that forks meanwhile may be missed, and one whose parent died belongs to init or
    to a subreaper, not to the family. For everything a sandbox runs ask its control group.
    """
    children: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        if name.isdigit() and (fields := _stat_fields(int(name))) is not None:
            children.setdefault(int(fields[1]), []).append(int(name))
    family = list(children.get(pid, ()))
    for member in family:  # grows as it goes: breadth first
        family.extend(children.get(member, ()))
    return family


def _read_process(pid: int) -> Usage | None:
    fields = _stat_fields(pid)
    if fields is None:
        return None
    try:
        memory, partial = _unshared_bytes(pid)
        read, written, io_partial = _io_bytes(pid)
    except (FileNotFoundError, ProcessLookupError):
        return None
    return Usage(
        cpu_s=sum(map(int, fields[11:15])) / _TICKS_PER_S,  # utime, stime, cutime, cstime
        memory_bytes=memory,
        rss_bytes=int(fields[21]) * _PAGE_BYTES,
        processes=1,
        io_read_bytes=read,
        io_write_bytes=written,
        partial=partial or io_partial,
    )


def _stat_fields(pid: int) -> list[bytes] | None:
    """Fields of /proc/<pid>/stat from the third on; None if it is gone or dead."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as stat:
            # The command's name may hold spaces and parentheses: only the last one ends it.
            fields = stat.read().rpartition(b")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return None if fields[0] in (b"Z", b"X") else fields


def _unshared_bytes(pid: int) -> tuple[int, bool]:
    try:
        with open(f"/proc/{pid}/smaps_rollup", "rb") as rollup:
            return sum(int(line.split()[1]) for line in rollup if line.startswith(b"Private_")) * 1024, False
    except PermissionError:
        pass
    # Another user's: what anybody may read. Pages shared with a parent since the fork are counted as its own.
    with open(f"/proc/{pid}/status", "rb") as status:
        wanted = (b"RssAnon:", b"RssShmem:")
        return sum(int(line.split()[1]) for line in status if line.startswith(wanted)) * 1024, True


def _io_bytes(pid: int) -> tuple[int, int, bool]:
    try:
        with open(f"/proc/{pid}/io", "rb") as io:
            figures = dict(line.split(b": ") for line in io)
    except PermissionError:
        return 0, 0, True
    return int(figures[b"read_bytes"]), int(figures[b"write_bytes"]), False
