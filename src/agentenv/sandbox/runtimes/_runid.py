"""The name of a run, from which anybody can tell later whether the run still lives.

Whatever a run must give a name outside its own processes (control groups, directories, network devices) carries it, so
that a sweep can remove what a killed run left behind. The pid alone would not do: pids are reused, the pair of pid and
start time is not while the machine is up. It answers for this pid namespace and this boot only.
"""

from __future__ import annotations

import os
import re
import secrets

_FORMAT = re.compile(r"([1-9][0-9]{0,9})-([0-9]{1,20})-([0-9a-f]{8})")


def new_run_id() -> str:
    """Returns a fresh id for a run of the calling process: ``<pid>-<start time>-<random>``.

    The start time is in clock ticks since boot, field 22 of /proc/<pid>/stat (proc_pid_stat(5)). At most 40
    characters, all of them safe in a file name.
    """
    pid = os.getpid()
    start = _start_time(pid)
    if start is None:
        raise OSError(f"/proc/{pid}/stat is not readable; expected the proc file system of this pid namespace at /proc")
    return f"{pid}-{start}-{secrets.token_hex(4)}"


def is_run_id(text: str) -> bool:
    """Whether the text has the form that `new_run_id` gives."""
    return _FORMAT.fullmatch(text) is not None


def run_is_alive(run_id: str) -> bool:
    """Whether the process that made this id still runs; a zombie does not.

    Raises:
        ValueError: Not a run id.
    """
    parts = _FORMAT.fullmatch(run_id)
    if parts is None:
        raise ValueError(f"{run_id!r} is not a run id; expected <pid>-<start time>-<eight hexadecimal digits>")
    return _start_time(int(parts[1])) == int(parts[2])


def _start_time(pid: int) -> int | None:
    try:
        with open(f"/proc/{pid}/stat", "rb") as stat:
            # The command's name may hold spaces and parentheses: only the last one ends it.
            fields = stat.read().rpartition(b")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return None if fields[0] in (b"Z", b"X") else int(fields[19])
