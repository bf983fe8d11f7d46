"""No isolation: environments as plain child processes, for debuggers and for systems without namespaces.

The same zygote, the same channel and the same limits where a control group may be written, but no namespace, no
system call filter, no private /tmp: an environment can do whatever its user can. Says so, loudly, every time.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Mapping, Sequence
from typing import Any

from agentenv.errors import ClosedError, SandboxError
from agentenv.sandbox.contract import Output, RuntimeOptions, Sandbox, SandboxSpec
from agentenv.sandbox.network import expect_whole
from agentenv.sandbox.runtimes._birth import Cradle, create_cells, settings_for
from agentenv.sandbox.runtimes._cell import CellSandbox
from agentenv.sandbox.runtimes._cgroup import open_run
from agentenv.sandbox.runtimes._zygote import Launch, ZygoteProcess, zygote_command, zygote_variables

logger = logging.getLogger("agentenv.sandbox")

_NO_VIEW: Mapping[str, Any] = {"out": None, "hidden": [], "tmpfs": [], "keep": []}


class ProcessRuntime:
    """See ``agentenv.sandbox.contract.Runtime``."""

    name = "process"
    isolation = "process"

    def __init__(self, options: RuntimeOptions) -> None:
        """Start the zygote; the first ``create`` waits for it."""
        logger.warning(
            'runtime "process" gives NO isolation: environments run with all rights of this user; use it to debug only'
        )
        self._options = options
        self._groups = open_run(options.run_id)
        self._sandboxes: list[CellSandbox] = []
        # Environments that die together are brought back by several threads at once.
        self._lock = threading.Lock()
        self._closed = False
        self._ready = False
        self._zygote = self._start()

    def create(
        self, specs: Sequence[SandboxSpec], output: Output, failures: dict[str, SandboxError] | None = None
    ) -> list[Sandbox]:
        """Start sandboxes; see the contract."""
        if self._closed:
            raise ClosedError("the runtime is closed")
        for spec in specs:
            expect_whole(self.name, spec.id, spec.network)
        cells = create_cells(
            specs,
            output,
            await_cradle=self._await_cradle,
            settings=lambda spec: settings_for(
                spec, isolated=False, enforced=self._groups is not None, view=_NO_VIEW, paths=self._options.paths
            ),
            groups=self._groups,
            gentle=True,
            failures=failures,
        )
        with self._lock:
            self._sandboxes = [*(cell for cell in self._sandboxes if not cell.destroyed), *cells]
        return list(cells)

    def limits(self) -> Mapping[str, str]:
        """What enforces each limit; see ``Probe.limits``."""
        by = f"cgroup {self._groups.version}" if self._groups is not None else "not enforced"
        return {"memory": by, "cpu": by, "pids": by, "disk": "not enforced", "network": "not enforced"}

    def weigh(self, modestly: bool) -> None:
        """Whether environments wait by giving way; see the contract."""
        if self._groups is not None:
            self._groups.weigh(modestly)

    def close(self) -> None:
        """End everything; see the contract."""
        if self._closed:
            return
        self._closed = True
        for sandbox in self._sandboxes:
            sandbox.disband()
        self._zygote.close()
        if self._groups is not None:
            self._groups.close()

    def _await_cradle(self) -> Cradle:
        with self._lock:
            if not self._zygote.alive():
                self._zygote.close()
                self._zygote = self._start()
                self._ready = False
            if not self._ready:
                self._zygote.wait_ready()
                self._ready = True
            zygote = self._zygote
        return Cradle(lambda _number: zygote, nested=False)

    def _start(self) -> ZygoteProcess:
        def prepare(fd: int) -> Launch:
            # What needs no isolation keeps the caller's variables too: a debugger's, a display's.
            variables = {**os.environ, **zygote_variables()}
            return Launch(zygote_command(self._options.paths, (), fd, isolated=False), (), variables)

        return ZygoteProcess(prepare, lambda _stderr: "")
