"""The machine that others are brought back from: booted once, prepared for what they do, and kept as it then is."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from agentenv.errors import RuntimeUnavailable, SandboxError
from agentenv.sandbox.cause import is_killed_from_outside
from agentenv.sandbox.contract import Output, SandboxSpec
from agentenv.sandbox.files import MachineFiles
from agentenv.sandbox.runtimes._net.networks import Networks
from agentenv.sandbox.runtimes._vm.agent import AgentRefusal
from agentenv.sandbox.runtimes._vm.files import clear, copy_sparsely
from agentenv.sandbox.runtimes._vm.machine import Hypervisor, MachineSpec
from agentenv.sandbox.runtimes._vm.monitor import MonitorKilled
from agentenv.sandbox.runtimes._vm.sandbox import VmSandbox
from agentenv.sandbox.runtimes._vm.starting import shown_paths, unfit, variables_of_zygotes
from agentenv.sandbox.runtimes._vm.table import MachineTable, await_balloon, unlimited
from agentenv.sandbox.runtimes._vm.templates import SCRATCH

logger = logging.getLogger("agentenv.sandbox")

_WARM_S = 120.0
_ATTEMPTS = 3
_CALL_S = 30.0
_SHOWN = "/dev/vdd"


class TemplateMaker:
    """Makes the templates of one run; see ``planning.MakeTemplate``."""

    def __init__(
        self,
        hypervisor: Hypervisor,
        networks: Networks,
        table: MachineTable,
        preload: Sequence[str],
        open_sandbox: Callable[[SandboxSpec, Output, Path], VmSandbox],
    ) -> None:
        """Make none yet.

        Args:
            hypervisor: What runs the machines.
            networks: Those of the run.
            table: What the configuration says of machines.
            preload: As in ``RuntimeOptions``.
            open_sandbox: A sandbox without limits, whose home has a copy of a file to write on.
        """
        self._hypervisor, self._networks, self._table = hypervisor, networks, table
        self._preload, self._open_sandbox = list(preload), open_sandbox

    def __call__(self, spec: MachineSpec, files: MachineFiles, purpose: str, directory: Path) -> None:
        """Write a template into an empty directory; again, where somebody kills the machine over it.

        Raises:
            RuntimeUnavailable: It cannot be made; says why and what helps.
            OSError: There is no room.
        """
        for again in reversed(range(_ATTEMPTS)):
            try:
                self._write(spec, files, purpose, directory)
                return
            except (SandboxError, ConnectionError, TimeoutError, MonitorKilled) as error:
                if again and _was_killed(error):
                    logger.warning("%s: %s; booting another one", spec.id, error)
                    clear(directory)
                    continue
                raise RuntimeUnavailable(
                    f"{spec.id}: the machine that others are brought back from could not be prepared: {error}",
                    f"`agentenv runtimes` tries {self._hypervisor.name} and says what helps",
                ) from error

    def _write(self, spec: MachineSpec, files: MachineFiles, purpose: str, directory: Path) -> None:
        logger.info("booting a machine once, to bring others back from it (%s)", self._hypervisor.accelerator)
        sandbox = self._open_sandbox(SandboxSpec("template"), _NoOutput(), files.scratch)
        try:
            deadline = time.monotonic() + _WARM_S
            with self._networks.plugged(unlimited(spec)) as plugged:
                machine = self._hypervisor.boot(plugged, sandbox.home)
            sandbox.board(machine, deadline, booted=True)
            if files.project is not None:
                sandbox.agent.call(
                    "show", _CALL_S, device=_SHOWN, kind="ext4", places=[list(place) for place in files.places]
                )
            for place in self._table.places(spec):
                sandbox.agent.call("show", _CALL_S, **place)
            if purpose != "workbench":
                try:
                    sandbox.agent.call("warm", _WARM_S, **self._warming(files, purpose == "command"))
                except AgentRefusal as error:
                    raise unfit(spec.id, files, purpose, error.text) from error
            await_balloon(machine)
            sandbox.agent.call("settle", _CALL_S)
            # Whoever is brought back must not take the next host's words for the rest of this one's.
            sandbox.part()
            machine.pause()
            machine.snapshot(directory)
            copy_sparsely(sandbox.home / SCRATCH, directory / SCRATCH)
        finally:
            sandbox.destroy()

    def _warming(self, files: MachineFiles, command: bool) -> dict[str, Any]:
        return {
            "command": command,
            "path": shown_paths(files),
            "preload": self._preload,
            "variables": variables_of_zygotes(files),
            "user": files.user,
        }


def _was_killed(error: Exception) -> bool:
    """Whether the machine was, by whoever may do that, and is not to blame."""
    if isinstance(error, SandboxError):
        return is_killed_from_outside(error.cause)
    return isinstance(error, MonitorKilled)


class _NoOutput:
    """For a machine in which nothing is started."""

    def take(self, sandbox_id: str, stream: str, fd: int) -> None:
        os.close(fd)

    def drain(self, sandbox_id: str) -> None:
        """Nothing was taken."""

    def tail(self, sandbox_id: str, lines: int = 20) -> str:
        return ""

    def release(self, sandbox_id: str) -> None:
        """Nothing was taken."""
