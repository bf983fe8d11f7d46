"""What can run a machine's processors on this host, found out by running something.

That /dev/kvm opens proves nothing: on a host that is itself a virtual machine it may be there for guests made for it
only, and any other one never comes to life. So a guest of a hundred bytes is run to its end, within limits, once per
boot of the host; what came of it is kept in the cache.
"""

from __future__ import annotations

import contextlib
import grp
import json
import logging
import os
import platform
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from agentenv.errors import RuntimeUnavailable

logger = logging.getLogger("agentenv.sandbox")

DEVICE = "/dev/kvm"
_TRIAL = Path(__file__).with_name("_kvmtry.py")
_DEADLINE_S = 60.0
_DOUBT_S = 3600.0
_WORKS = "works"


@dataclass(frozen=True, slots=True)
class Kvm:
    """What is known of KVM here.

    Attributes:
        works: Whether a guest ran to its end.
        detail: What was found.
        remedy: What would help where it does not work.
    """

    works: bool
    detail: str
    remedy: str = ""


def cache_directory() -> Path:
    """Where agentenv keeps what can be made again: $AGENTENV_CACHE, or "agentenv" in the user's cache directory."""
    if ours := os.environ.get("AGENTENV_CACHE"):
        return Path(ours).absolute()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache").absolute() / "agentenv"


def choose(wanted: str = "auto") -> str:
    """The accelerator to use: "kvm", "hvf" or "tcg".

    Args:
        wanted: One of these, or "auto" for the fastest that works.

    Raises:
        RuntimeUnavailable: KVM was asked for and does not work.
    """
    if wanted not in ("auto", "kvm"):
        return wanted
    if sys.platform == "darwin" and wanted == "auto":
        return "hvf"
    found = probe_kvm()
    if found.works:
        return "kvm"
    if wanted == "kvm":
        raise RuntimeUnavailable(found.detail, found.remedy)
    logger.info("machines are emulated, which is slow: %s", found.detail)
    return "tcg"


def probe_kvm(device: str = DEVICE, *, cache: Path | None = None, deadline_s: float = _DEADLINE_S) -> Kvm:
    """Whether KVM works here.

    Args:
        device: The device.
        cache: Directory in which the outcome is kept; None for the usual one.
        deadline_s: Seconds after which a guest that has not ended never will.
    """
    if platform.machine() != "x86_64":
        return Kvm(False, f"expected an x86-64 host, this is {platform.machine()}", "use an x86-64 host")
    refusal = _refusal(device)
    if refusal is not None:
        return refusal
    memory = (cache or cache_directory()) / "kvm.json"
    key = _key(device)
    outcome = _remembered(memory, key)
    if outcome is None:
        outcome = _try(device, deadline_s)
        _remember(memory, key, outcome)
    if outcome == _WORKS:
        return Kvm(True, f"a guest ran to its end through {device}")
    if "busy" in outcome.lower():
        remedy = "another program has the processor's virtualisation: end it (VirtualBox, VMware, a debugger)"
    else:
        remedy = (
            "this host is itself a virtual machine whose KVM runs only guests made for it, or is broken: use a host"
            " with full (nested) virtualisation"
        )
    return Kvm(False, f"{device} is there and opens, but an ordinary guest does not run on it: {outcome}", remedy)


def _refusal(device: str) -> Kvm | None:
    """Why the device cannot even be opened, or None."""
    try:
        os.close(os.open(device, os.O_RDWR | os.O_CLOEXEC))
        return None
    except FileNotFoundError:
        return Kvm(
            False,
            f"no {device} on this host",
            "switch virtualisation on in the firmware and load its module (sudo modprobe kvm_intel, or kvm_amd); in a"
            " virtual machine, have its host allow nested virtualisation; in a container, pass --device /dev/kvm",
        )
    except PermissionError:
        owner = os.stat(device)
        group = str(owner.st_gid)
        with contextlib.suppress(KeyError):
            group = grp.getgrgid(owner.st_gid).gr_name
        if owner.st_mode & 0o060 == 0o060 and owner.st_gid != 0:
            remedy = f"sudo usermod -aG {group} $USER, then log in anew"
        else:
            remedy = f"sudo setfacl -m u:$USER:rw {device}, or sudo chgrp kvm {device} && sudo chmod 660 {device}"
        return Kvm(False, f"this user may not open {device} (it belongs to group {group})", remedy)
    except OSError as error:
        return Kvm(
            False,
            f"{device} cannot be opened: {error.strerror}",
            "its driver is not loaded or switched off: sudo modprobe kvm_intel (or kvm_amd), then dmesg | grep -i kvm",
        )


def _try(device: str, deadline_s: float) -> str:
    """Run the guest in a process of its own; what it said, or what came instead."""
    try:
        done = subprocess.run(
            [sys.executable, "-I", "-S", str(_TRIAL), device],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=deadline_s,
            check=False,
            env={},
        )
    except subprocess.TimeoutExpired:
        return f"it had not ended after {deadline_s:g} s"
    except OSError as error:
        return f"the trial could not be started: {error}"
    lines = (done.stdout + done.stderr).decode("utf-8", "replace").strip().split("\n")
    if done.returncode in (-signal.SIGXCPU, -signal.SIGKILL):
        return "it used up seconds of processor time and had not ended"
    if done.returncode != 0:
        return f"the trial ended with status {done.returncode}: {lines[-1]}"
    return lines[-1]


def _key(device: str) -> list[str]:
    boot = ""
    with contextlib.suppress(OSError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    number = os.stat(device).st_rdev
    return [boot, platform.release(), f"{device} {os.major(number)}:{os.minor(number)}"]


def _remembered(memory: Path, key: list[str]) -> str | None:
    """What came of the trial since the host was started. A failure is believed for an hour: it may have been load."""
    try:
        found = json.loads(memory.read_text(encoding="utf-8"))
        if found["key"] != key:
            return None
        outcome = str(found["outcome"])
        return outcome if outcome == _WORKS or 0 <= time.time() - found["time"] < _DOUBT_S else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _remember(memory: Path, key: list[str], outcome: str) -> None:
    with contextlib.suppress(OSError):
        memory.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=memory.parent, prefix=".kvm-", delete=False) as file:
            json.dump({"key": key, "outcome": outcome, "time": time.time()}, file)
        os.replace(file.name, memory)
