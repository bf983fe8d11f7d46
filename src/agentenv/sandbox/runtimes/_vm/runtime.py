"""A runtime whose sandboxes are machines: one for each, brought back from a snapshot of one that has booted already.

What runs in a machine is a cell like those of the other runtimes, made by a zygote there, so that an environment finds
the same names, limits and file systems everywhere; the machine is the wall.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
import shutil
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path

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
from agentenv.sandbox.runtimes._cgroup import open_run
from agentenv.sandbox.runtimes._net.networks import Networks
from agentenv.sandbox.runtimes._vm.files import copy_sparsely, room_in
from agentenv.sandbox.runtimes._vm.holding import Holding
from agentenv.sandbox.runtimes._vm.homes import REMEDY, keep_homes, make_homes, memory_of_files_mb, remove_homes
from agentenv.sandbox.runtimes._vm.machine import Hypervisor, Machine, MachineSpec, Spawn
from agentenv.sandbox.runtimes._vm.making import TemplateMaker
from agentenv.sandbox.runtimes._vm.monitor import MonitorKilled
from agentenv.sandbox.runtimes._vm.planning import Plan, Planner
from agentenv.sandbox.runtimes._vm.pool import Warm, WarmPool
from agentenv.sandbox.runtimes._vm.relay import RelayProcess
from agentenv.sandbox.runtimes._vm.sandbox import VmSandbox
from agentenv.sandbox.runtimes._vm.starting import settings_of
from agentenv.sandbox.runtimes._vm.table import MachineTable
from agentenv.sandbox.runtimes._vm.templates import SCRATCH
from agentenv.sandbox.runtimes._vm.workbench import news

logger = logging.getLogger("agentenv.sandbox")

_MONITOR_MB = 512
_MONITOR_PIDS = 256


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
        self._numbers = itertools.count(1)
        self._held = Holding()
        self._pool = WarmPool(options.warm, _discard)
        with contextlib.ExitStack() as undo:
            self._networks = Networks(options.run_id, options.network_settings)
            undo.callback(self._networks.close)
            if options.network:
                self._networks.open()
            self._groups = open_run(options.run_id)
            if self._groups is not None:
                undo.callback(self._groups.close)
            self._homes = make_homes(options.run_id)
            undo.callback(remove_homes, self._homes)
            self._files_mb = memory_of_files_mb(self._homes)
            self._relay = RelayProcess(options.paths, self._homes)
            undo.callback(self._relay.close)
            self._hypervisor = self.find_hypervisor(lambda command: self._relay.spawn(command))
            undo.pop_all()
        maker = TemplateMaker(self._hypervisor, self._networks, self._table, options.preload, self._open_bare)
        self._planner = Planner(options, self._hypervisor, self._table, self._held, maker)

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
            plans = self._planner.plan(specs)
            started = time.monotonic()
            with _starting([partial(self._begin, spec, plans[spec.id], output, begun) for spec in specs]) as jobs:
                for spec, job in zip(specs, jobs, strict=True):
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

    def weigh(self, modestly: bool) -> None:
        """Whether environments wait by giving way; see the contract."""
        if self._groups is not None:
            self._groups.weigh(modestly)

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
        self._held.close()
        remove_homes(self._homes)
        if self._groups is not None:
            self._groups.close()
        self._networks.close()

    # -- parts

    def _revive_relay(self) -> None:
        if not self._relay.alive():
            self._relay.close()
            keep_homes(self._homes)
            self._relay = RelayProcess(self._options.paths, self._homes)

    def _begin(self, spec: SandboxSpec, plan: Plan, output: Output, begun: list[VmSandbox]) -> VmSandbox:
        machine_spec, files, template, introductions = plan
        deadline = time.monotonic() + spec.start_timeout_s
        warm = self._pool.take(str(template)) if spec.network is None else None
        sandbox = self._open(spec, output, warm)
        with self._lock:
            begun.append(sandbox)
        if spec.network is not None:
            sandbox.link = self._networks.attach(spec.network)
            machine_spec = replace(machine_spec, network=sandbox.link.fileno())
        machine = self._bring_back(machine_spec, template, sandbox.home, seen=True) if warm is None else warm.machine
        sandbox.board(machine, deadline)
        if spec.network is None and spec.origin is None:
            self._pool.keep(str(template), partial(self._warm_up, machine_spec, template))
        sandbox.ask("identify", hostname=spec.id, machine_id=uuid.uuid4().hex, **news())
        if sandbox.link is not None:
            sandbox.ask("network", **sandbox.link.settings())
        sandbox.equip(files)
        if spec.origin is not None and spec.envs:
            sandbox.take_on(introductions)
        elif spec.envs or spec.command:
            sandbox.start(settings_of(spec, files), nested=True)
        return sandbox

    def _open(self, spec: SandboxSpec, output: Output, warm: Warm | None) -> VmSandbox:
        """A sandbox for a machine that is still to come, or for one that stood ready, which goes where that fails."""
        with contextlib.ExitStack() as undo:
            if warm is not None:
                undo.callback(_discard, warm)
                home = warm.home
            else:
                home = self._make_home()
                undo.callback(shutil.rmtree, home, ignore_errors=True)
            group = None
            limit_mb = spec.memory_mb + _MONITOR_MB + self._files_mb
            if self._groups is not None:
                group = self._groups.create(
                    spec.id,
                    memory_mb=limit_mb,
                    vcpu_count=spec.vcpu_count,
                    pids=_MONITOR_PIDS,
                )
                undo.callback(group.destroy)
            sandbox = VmSandbox(spec, output, self._relay, self._next_number(), home, group, limit_mb)
            undo.pop_all()
        return sandbox

    def _open_bare(self, spec: SandboxSpec, output: Output, scratch: Path) -> VmSandbox:
        home = self._make_home(scratch)
        return VmSandbox(spec, output, self._relay, self._next_number(), home, None)

    def _bring_back(self, spec: MachineSpec, template: Path, home: Path, *, seen: bool) -> Machine:
        def restore(found: Path) -> Machine:
            with room_in(home, "give a machine its drive", REMEDY):
                copy_sparsely(found / SCRATCH, home / SCRATCH)
            try:
                return self._hypervisor.restore(spec, home, found)
            except (RuntimeUnavailable, ConnectionError) as error:
                raise self._judge(spec.id, error) from error

        return self._planner.bring_back(template, restore, seen=seen)

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
            named = replace(spec, id=f"warm-{self._next_number()}")
            return Warm(self._bring_back(named, template, home, seen=False), home)
        except BaseException:
            shutil.rmtree(home, ignore_errors=True)
            raise

    def _next_number(self) -> int:
        return next(self._numbers)


@contextlib.contextmanager
def _starting(work: Sequence[Callable[[], VmSandbox]]) -> Iterator[list[Future[VmSandbox]]]:
    """Several at a time, each in a thread that no interrupt reaches; all have ended when this ends."""
    most = max(1, min(len(work), os.cpu_count() or 1))
    with ThreadPoolExecutor(most, "agentenv-start") as starters:
        jobs: list[Future[VmSandbox]] = []
        try:
            jobs += map(starters.submit, work)
            yield jobs
        finally:
            for job in jobs:
                job.cancel()  # those that have not begun, where this is the end


def _discard(warm: Warm) -> None:
    warm.machine.close()
    shutil.rmtree(warm.home, ignore_errors=True)
