"""An ordinary user to test as, also where the suite runs as root; and what the system-call filter promises."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

NOBODY = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]


@pytest.fixture(scope="session")
def unprivileged() -> list[str]:
    """Command prefix that drops to an ordinary user; empty if this one is."""
    return NOBODY if os.geteuid() == 0 else []


@pytest.fixture(scope="session")
def unprivileged_python(unprivileged: list[str]) -> str:
    """An interpreter that user may execute: the suite's own may lie in root's home."""
    for candidate in (sys.executable, "/usr/bin/python3", "/usr/local/bin/python3"):
        probe = "import sys, ctypes; sys.exit(sys.version_info < (3, 11))"
        # Through env, because setpriv itself still holds the capability to pass by a directory's mode.
        if (
            Path(candidate).exists()
            and not subprocess.run(
                [*unprivileged, "env", candidate, "-I", "-c", probe], capture_output=True, timeout=30
            ).returncode
        ):
            return candidate
    pytest.skip("no Python >= 3.11 that an ordinary user may execute; install one in /usr/bin")


# The promise, written down a second time so that a name lost from the module's own list is noticed.
REFUSED = {
    *("mount", "umount2", "pivot_root", "move_mount", "open_tree", "open_tree_attr", "fsopen", "fsconfig", "fsmount"),
    *("fspick", "mount_setattr", "chroot", "unshare", "setns", "ptrace", "process_vm_readv", "process_vm_writev"),
    *("process_madvise", "kcmp", "pidfd_getfd", "bpf", "perf_event_open", "userfaultfd", "keyctl", "add_key"),
    *("request_key", "kexec_load", "kexec_file_load", "init_module", "finit_module", "delete_module", "reboot"),
    *("swapon", "swapoff", "acct", "quotactl", "quotactl_fd", "syslog", "settimeofday", "clock_settime"),
    *("clock_adjtime", "adjtimex", "open_by_handle_at", "name_to_handle_at", "lookup_dcookie", "nfsservctl"),
    *("vhangup", "sethostname", "setdomainname", "fanotify_init", "memfd_secret", "move_pages", "migrate_pages"),
}
REFUSED_ON = {"x86_64": REFUSED | {"iopl", "ioperm", "modify_ldt"}, "aarch64": REFUSED}
MISSING = {"clone3", "openat2", "io_uring_setup", "io_uring_enter", "io_uring_register"}


@pytest.fixture(scope="session")
def refused_on() -> dict[str, set[str]]:
    """Calls answered with EPERM whatever their arguments, by machine."""
    return REFUSED_ON


@pytest.fixture(scope="session")
def missing() -> set[str]:
    """Calls answered with ENOSYS."""
    return MISSING
