"""Attempts to read, find or change files that are not the environment's own."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator, Mapping

from agentenv.testing.hostile.cage import CANARY, canaries, reached

_OWN = ("/tmp", "/dev/shm", "/out", "/proc", "/dev/pts")
_DEVICES = {"null", "zero", "full", "random", "urandom", "tty"}
_LINKS = {"core", "fd", "ptmx", "stdin", "stdout", "stderr", "console"}
_MOST_DIRECTORIES = 4000
# Each ipc or pid namespace has its own of these; whoever made the namespace may set them, for itself alone.
# ns_last_pid is open to all and asks for a capability at the write.
_PER_NAMESPACE = re.compile(r"/proc/sys/(fs/mqueue/|kernel/(auto_msgmni|msg|sem|shm|pid_max$|ns_last_pid$))")


def host_files(hints: Mapping[str, str]) -> list[str]:
    """Open files of the host by their paths."""
    return [reached(path, _read_some, path) for path in hints["files"].split(":") if path]


def _read_some(path: str) -> bytes:
    with open(path, "rb") as stream:
        return stream.read(64)


def system_secrets(hints: Mapping[str, str]) -> list[str]:
    """Open what only the host's root may."""
    paths = ["/etc/shadow", "/etc/gshadow", "/etc/ssh", "/root/.ssh", "/var/lib", "/var/log", "/boot", "/run/secrets"]
    paths += ["/proc/kcore", "/proc/kmsg", "/proc/sysrq-trigger", "/dev/mem", "/dev/kmsg", "/dev/kvm", "/sys/kernel"]
    return [reached(path, _opened, path) for path in paths]


def _opened(path: str) -> str:
    if os.path.isdir(path):
        return str(os.listdir(path))
    os.close(os.open(path, os.O_RDWR))
    return "opened for writing"


def neighbours_files(hints: Mapping[str, str]) -> list[str]:
    """Find a neighbour's planted files in every directory that could be common."""
    own = os.environ["SECRET"]
    found = []
    for top in ("/tmp", "/dev/shm", "/out", "/run", "/var/tmp", "/mnt", "/srv", hints["directory"]):
        for folder, _, files in os.walk(top):
            for name in files:
                try:
                    with open(os.path.join(folder, name), "rb") as stream:
                        leaked = canaries(stream.read(1 << 20)) - {own}
                except OSError:
                    continue
                found += [f"{folder}/{name} holds {secret}" for secret in leaked]
    return found


def _directories(top: str) -> Iterator[str]:
    for seen, (folder, folders, _) in enumerate(os.walk(top)):
        folders[:] = [name for name in folders if f"{folder.rstrip('/')}/{name}" not in _OWN]
        if seen >= _MOST_DIRECTORIES:
            return
        yield folder


def write_elsewhere(hints: Mapping[str, str]) -> list[str]:
    """Create a file in every directory but the environment's own, and open every file there for writing."""
    found = []
    for folder in _directories("/"):
        path = os.path.join(folder, "agentenv-was-here")
        found.append(reached(path, os.open, path, os.O_CREAT | os.O_EXCL | os.O_WRONLY))
        for entry in os.scandir(folder):
            if entry.is_file(follow_symlinks=False):
                found.append(reached(entry.path, os.open, entry.path, os.O_WRONLY | os.O_APPEND))
                break
    return found


def system_settings(hints: Mapping[str, str]) -> list[str]:
    """Open every kernel setting for writing, and the doors into the kernel in /proc."""
    found = []
    for top in ("/proc/sys", "/proc/irq", "/proc/bus", "/proc/fs", "/proc/acpi"):
        for folder, _, files in os.walk(top):
            found += [
                reached(f"{folder}/{name}", os.open, f"{folder}/{name}", os.O_WRONLY)
                for name in files
                if not _PER_NAMESPACE.match(f"{folder}/{name}")
            ]
    return found


def devices(hints: Mapping[str, str]) -> list[str]:
    """Find devices beyond the harmless six, make more, and change the ones that are shared with the host."""
    found = [f"/dev/{name}" for name in os.listdir("/dev") if name not in _DEVICES | _LINKS | {"pts", "shm"}]
    found.append(reached("chmod /dev/null", lambda: os.chmod("/dev/null", 0o600)))
    found.append(reached("chown /dev/zero", lambda: os.chown("/dev/zero", os.getuid(), os.getgid())))
    found.append(reached("utime /dev/full", lambda: os.utime("/dev/full", (1, 1))))
    found.append(reached("unlink /dev/null", lambda: os.unlink("/dev/null")))
    for kind in (stat.S_IFCHR, stat.S_IFBLK):
        found.append(reached("mknod", os.mknod, "/tmp/device", kind | 0o600, os.makedev(1, 1)))
    return [*found, *[f"/dev/pts/{name}" for name in os.listdir("/dev/pts") if name != "ptmx"]]


def special_modes(hints: Mapping[str, str]) -> list[str]:
    """Make set-uid programs, and use those that are there."""
    with open("/tmp/program", "wb") as stream:
        stream.write(b"#!/bin/sh\n")
    found = [reached(f"mode {mode:o}", os.chmod, "/tmp/program", mode) for mode in (0o4755, 0o2755)]
    with open("/proc/self/status", encoding="utf-8") as stream:
        status = dict(line.rstrip("\n").split(":\t", 1) for line in stream if ":\t" in line)
    if status["NoNewPrivs"].strip() != "1":
        found.append("a set-uid program would give privileges (no_new_privs is off)")
    for name in ("CapInh", "CapPrm", "CapEff", "CapAmb"):
        if int(status[name], 16):
            found.append(f"holds capabilities: {name} {status[name]}")
    return found


def configuration(hints: Mapping[str, str]) -> list[str]:
    """Read the configuration file, which holds everybody's variables."""
    path = hints["config"]
    return [reached(path, lambda: open(path, "rb").read())] if path else []


ATTEMPTS = {
    attempt.__name__: attempt
    for attempt in (
        host_files, system_secrets, neighbours_files, write_elsewhere, system_settings, devices, special_modes,
        configuration,
    )
}  # fmt: skip


def plant() -> None:
    """Leave this environment's secret where neighbours might look."""
    for path in ("/tmp", "/dev/shm", "/out"):
        try:
            with open(f"{path}/{CANARY.lower()}", "w", encoding="utf-8") as stream:
                stream.write(os.environ["SECRET"])
        except OSError:
            pass  # /out is writable for commands only
