"""Counting what processes hold of the machine: plain reads of /proc and of directories.

Only what belongs to this process, its descendants or the runs it made is counted: other programs of the machine come
and go. What cannot be read is None, never 0.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Collection, Iterator
from pathlib import Path

import psutil

MIB = 1 << 20
CGROUPS = Path("/sys/fs/cgroup")


def own_memory_mb() -> float:
    """Memory of this process that is no file's: anonymous and shared pages that are resident, MiB."""
    return _status_kb("self", (b"RssAnon:", b"RssShmem:")) / 1024


def own_descriptors() -> int:
    """Open descriptors of this process, without the one that counting takes."""
    return len(os.listdir("/proc/self/fd")) - 1


def own_threads() -> int:
    """Threads of this process."""
    return len(os.listdir("/proc/self/task"))


def own_processes() -> int:
    """Processes below this one, zombies included: a child that nobody waits for is a leak too."""
    pid = os.getpid()
    if os.path.exists(f"/proc/{pid}/task/{pid}/children"):
        return len(tree(pid)) - 1
    # A kernel without CONFIG_PROC_CHILDREN: every process of the machine has to be asked for its parent.
    return len(psutil.Process().children(recursive=True))


def tree(pid: int) -> list[int]:
    """A process and all below it, parents first; empty if it is gone."""
    found = [pid]
    for member in found:  # grows as it goes
        with contextlib.suppress(OSError):
            for task in os.listdir(f"/proc/{member}/task"):
                found += map(int, Path(f"/proc/{member}/task/{task}/children").read_text("ascii").split())
    return found if os.path.exists(f"/proc/{pid}") else []


def descriptors_of(pids: Collection[int]) -> int | None:
    """Open descriptors of these processes together; None if one of them may not be looked into."""
    count = 0
    for pid in pids:
        try:
            count += len(os.listdir(f"/proc/{pid}/fd"))
        except (FileNotFoundError, ProcessLookupError):
            continue
        except PermissionError:
            return None
    return count


def scratch_mb_of(pid: int) -> float | None:
    """What lies in the /tmp and /dev/shm a process sees, MiB; None where they are the host's own or not visible."""
    used = 0
    for name in ("/tmp", "/dev/shm"):
        try:
            inside = f"/proc/{pid}/root{name}"
            if os.stat(inside).st_dev == os.stat(name).st_dev:
                return None
            found = os.statvfs(inside)
        except OSError:
            return None
        used += (found.f_blocks - found.f_bfree) * found.f_frsize
    return used / MIB


def disk_bytes(path: Path, leave_out: Collection[Path] = ()) -> int:
    """Bytes in all files below a folder, links not followed; what vanishes meanwhile counts as nothing.

    Args:
        path: A folder, or a single file.
        leave_out: Files and folders that are not counted.
    """
    try:
        found = path.lstat()
        if not stat.S_ISDIR(found.st_mode):
            return found.st_size
        entries = list(os.scandir(path))
    except OSError:
        return 0
    return sum(disk_bytes(Path(entry.path), leave_out) for entry in entries if Path(entry.path) not in leave_out)


def named_after(names: Collection[str], places: Collection[Path]) -> Iterator[Path]:
    """Entries directly in some folders whose name holds one of these texts."""
    for place in places:
        with contextlib.suppress(OSError):
            for entry in os.scandir(place):
                if any(name in entry.name for name in names):
                    yield Path(entry.path)


def find_groups(names: Collection[str], root: Path = CGROUPS) -> list[Path]:
    """Control groups, under every controller, whose name holds one of these texts; not what lies below them."""
    found = []
    for parent, children, _ in os.walk(root):
        mine = [child for child in children if any(name in child for name in names)]
        found += [Path(parent, child) for child in mine]
        children[:] = [child for child in children if child not in mine]
    return found


def count_groups(roots: Collection[Path]) -> int:
    """These control groups that still exist, and all below them."""
    return sum(1 for root in roots for _ in os.walk(root))


def _status_kb(pid: int | str, wanted: tuple[bytes, ...]) -> int:
    with open(f"/proc/{pid}/status", "rb") as status:
        return sum(int(line.split()[1]) for line in status if line.startswith(wanted))
