"""What a machine is to be, before it is one: drives, memory, processors, and the snapshot it is brought back from.

Files are looked at, and templates made, by whoever plans, before anything starts: what follows finds them. Machines of
one kind that are asked for at once are looked at once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from math import ceil
from pathlib import Path
from typing import Any, NamedTuple

from agentenv.errors import RuntimeUnavailable
from agentenv.sandbox.contract import RuntimeOptions, SandboxSpec
from agentenv.sandbox.files import MachineFiles
from agentenv.sandbox.runtimes._net.networks import INTERFACE
from agentenv.sandbox.runtimes._vm.holding import Holding
from agentenv.sandbox.runtimes._vm.machine import Drive, Hypervisor, Machine, MachineSpec
from agentenv.sandbox.runtimes._vm.origin import read_origin
from agentenv.sandbox.runtimes._vm.saved import processor
from agentenv.sandbox.runtimes._vm.table import MachineTable
from agentenv.sandbox.runtimes._vm.templates import SCRATCH, Templates

LEAST_MB = 128

MakeTemplate = Callable[[MachineSpec, MachineFiles, str, Path], None]
"""Boots a machine, prepares it for "command", "environments" or "workbench", and writes its snapshot."""


class Plan(NamedTuple):
    """What one sandbox's machine is made of.

    Attributes:
        machine: The machine.
        files: What it is made from.
        template: The snapshot it is brought back from.
        introductions: Of the environments that run there already.
    """

    machine: MachineSpec
    files: MachineFiles
    template: Path
    introductions: tuple[dict[str, Any], ...]


class Planner:
    """Plans the machines of one run. May be used by several threads."""

    def __init__(
        self,
        options: RuntimeOptions,
        hypervisor: Hypervisor,
        table: MachineTable,
        held: Holding,
        make_template: MakeTemplate,
    ) -> None:
        """Plan nothing yet.

        Args:
            options: Of the runtime.
            hypervisor: What runs the machines.
            table: What the configuration says of them.
            held: Holds the files they are made from.
            make_template: Writes a snapshot that is not there.
        """
        self._options, self._hypervisor, self._table, self._held = options, hypervisor, table, held
        self._make_template = make_template
        self._restorers: dict[Path, Callable[..., Machine]] = {}

    def plan(self, specs: Sequence[SandboxSpec]) -> dict[str, Plan]:
        """What the machines of sandboxes are to be, by their ids.

        Raises:
            RuntimeUnavailable: One cannot be; says why.
            ResourceLimit: There is no room for a template.
        """
        looked: dict[tuple[str, ...], Path] = {}
        return {spec.id: self._plan(spec, looked) for spec in specs}

    def bring_back(self, template: Path, restore: Callable[[Path], Machine], *, seen: bool) -> Machine:
        """A machine from a template that was planned with; one that turns out to be damaged is made anew.

        Args:
            template: It.
            restore: Brings a machine back from a directory.
            seen: Whether it was planned with just now, so that it need not be looked at again.
        """
        restorer = self._restorers.get(template)
        return restore(template) if restorer is None else restorer(restore, seen=template if seen else None)

    def _plan(self, spec: SandboxSpec, looked: dict[tuple[str, ...], Path]) -> Plan:
        if spec.origin is not None:
            origin = read_origin(spec.origin)
            machine = self._machine_of(spec, origin.files, origin.memory_mb, origin.vcpu_count)
            return Plan(machine, origin.files, spec.origin, origin.introductions)
        if spec.memory_mb < LEAST_MB:
            raise RuntimeUnavailable(
                f"{spec.id}: memory_mb = {spec.memory_mb}: a machine with its own kernel needs at least {LEAST_MB}",
                f"set memory_mb = {LEAST_MB} or more",
            )
        if self._options.find_files is None:
            raise RuntimeUnavailable(f"{spec.id}: nobody said where kernels and images are")
        files = self._find(spec, self._options.find_files)
        machine = self._machine_of(spec, files, spec.memory_mb, max(1, ceil(spec.vcpu_count)))
        hypervisor = self._hypervisor
        purpose = "command" if spec.command else "environments" if spec.envs else "workbench"
        parts = (
            *files.fingerprint(),
            f"{hypervisor.name} {hypervisor.version} {hypervisor.accelerator} {hypervisor.agent_port}",
            f"{spec.memory_mb} {machine.vcpu_count} {purpose}",
            *self._table.parts(),
            repr(self._options.preload) if spec.envs else "",
            *(repr(interface) for interface in machine.interfaces),
            processor(),
        )
        key = (str(files.cache), *parts)
        template = looked.get(key)
        if template is None:
            templates, make = Templates(files.cache), partial(self._make_template, machine, files, purpose)
            template = looked[key] = templates.get(parts, make)
            self._restorers[template] = partial(templates.bring_back, parts, make)
        return Plan(machine, files, template, ())

    def _find(self, spec: SandboxSpec, find_files: Callable[[SandboxSpec], MachineFiles]) -> MachineFiles:
        """The files of a machine, held. One that was collected before it was held is made once more.

        Whoever collects leaves what was asked for lately, by the clock; which may just have been set.
        """
        files = find_files(spec)
        try:
            self._held.keep(files)
        except RuntimeUnavailable:
            if all(path.exists() for path in files.paths()):
                raise
            files = find_files(spec)
        return files

    def _machine_of(self, spec: SandboxSpec, files: MachineFiles, memory_mb: int, vcpu_count: int) -> MachineSpec:
        self._held.keep(files)
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
