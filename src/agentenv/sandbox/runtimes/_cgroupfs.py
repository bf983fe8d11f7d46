"""The files, signals and waits beneath control groups of either version.

Two things are easily done wrong here: ending every process of a group without hitting a stranger whose pid was
reused, and removing a directory the kernel still holds for a moment. It refuses to signal by bare pid, and every wait
has an end.
"""

from __future__ import annotations

import errno
import os
import signal
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path

from agentenv.errors import AgentEnvError

EMPTY_WITHIN_S = 5.0
"""How long processes may take to die after SIGKILL before it is an error."""
REMOVED_WITHIN_S = 2.0
"""How long the kernel may hold an empty group before it is an error."""


def write(path: Path, value: str) -> None:
    """Writes a control file in one write(2), as the kernel wants it."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(descriptor, value.encode())
    finally:
        os.close(descriptor)


def read_words(path: Path) -> list[str]:
    """Reads a control file as words; empty if this kernel does not have it."""
    try:
        return path.read_text().split()
    except FileNotFoundError:
        return []


def read_number(path: Path) -> int:
    """Reads a control file that holds one number; 0 if it is absent."""
    words = read_words(path)
    return int(words[0]) if words else 0


def read_table(path: Path) -> dict[str, int]:
    """Reads a control file of ``key number`` lines; empty if it is absent."""
    words = read_words(path)
    return {key: int(value) for key, value in zip(words[::2], words[1::2], strict=True)}


def tree(directory: Path) -> Iterator[Path]:
    """Yields the groups beneath a directory and then the directory itself, children first."""
    try:
        children = [Path(entry.path) for entry in os.scandir(directory) if entry.is_dir(follow_symlinks=False)]
    except FileNotFoundError:
        return
    for child in children:
        yield from tree(child)
    yield directory


def members(directories: Iterable[Path]) -> set[int]:
    """Returns the pids in these groups and all beneath them; version 2 lists processes of another
    pid namespace as 0.

    A process that died and was not waited for yet is not a member.
    """
    found: set[int] = set()
    for directory in directories:
        for group in tree(directory):
            try:
                found.update(map(int, read_words(group / "cgroup.procs")))
            except OSError as error:
                if error.errno != errno.ENODEV:  # removed between listing and reading
                    raise
    return found


def kill_members(directories: tuple[Path, ...]) -> None:
    """Sends SIGKILL once to every process that is a member now.

    A pid may die and be reused between reading and killing. So each gets a pidfd first, and is killed through it only
    if the pid is still listed after that: what the pidfd refers to then is the member, or something already dead.
    """
    handles: dict[int, int] = {}
    try:
        for pid in members(directories) - {0}:
            with suppress(ProcessLookupError):
                handles[pid] = os.pidfd_open(pid)
        for pid in members(directories) & handles.keys():
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(handles[pid], signal.SIGKILL)
    finally:
        for handle in handles.values():
            os.close(handle)


def wait_until(condition: Callable[[], bool], within_s: float) -> bool:
    """Polls, a millisecond apart and then less often; returns whether it came true in time."""
    deadline = time.monotonic() + within_s
    pause_s = 0.001
    while not condition():
        if time.monotonic() >= deadline:
            return False
        time.sleep(pause_s)
        pause_s = min(2 * pause_s, 0.05)
    return True


def still_alive(directories: tuple[Path, ...]) -> AgentEnvError:
    """The error for a group that would not die."""
    left = sorted(members(directories))
    which = "processes of another pid namespace" if left == [0] else f"processes {left}"
    return AgentEnvError(
        f"{directories[0]}: expected no process {EMPTY_WITHIN_S:g} s after SIGKILL, found {which}; look at their state "
        "in /proc/PID/stack and wchan (a hanging disk or network file system), or at whoever shares this group"
    )


def remove(directory: Path) -> None:
    """Removes an empty group and all beneath it; does nothing if it is not there.

    Raises:
        AgentEnvError: The kernel still holds it after `REMOVED_WITHIN_S`.
    """
    if not wait_until(lambda: _removed(directory), REMOVED_WITHIN_S):
        raise AgentEnvError(
            f"{directory}: the kernel would not remove the group within {REMOVED_WITHIN_S:g} s; processes in it: "
            f"{sorted(members([directory]))}. Something keeps adding processes, or watches the group"
        )


def _removed(directory: Path) -> bool:
    for group in tree(directory):
        try:
            group.rmdir()
        except FileNotFoundError:
            continue
        except OSError as error:
            if error.errno not in (errno.EBUSY, errno.ENOTEMPTY):
                raise
            return False
    return not directory.exists()
