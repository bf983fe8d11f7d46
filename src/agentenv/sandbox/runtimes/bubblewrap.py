"""Namespace sandboxes: one bubblewrap around a run, a cell of nested namespaces for each environment in it.

bubblewrap is the wall between the run and the host; the cells' own user, mount, pid, ipc, uts and network namespaces,
a seccomp filter and the control group are the walls between environments. Works without root. Where nested user
namespaces are refused, every environment gets a bubblewrap of its own: the same walls, a slower start.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
from collections.abc import Mapping, Sequence
from typing import Any

from agentenv.errors import ClosedError, RuntimeUnavailable, SandboxError
from agentenv.sandbox.contract import Output, RuntimeOptions, Sandbox, SandboxSpec
from agentenv.sandbox.network import expect_whole
from agentenv.sandbox.runtimes import _bwrap
from agentenv.sandbox.runtimes._birth import Cradle, create_cells, settings_for
from agentenv.sandbox.runtimes._cell import CellSandbox
from agentenv.sandbox.runtimes._cgroup import open_run
from agentenv.sandbox.runtimes._stage_plan import StagePlan, plan_stage
from agentenv.sandbox.runtimes._view import plan_view
from agentenv.sandbox.runtimes._zygote import Launch, ZygoteProcess, zygote_command, zygote_variables

logger = logging.getLogger("agentenv.sandbox")

_MIB = 1 << 20
_OUTER_TMP_MB = 16


class BubblewrapRuntime:
    """See ``agentenv.sandbox.contract.Runtime``."""

    name = "bubblewrap"
    isolation = "sandbox"

    def __init__(self, options: RuntimeOptions) -> None:
        """Start the outer sandbox; the first ``create`` waits for it.

        Raises:
            RuntimeUnavailable: There is no bwrap.
        """
        if sys.platform != "linux":
            raise RuntimeUnavailable("bubblewrap needs Linux", 'use runtime = "process", or a Linux virtual machine')
        self._options = options
        self._binary = _bwrap.find_binary(options.settings.get("binary"))
        self._view = plan_view(
            options.paths,
            directories=[path for path in options.paths if os.path.isdir(path)],
            network=options.network,
            hidden=options.hidden,
        )
        for note in self._view.notes:
            logger.info("%s", note)
        self._stage: StagePlan = plan_stage(self._view, options.paths, options.out_root)
        self._groups = open_run(options.run_id)
        self._sandboxes: list[CellSandbox] = []
        self._closed = False
        self._ready = False
        # Environments that die together are brought back by several threads at once.
        self._lock = threading.Lock()
        self._zygote: ZygoteProcess | None = None
        if options.settings.get("nested") != "never":
            self._zygote = self._start(options.preload)

    def create(
        self, specs: Sequence[SandboxSpec], output: Output, failures: dict[str, SandboxError] | None = None
    ) -> list[Sandbox]:
        """Start sandboxes; see the contract."""
        if self._closed:
            raise ClosedError("the runtime is closed")
        for spec in specs:
            expect_whole(self.name, spec.id, spec.network)
        own: list[ZygoteProcess] = []

        def await_cradle() -> Cradle:
            with self._lock:
                nested = self._settle()
            for spec in specs:
                if spec.out is not None:
                    self._stage.give(spec.out)
            if nested is not None:
                return Cradle(lambda _number: nested, nested=True)
            own.extend(self._start((), spec) for spec in specs)
            for zygote in own:
                zygote.wait_ready()
            return Cradle(own.__getitem__, nested=False, owned=True)

        try:
            cells = create_cells(
                specs,
                output,
                await_cradle=await_cradle,
                settings=lambda spec: self._settings(spec, nested=not own),
                groups=self._groups,
                gentle=False,
                failures=failures,
            )
        except BaseException:
            for zygote in own:
                zygote.close()
            raise
        with self._lock:
            self._sandboxes = [*(cell for cell in self._sandboxes if not cell.destroyed), *cells]
        return list(cells)

    def limits(self) -> Mapping[str, str]:
        """What enforces each limit; see ``Probe.limits``."""
        held = self._groups
        by = f"cgroup {held.version}" if held is not None else ""
        return {
            "memory": by or "rlimit (per process)",
            "cpu": by or "not enforced",
            "pids": by or "rlimit (per user namespace)",
            "disk": "tmpfs size",
            "network": "own network namespace",
        }

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
        if self._zygote is not None:
            self._zygote.close()
        if self._groups is not None:
            self._groups.close()

    def _settle(self) -> ZygoteProcess | None:
        """The zygote of the run, up and ready; None where cells cannot be nested in it."""
        if self._zygote is None:
            return None
        if not self._zygote.alive():
            self._zygote.close()
            self._zygote = self._start(self._options.preload)
            self._ready = False
        if self._ready:
            return self._zygote
        self._zygote.wait_ready()
        if self._zygote.threads > 1 and self._options.preload:
            logger.info("importing %s starts threads; not importing it beforehand", list(self._options.preload))
            self._zygote.close()
            self._zygote = self._start(())
            self._zygote.wait_ready()
        for text in self._zygote.failed:
            logger.debug("not imported beforehand: %s", text)
        if self._zygote.nesting:
            logger.warning(
                "nested namespaces do not work here (%s): one bubblewrap for each environment, which starts slower",
                self._zygote.nesting,
            )
            self._zygote.close()
            self._zygote = None
            return None
        self._ready = True
        return self._zygote

    def _settings(self, spec: SandboxSpec, *, nested: bool) -> dict[str, Any]:
        view: dict[str, Any] = {"out": None, "hidden": [], "tmpfs": [], "keep": []}
        if nested:
            size = spec.disk_mb * _MIB
            if self._options.out_root is not None:
                view["hidden"] = [_bwrap.OUT_ROOT]
                if spec.out is not None:
                    inside = spec.out.resolve().relative_to(self._options.out_root.resolve())
                    view["out"] = f"{_bwrap.OUT_ROOT}/{inside}"
            view["tmpfs"] = [["/tmp", size], ["/dev/shm", size]]
            view["keep"] = list(self._view.binds)
        return settings_for(
            spec, isolated=True, enforced=self._groups is not None, view=view, paths=self._options.paths
        )

    def _start(self, preload: Sequence[str], spec: SandboxSpec | None = None) -> ZygoteProcess:
        """An outer sandbox: for the whole run, or for one spec where cells cannot be nested."""
        out = self._options.out_root if spec is None else spec.out
        plan = self._stage if spec is None else plan_stage(self._view, self._options.paths, out)

        def prepare(fd: int) -> Launch:
            passwd = _bwrap.write_memory_file(
                f"root:x:0:0:root:/:/bin/sh\nagentenv:x:{plan.uid}:{plan.gid}:agentenv:/tmp/home:/bin/sh\n"
            )
            group = _bwrap.write_memory_file(f"root:x:0:\nagentenv:x:{plan.gid}:\n")
            argv = _bwrap.build_arguments(
                self._binary,
                self._view,
                zygote_command(self._options.paths, preload, fd, isolated=spec is None),
                variables=zygote_variables(),
                network=self._options.network if spec is None else spec.network is not None,
                passwd_fd=passwd,
                group_fd=group,
                out_root=str(out) if out is not None and spec is None else None,
                out=str(out) if out is not None and spec is not None else None,
                disk_mb=_OUTER_TMP_MB if spec is None else spec.disk_mb,
                source=plan.source,
            )
            return Launch(plan.wrap(argv), (passwd, group), {})

        return ZygoteProcess(prepare, _bwrap.explain_failure)
