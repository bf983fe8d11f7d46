"""Runtimes by name, loaded only when asked for, and the choice "auto" makes.

Choosing is a pure function of what was asked and what was found; finding out runs something, with a deadline.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from agentenv.errors import RuntimeUnavailable
from agentenv.sandbox.contract import ISOLATION_ORDER, Runtime, RuntimeOptions


@dataclass(frozen=True, slots=True)
class Entry:
    """A runtime.

    Attributes:
        isolation: What it gives.
        target: ``module:Class``.
        purpose: One line for the list.
    """

    isolation: str
    target: str
    purpose: str


REGISTRY: Mapping[str, Entry] = {
    "bubblewrap": Entry(
        "sandbox",
        "agentenv.sandbox.runtimes.bubblewrap:BubblewrapRuntime",
        "namespaces, seccomp and control groups; needs neither root nor KVM",
    ),
    "process": Entry(
        "process",
        "agentenv.sandbox.runtimes.process:ProcessRuntime",
        "no isolation, for debugging and for systems without namespaces",
    ),
    "firecracker": Entry(
        "vm", "agentenv.sandbox.runtimes.firecracker.runtime:FirecrackerRuntime", "microVMs by Firecracker, through KVM"
    ),
    "qemu": Entry("vm", "agentenv.sandbox.runtimes.qemu.runtime:QemuRuntime", "microVMs by QEMU, with or without KVM"),
}


def choose(
    runtime: str,
    isolation: str | None,
    *,
    platform: str = sys.platform,
    obstacle: Callable[[], str] = lambda: "it was not tried",
) -> str:
    """The name of the runtime to use.

    Args:
        runtime: A name, or "auto".
        isolation: The least isolation accepted, or None for whatever the runtime gives.
        platform: As ``sys.platform``.
        obstacle: What keeps "auto" from taking Firecracker; "" where nothing does. Asked only where that matters.

    Raises:
        RuntimeUnavailable: Nothing in this version gives what was asked.
    """
    if runtime == "auto":
        name = "bubblewrap" if platform == "linux" else "process"
        if platform != "linux" and isolation is None:
            raise RuntimeUnavailable(
                f'no isolating runtime for {platform}: "auto" does not fall back to no isolation by itself',
                'use a Linux virtual machine, or set runtime = "process" to run without isolation',
            )
        if isolation == "process" and platform != "linux":
            return name
        if isolation == "vm":
            name = "qemu"  # which uses KVM where that works
        if platform == "linux" and not obstacle():
            name = "firecracker"
    else:
        name = runtime
    entry = REGISTRY.get(name)
    if entry is None:
        raise RuntimeUnavailable(f"unknown runtime {name!r}", f"use one of {', '.join(REGISTRY)}, or auto")
    if isolation is not None and ISOLATION_ORDER.index(entry.isolation) < ISOLATION_ORDER.index(isolation):
        raise RuntimeUnavailable(
            f'isolation = "{isolation}" was asked for, and runtime {name!r} gives "{entry.isolation}"',
            'use runtime = "auto", or lower isolation',
        )
    return name


def open_runtime(name: str, options: RuntimeOptions) -> Runtime:
    """Open a runtime by its name.

    Raises:
        RuntimeUnavailable: It cannot work here.
    """
    module_name, _, attribute = REGISTRY[name].target.partition(":")
    runtime: Runtime = getattr(importlib.import_module(module_name), attribute)(options)
    return runtime
