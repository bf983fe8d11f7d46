"""A runtime whose sandboxes are machines: one for each, brought back from a snapshot of one that has booted already.

What runs in a machine is a cell like those of the other runtimes, made by a zygote there, so that an environment finds
the same names, limits and file systems everywhere; the machine is the wall.
"""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from math import ceil
from pathlib import Path
from typing import Any

from agentenv.errors import (
    Cause,
    CauseKind,
    ClosedError,
    Owner,
    RuntimeUnavailable,
    SandboxDied,
    SandboxError,
)
from agentenv.sandbox.contract import Output, RuntimeOptions, Sandbox, SandboxSpec
from agentenv.sandbox.files import MachineFiles
from agentenv.sandbox.runtimes._birth import settings_for
from agentenv.sandbox.runtimes._cgroup import open_run
from agentenv.sandbox.runtimes._net.networks import INTERFACE, Networks
from agentenv.sandbox.runtimes._vm.agent import AgentRefusal
from agentenv.sandbox.runtimes._vm.files import copy_sparsely, room_in
from agentenv.sandbox.runtimes._vm.homes import REMEDY, make_homes
from agentenv.sandbox.runtimes._vm.machine import Drive, Hypervisor, Machine, MachineSpec, Spawn
from agentenv.sandbox.runtimes._vm.monitor import MonitorKilled
from agentenv.sandbox.runtimes._vm.origin import read_origin
from agentenv.sandbox.runtimes._vm.pool import Warm, WarmPool
from agentenv.sandbox.runtimes._vm.relay import RelayProcess
from agentenv.sandbox.runtimes._vm.sandbox import VmSandbox
from agentenv.sandbox.runtimes._vm.saved import processor
from agentenv.sandbox.runtimes._vm.starting import as_image_says, shown_paths, unfit, variables_of_zygotes
from agentenv.sandbox.runtimes._vm.table import MachineTable, await_balloon, unlimited
from agentenv.sandbox.runtimes._vm.templates import SCRATCH, Templates
from agentenv.sandbox.runtimes._vm.workbench import news

logger = logging.getLogger("agentenv.sandbox")

LEAST_MB = 128
_MONITOR_MB = 512
_MONITOR_PIDS = 256
_WARM_S = 120.0
_CALL_S = 30.0
_SHOWN = "/dev/vdd"


_Plan = tuple[MachineSpec, MachineFiles, Path, tuple[dict[str, Any], ...]]
"""Machine, files, the snapshot it comes from, and the introductions of environments that run there already."""


class VmRuntime:
    """See ``agentenv.sandbox.contract.Runtime``; a part of the runtimes that boot machines."""

    name = ""
    isolation = "vm"

    def __init__(self, options: RuntimeOptions) -> None:
        """Start the relay.

        Raises:
            RuntimeUnavailable: The monitor cannot be used here.
            ResourceLimit: There is no place for the machines' own files.
        """
        self._options = options
        self._table = MachineTable.of(options.settings)
        self._lock = threading.Lock()
        self._closed = False
        self._sandboxes: list[VmSandbox] = []
        self._numbers = 0
        self._pool = WarmPool(options.warm, _discard)
        self._makers: dict[Path, Callable[[Callable[[Path], Machine]], Machine]] = {}
        with contextlib.ExitStack() as undo:
            self._networks = Networks(options.run_id, options.network_settings)
            undo.callback(self._networks.close)
            if options.network:
                self._networks.open()
            self._groups = open_run(options.run_id)
            if self._groups is not None:
                undo.callback(self._groups.close)
            self._homes = make_homes(options.run_id)
            undo.callback(shutil.rmtree, self._homes, ignore_errors=True)
            self._relay = RelayProcess(options.paths, self._homes)
            undo.callback(self._relay.close)
            self._hypervisor = self.find_hypervisor(lambda command: self._relay.spawn(command))
            undo.pop_all()

    def find_hypervisor(self, spawn: Spawn) -> Hypervisor:
        """The monitor this runtime uses.

        Raises:
            RuntimeUnavailable: It cannot be used here.
        """
        raise NotImplementedError  # the drivers'

    def create(
        self, specs: Sequence[SandboxSpec], output: Output, failures: dict[str, SandboxError] | None = None
    ) -> list[Sandbox]:
        """Start sandboxes; see the contract."""
        if self._closed:
            raise ClosedError("the runtime is closed")
        with self._lock:
            self._revive_relay()
        begun: list[VmSandbox] = []
        ready: list[VmSandbox] = []
        try:
            # Files are looked for, and templates made, by one: what follows finds them.
            plans = {spec.id: self._plan(spec) for spec in specs}
            with ThreadPoolExecutor(max(1, min(len(specs), os.cpu_count() or 1))) as pool:
                started = time.monotonic()
                jobs = [(spec, pool.submit(self._begin, spec, plans[spec.id], output, begun)) for spec in specs]
                for spec, job in jobs:
                    try:
                        sandbox = job.result()
                        sandbox.await_ready(started + spec.start_timeout_s)
                        ready.append(sandbox)
                    except SandboxError as error:
                        if failures is None:
                            raise
                        failures[spec.id] = error
        except BaseException:
            for sandbox in begun:
                sandbox.destroy()
            raise
        for sandbox in begun:
            if sandbox not in ready:
                sandbox.destroy()
        with self._lock:
            self._sandboxes = [*(one for one in self._sandboxes if not one.destroyed), *ready]
        return list(ready)

    @property
    def accelerator(self) -> str:
        """What runs the machines' processors."""
        return self._hypervisor.accelerator

    def limits(self) -> Mapping[str, str]:
        """What enforces each limit; see ``Probe.limits``."""
        by = f"cgroup {self._groups.version}" if self._groups is not None else "processors of the machine"
        return {
            "memory": "RAM of the machine, cgroup v2 in it",
            "cpu": by,
            "pids": "cgroup v2 in the machine",
            "disk": "tmpfs size",
            "network": "nftables, network namespace" if self._options.network else "no interface",
        }

    def close(self) -> None:
        """End everything; see the contract."""
        if self._closed:
            return
        self._closed = True
        self._pool.close()
        for sandbox in self._sandboxes:
            sandbox.destroy()
        self._relay.close()
        self._hypervisor.close()
        shutil.rmtree(self._homes, ignore_errors=True)
        if self._groups is not None:
            self._groups.close()
        self._networks.close()

    # -- parts

    def _revive_relay(self) -> None:
        if not self._relay.alive():
            self._relay.close()
            self._homes.mkdir(mode=0o700, exist_ok=True)
            self._relay = RelayProcess(self._options.paths, self._homes)

    def _plan(self, spec: SandboxSpec) -> _Plan:
        if spec.origin is not None:
            origin = read_origin(spec.origin)
            machine = self._machine_of(spec, origin.files, origin.memory_mb, origin.vcpu_count)
            return machine, origin.files, spec.origin, origin.introductions
        if spec.memory_mb < LEAST_MB:
            raise RuntimeUnavailable(
                f"{spec.id}: memory_mb = {spec.memory_mb}: a machine with its own kernel needs at least {LEAST_MB}",
                f"set memory_mb = {LEAST_MB} or more",
            )
        if self._options.find_files is None:
            raise RuntimeUnavailable(f"{spec.id}: nobody said where kernels and images are")
        files = self._options.find_files(spec)
        machine = self._machine_of(spec, files, spec.memory_mb, max(1, ceil(spec.vcpu_count)))
        hypervisor = self._hypervisor
        purpose = "command" if spec.command else "environments" if spec.envs else "workbench"
        parts = [
            *files.fingerprint(),
            f"{hypervisor.name} {hypervisor.version} {hypervisor.accelerator}",
            f"{spec.memory_mb} {machine.vcpu_count} {purpose}",
            *self._table.parts(),
            repr(self._options.preload) if spec.envs else "",
            *(repr(interface) for interface in machine.interfaces),
            processor(),
        ]
        templates, make = Templates(files.cache), partial(self._make_template, machine, files, purpose)
        template = templates.get(parts, make)
        self._makers[template] = partial(templates.bring_back, parts, make)
        return machine, files, template, ()

    def _machine_of(self, spec: SandboxSpec, files: MachineFiles, memory_mb: int, vcpu_count: int) -> MachineSpec:
        drives = [Drive(str(files.root)), Drive(str(files.tools)), Drive(SCRATCH, readonly=False)]
        if files.project is not None:
            drives.append(Drive(str(files.project)))
        machine = MachineSpec(
            spec.id,
            files.kernel,
            files.initramfs,
            tuple(drives),
            memory_mb,
            vcpu_count,
            interfaces=(INTERFACE,) if spec.network is not None else (),
        )
        return self._table.equip(machine, LEAST_MB)

    def _make_template(self, spec: MachineSpec, files: MachineFiles, purpose: str, directory: Path) -> None:
        logger.info("booting a machine once, to bring others back from it (%s)", self._hypervisor.accelerator)
        home = self._make_home(files.scratch)
        plain = SandboxSpec("template")
        sandbox = VmSandbox(plain, _NoOutput(), self._relay, self._next_number(), home, None)
        try:
            deadline = time.monotonic() + _WARM_S
            with self._networks.plugged(unlimited(spec)) as plugged:
                machine = self._hypervisor.boot(plugged, home)
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
            copy_sparsely(home / SCRATCH, directory / SCRATCH)
        except (SandboxError, ConnectionError, TimeoutError) as error:
            raise RuntimeUnavailable(
                f"{spec.id}: the machine that others are brought back from could not be prepared: {error}",
                f"`agentenv runtimes` tries {self.name} and says what helps",
            ) from error
        finally:
            sandbox.destroy()

    def _warming(self, files: MachineFiles, command: bool) -> dict[str, Any]:
        return {
            "command": command,
            "path": shown_paths(files),
            "preload": list(self._options.preload),
            "variables": variables_of_zygotes(files),
            "user": files.user,
        }

    def _begin(self, spec: SandboxSpec, plan: _Plan, output: Output, begun: list[VmSandbox]) -> VmSandbox:
        machine_spec, files, template, introductions = plan
        deadline = time.monotonic() + spec.start_timeout_s
        warm = self._pool.take(str(template)) if spec.network is None else None
        home = self._make_home() if warm is None else warm.home
        group = None
        if self._groups is not None:
            group = self._groups.create(
                spec.id,
                memory_mb=spec.memory_mb + _MONITOR_MB,
                vcpu_count=spec.vcpu_count,
                pids=_MONITOR_PIDS,
            )
        sandbox = VmSandbox(spec, output, self._relay, self._next_number(), home, group)
        with self._lock:
            begun.append(sandbox)
        if spec.network is not None:
            sandbox.link = self._networks.attach(spec.network)
            machine_spec = replace(machine_spec, network=sandbox.link.fileno())
        machine = self._bring_back(machine_spec, template, home) if warm is None else warm.machine
        sandbox.board(machine, deadline)
        if spec.network is None and spec.origin is None:
            self._pool.keep(str(template), partial(self._warm_up, machine_spec, template))
        sandbox.agent.call(
            "identify",
            _CALL_S,
            hostname=spec.id,
            machine_id=uuid.uuid4().hex,
            **news(),
        )
        if sandbox.link is not None:
            sandbox.agent.call("network", _CALL_S, **sandbox.link.settings())
        sandbox.equip(files)
        if spec.origin is not None and spec.envs:
            sandbox.take_on(introductions)
        elif spec.envs or spec.command:
            sandbox.start(self._settings(spec, files), nested=True)
        return sandbox

    def _bring_back(self, spec: MachineSpec, template: Path, home: Path) -> Machine:
        def restore(found: Path) -> Machine:
            with room_in(home, "give a machine its drive", REMEDY):
                copy_sparsely(found / SCRATCH, home / SCRATCH)
            try:
                return self._hypervisor.restore(spec, home, found)
            except (RuntimeUnavailable, ConnectionError) as error:
                raise self._judge(spec.id, error) from error

        make = self._makers.get(template)
        return restore(template) if make is None else make(restore)

    def _judge(self, machine_id: str, error: Exception) -> Exception:
        """What a failure to start a machine means: a kill from outside is no fault of what was asked for."""
        killed = isinstance(error, MonitorKilled)
        if not killed and self._relay.alive():
            return error
        who = "its monitor" if killed else "the relay, which starts every machine of the run,"
        cause = Cause(CauseKind.SANDBOX_LOST, Owner.INFRASTRUCTURE, f"{who} was killed while the machine was started")
        return SandboxDied(cause.detail, env_id=machine_id, cause=cause)

    def _make_home(self, scratch: Path | None = None) -> Path:
        with room_in(self._homes, "give a machine a place", REMEDY):
            home = Path(tempfile.mkdtemp(dir=self._homes))
            if scratch is not None:
                copy_sparsely(scratch, home / SCRATCH)
            return home

    def _warm_up(self, spec: MachineSpec, template: Path) -> Warm:
        home = self._make_home()
        try:
            return Warm(self._bring_back(replace(spec, id=f"warm-{self._next_number()}"), template, home), home)
        except BaseException:
            shutil.rmtree(home, ignore_errors=True)
            raise

    def _settings(self, spec: SandboxSpec, files: MachineFiles) -> dict[str, Any]:
        settings = settings_for(
            spec,
            isolated=True,
            enforced=False,
            view=self._view(spec, files),
            paths=[shown for _, shown in files.places],
        )
        settings["rlimits"].pop("memory_mb", None)  # the machine has no more
        return as_image_says(settings, spec, files)

    def _view(self, spec: SandboxSpec, files: MachineFiles) -> dict[str, Any]:
        size = spec.disk_mb << 20
        return {
            "out": "/run/agentenv/out" if spec.out is not None else None,
            "hidden": [],
            "tmpfs": [["/tmp", size], ["/dev/shm", size]],
            "keep": [shown for _, shown in files.places if shown.startswith(("/tmp/", "/dev/shm/"))],
        }

    def _next_number(self) -> int:
        with self._lock:
            self._numbers += 1
            return self._numbers


def _discard(warm: Warm) -> None:
    warm.machine.close()
    shutil.rmtree(warm.home, ignore_errors=True)


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
