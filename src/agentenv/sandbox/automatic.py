"""Whether "auto" may take Firecracker on this host: only where it was seen to boot a machine.

What is cheap to find out is asked first, so that hosts without Firecracker lose no time; a machine is booted once per
boot of the host, and again when one of the files it is made of changes.
"""

from __future__ import annotations

import json
import platform
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from agentenv.disk import cache_directory
from agentenv.errors import RuntimeUnavailable
from agentenv.sandbox.contract import SandboxSpec
from agentenv.sandbox.probe import FindFiles, probe
from agentenv.sandbox.runtimes._vm.accelerator import probe_kvm
from agentenv.sandbox.runtimes._vm.files import find_program
from agentenv.sandbox.runtimes._vm.trials import WORKS, Trial, boot_id, identity

_NAME = "firecracker"


def firecracker_obstacle(
    settings: Mapping[str, Any],
    open_files: Callable[[], FindFiles],
    *,
    cache: Path | None = None,
    deadline_s: float | None = None,
) -> str:
    """What keeps "auto" from taking Firecracker; "" where a machine was booted by it.

    Args:
        settings: Its table of the configuration; see ``RuntimeOptions``.
        open_files: How the files of machines are found; called when they are needed.
        cache: Directory in which the outcome is kept; None for the usual one.
        deadline_s: As in ``probe``.
    """
    try:
        binary = find_program(settings.get("binary"), (_NAME,), "Firecracker", "")
        kvm = probe_kvm()
        if not kvm.works:
            return kvm.detail
        find_files = open_files()
        files = find_files(SandboxSpec("probe", command=("true",)))
        parts = [identity(path) for path in (binary, files.kernel, files.initramfs, files.root, files.tools)]
    except (RuntimeUnavailable, OSError) as error:
        return str(error).partition("\n  remedy: ")[0]
    key = [boot_id(), platform.release(), json.dumps(settings, sort_keys=True, default=str), *parts]
    trial = Trial((cache or cache_directory()) / f"{_NAME}.json", key)
    outcome = trial.recall()
    if outcome is None:
        found = probe(_NAME, find_files=find_files, settings=settings, deadline_s=deadline_s)
        outcome = WORKS if found.works else found.detail
        trial.keep(outcome)
    return "" if outcome == WORKS else outcome
