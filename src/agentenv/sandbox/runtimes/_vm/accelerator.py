"""What can run a machine's processors on this host, found out by running something.

That /dev/kvm opens proves nothing: on a host that is itself a virtual machine it may be there for guests made for it
only, and any other one never comes to life. So a guest of a hundred bytes is run to its end, within limits, once per
boot of the host; what came of it is kept in the cache.
"""

from __future__ import annotations

import contextlib
import grp
import logging
import os
import platform
import pwd
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

from agentenv.disk import cache_directory
from agentenv.errors import RuntimeUnavailable
from agentenv.sandbox.runtimes._vm.diagnosis import DENIED, MISSING, Facts, Kvm, diagnose
from agentenv.sandbox.runtimes._vm.trials import WORKS, Trial, boot_id

logger = logging.getLogger("agentenv.sandbox")

DEVICE = "/dev/kvm"
_TRIAL = Path(__file__).with_name("_kvmtry.py")
_DEADLINE_S = 60.0


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
    _tell_once(found.detail)
    return "tcg"


def _tell_once(detail: str) -> None:
    """Say that machines are emulated, once per boot for each reason: ``agentenv runtimes`` says it always."""
    told = Trial(cache_directory() / "emulated.json", [boot_id(), detail])
    if told.recall() is None:
        logger.info("machines are emulated, which is slow: %s", detail)
        told.keep(WORKS)


def probe_kvm(device: str = DEVICE, *, cache: Path | None = None, deadline_s: float = _DEADLINE_S) -> Kvm:
    """Whether KVM works here.

    Args:
        device: The device.
        cache: Directory in which the outcome is kept; None for the usual one.
        deadline_s: Seconds after which a guest that has not ended never will.
    """
    facts = _look(device)
    if facts.machine == "x86_64" and not facts.opening:
        trial = Trial((cache or cache_directory()) / "kvm.json", _key(device))
        outcome = trial.recall()
        if outcome is None:
            outcome = _try(device, deadline_s)
            trial.keep(outcome)
        facts = replace(facts, outcome=outcome)
    return diagnose(facts)


def _look(device: str) -> Facts:
    """What can be seen without running anything."""
    facts = Facts(
        device,
        platform.machine(),
        opening=_opening(device),
        flags=_flags(),
        modules=frozenset(path.name for path in Path("/sys/module").glob("kvm*")),
        container=any(map(os.path.exists, ("/.dockerenv", "/run/.containerenv"))),
    )
    if facts.opening != DENIED:
        return facts
    owner = os.stat(device)
    group, member = str(owner.st_gid), False
    with contextlib.suppress(KeyError):
        found = grp.getgrgid(owner.st_gid)
        user = pwd.getpwuid(os.geteuid())
        group, member = found.gr_name, user.pw_name in found.gr_mem or user.pw_gid == owner.st_gid
    may = owner.st_mode & 0o060 == 0o060
    return replace(facts, group=group, group_may=may, member=member and may)


def _opening(device: str) -> str:
    """Why the device cannot be opened, or ""."""
    try:
        os.close(os.open(device, os.O_RDWR | os.O_CLOEXEC))
    except FileNotFoundError:
        return MISSING
    except PermissionError:
        return DENIED
    except OSError as error:
        return str(error.strerror)
    return ""


def _flags() -> frozenset[str]:
    """Those of the processor's flags that say something here."""
    with contextlib.suppress(OSError), open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
        for line in file:
            name, _, value = line.partition(":")
            if name.strip() == "flags":
                return frozenset(value.split()) & {"vmx", "svm", "hypervisor"}
    return frozenset()


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
    number = os.stat(device).st_rdev
    return [boot_id(), platform.release(), f"{device} {os.major(number)}:{os.minor(number)}"]
