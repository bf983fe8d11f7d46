"""Starting many cells at once: every step is sent to all of them before anybody is waited for."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from agentenv.errors import SandboxError
from agentenv.sandbox.contract import Output, SandboxSpec
from agentenv.sandbox.runtimes._cell import CellSandbox
from agentenv.sandbox.runtimes._cgroup import Cgroup, CgroupRun
from agentenv.sandbox.runtimes._zygote import ZygoteProcess

logger = logging.getLogger("agentenv.sandbox")

MAX_OPEN_FILES = 4096


def base_variables(spec: SandboxSpec) -> dict[str, str]:
    """What every environment finds in os.environ besides its own ``env_vars``."""
    threads = str(max(1, int(spec.vcpu_count)))
    variables = {
        "PATH": f"{sys.prefix}/bin:/usr/local/bin:/usr/bin:/bin",
        "HOME": "/tmp/home",
        "USER": "agentenv",
        "LANG": "C.UTF-8",
        "AGENTENV_ID": spec.id,
        "OMP_NUM_THREADS": threads,
        "OPENBLAS_NUM_THREADS": threads,
        "MKL_NUM_THREADS": threads,
        "SDL_VIDEODRIVER": "dummy",
        "SDL_AUDIODRIVER": "dummy",
        "MPLBACKEND": "Agg",
        "PYGAME_HIDE_SUPPORT_PROMPT": "1",
        "PYTHONUNBUFFERED": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    if sys.prefix != sys.base_prefix:
        variables["VIRTUAL_ENV"] = sys.prefix
    return variables


def settings_for(
    spec: SandboxSpec, *, isolated: bool, enforced: bool, view: Mapping[str, Any], paths: Sequence[str]
) -> dict[str, Any]:
    """The message that turns a new cell into this sandbox.

    Args:
        spec: What was asked.
        isolated: Whether privileges are dropped and system calls filtered.
        enforced: Whether a control group holds memory and processes; else per-process limits stand in.
        view: The mounts of the cell.
        paths: ``sys.path``, for the PYTHONPATH of commands.
    """
    rlimits = {"open_files": MAX_OPEN_FILES}
    if isolated:
        rlimits["disk_mb"] = spec.disk_mb
        if not enforced:
            rlimits.update(memory_mb=spec.memory_mb, pids=spec.pids)
    variables = base_variables(spec)
    if spec.out is not None:
        variables["AGENTENV_OUT"] = "/out" if isolated else str(spec.out)
    if spec.command:
        variables["PYTHONPATH"] = ":".join(paths)
    variables.update(spec.variables)
    return {
        "id": spec.id,
        "envs": [request.to_json() for request in spec.envs],
        "command": list(spec.command),
        "variables": variables,
        "directory": spec.directory,
        "rlimits": rlimits,
        "isolated": isolated,
        "view": dict(view),
    }


@dataclass(frozen=True, slots=True)
class Cradle:
    """What is known once the outer sandbox is up.

    Attributes:
        zygote_for: The zygote that forks cell number i.
        nested: Whether cells get namespaces of their own.
        owned: Whether each cell has a zygote to itself, which ends with it.
    """

    zygote_for: Callable[[int], ZygoteProcess]
    nested: bool
    owned: bool = False


def create_cells(
    specs: Sequence[SandboxSpec],
    output: Output,
    *,
    await_cradle: Callable[[], Cradle],
    settings: Callable[[SandboxSpec], dict[str, Any]],
    groups: CgroupRun | None,
    gentle: bool,
    failures: dict[str, SandboxError] | None,
) -> list[CellSandbox]:
    """Start one cell for each spec; all or none, unless failures are collected.

    Args:
        specs: What to start.
        output: Takes their output.
        await_cradle: Waits for the outer sandbox; called when everything that needs no sandbox is done.
        settings: The settings message of a spec.
        groups: Where control groups may be made, or None.
        gentle: See ``CellSandbox``.
        failures: See ``Runtime.create``.
    """
    cells: list[CellSandbox] = []

    def born(cell: CellSandbox, step: Callable[[], None]) -> bool:
        try:
            step()
        except SandboxError as error:
            if failures is None:
                raise
            failures[cell.spec.id] = error
            cell.destroy()
            return False
        return True

    def admit(cell: CellSandbox) -> None:
        cell.hello(started + cell.spec.start_timeout_s)
        cell.admit(settings(cell.spec))

    try:
        for spec in specs:
            group: Cgroup | None = None
            if groups is not None:
                group = groups.create(spec.id, memory_mb=spec.memory_mb, vcpu_count=spec.vcpu_count, pids=spec.pids)
            cells.append(CellSandbox(spec, output, group, gentle=gentle))
        cradle = await_cradle()
        for number, cell in enumerate(cells):
            zygote = cradle.zygote_for(number)
            zygote.spawn(cell.guest_end, nested=cradle.nested, network=cell.spec.network is not None)
            cell.set_shell(zygote.alive)
            if cradle.owned:
                cell.end_shell = zygote.end
                cell.on_destroyed = zygote.close
        started = time.monotonic()
        admitted = [cell for cell in cells if born(cell, partial(admit, cell))]
        return [cell for cell in admitted if born(cell, partial(cell.await_ready, started + cell.spec.start_timeout_s))]
    except BaseException:
        for cell in cells:
            cell.destroy()
        raise
