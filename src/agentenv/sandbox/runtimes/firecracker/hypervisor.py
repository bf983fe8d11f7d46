"""Firecracker as a hypervisor: found on this host, started for each machine, told what it is over its interface."""

from __future__ import annotations

import os
import re
import time
from pathlib import Path
from typing import Any

from agentenv.errors import RuntimeUnavailable
from agentenv.sandbox.runtimes._vm import accelerator as accelerators
from agentenv.sandbox.runtimes._vm.console import Consoles
from agentenv.sandbox.runtimes._vm.files import check_spec, find_program, read_version
from agentenv.sandbox.runtimes._vm.machine import Drive, Interface, MachineSpec, Rate, Spawn
from agentenv.sandbox.runtimes._vm.monitor import Monitor
from agentenv.sandbox.runtimes._vm.saved import Saved
from agentenv.sandbox.runtimes.firecracker.jail import VSOCK_SOCKET, Jail, JailOptions, Place, Plain
from agentenv.sandbox.runtimes.firecracker.machine import MEMORY, STATE, FirecrackerMachine

_OLDEST = (1, 12)
_RELEASES = "https://github.com/firecracker-microvm/firecracker/releases"
_INSTALL = (
    f"download firecracker-VERSION-x86_64.tgz from {_RELEASES}, put its firecracker (and jailer) on PATH under these"
    " names, or name it in the configuration"
)
_MOST_CPUS = 32
_CID = 3
_ANSWER_S = 20.0
_KERNEL, _INITRAMFS = "vmlinux", "initramfs"
_ARGS = "console=ttyS0 reboot=k panic=-1 pci=off i8042.noaux i8042.nomux i8042.nopnp i8042.dumbkbd"
_MOST_ID = 64
_BALLOON_STATISTICS_S = 5
_LEVELS = {"debug": "Debug", "info": "Info", "warning": "Warn", "error": "Error"}

# What Firecracker and the jailer say, and what helps.
_REMEDIES = (
    (
        r"Error creating KVM object|KVM API version|Kvm error|/dev/kvm",
        "sudo usermod -aG kvm $USER, then log in anew; `agentenv runtimes` tries it",
    ),
    (r"(?i)tap.*(busy|os error 16)", "another machine uses this TAP device: give each its own"),
    (r"(?i)tap.*(not permitted|os error 1\b)", "make the TAP device for this user, or be root"),
    (r"Cannot allocate memory|os error 12\b", "lower memory_mb, or run fewer machines at once"),
    (r"(?i)snapshot version|Invalid.*snapshot|magic", "make the snapshot anew with this version of Firecracker"),
    (
        r"Permission denied|os error 13\b",
        "look at the file's rights, and that its file system allows devices and programs",
    ),
    (r"Address in use|os error 98\b", "the home was used before: give every machine one of its own"),
    (r"Too many open files|os error 24\b", "raise the limit of open files: ulimit -n"),
)


class FirecrackerHypervisor:
    """See ``agentenv.sandbox.runtimes._vm.machine.Hypervisor``."""

    name = "firecracker"
    accelerator = "kvm"
    agent_port = "vsock"

    def __init__(
        self,
        spawn: Spawn,
        *,
        binary: str | None = None,
        jail: JailOptions | None = None,
        log_level: str = "warning",
        probe: bool = True,
    ) -> None:
        """Find Firecracker, and find out whether KVM works.

        Args:
            spawn: Starts monitors.
            binary: Path of Firecracker, or None to look for it.
            jail: How machines are jailed; None for not at all. See ``find_jailer``.
            log_level: Least severity of what it logs: "debug", "info", "warning" or "error".
            probe: Whether to try KVM first.

        Raises:
            RuntimeUnavailable: It is missing or too old, or KVM does not work.
        """
        self._spawn = spawn
        self._binary = find_program(binary, ("firecracker",), "Firecracker", _INSTALL)
        self.version = read_version(self._binary, "Firecracker", r"Firecracker v(\d+\.\d+\S*)", _OLDEST, _INSTALL)
        self._jail = jail
        self._level = _LEVELS[log_level]
        if jail is not None and os.geteuid() != 0:
            raise RuntimeUnavailable("jailing Firecracker needs root", "be root, or set jailer = false")
        if probe:
            accelerators.choose("kvm")
        self._consoles = Consoles()

    def boot(self, spec: MachineSpec, home: Path) -> FirecrackerMachine:
        """Start a machine; see the contract."""
        _refuse_huge_pages(spec)
        check_spec(spec, home, most_cpus=_MOST_CPUS, kernel=True)
        files = {_KERNEL: spec.kernel}
        if spec.initramfs is not None:
            files[_INITRAMFS] = spec.initramfs
        machine = self._start(spec, home, files)
        try:
            for path, body in _configuration(spec):
                machine.call("PUT", path, body)
            machine.call("PUT", "/actions", {"action_type": "InstanceStart"}, timeout_s=_ANSWER_S)
        except BaseException:
            machine.close()
            raise
        return machine

    def restore(self, spec: MachineSpec, home: Path, snapshot: Path) -> FirecrackerMachine:
        """Bring a machine back; see the contract."""
        Saved.of(spec, self).check(snapshot)
        check_spec(spec, home, most_cpus=_MOST_CPUS, kernel=False)
        files = {name: snapshot / name for name in (MEMORY, STATE)}
        for path in files.values():
            if not os.access(path, os.R_OK):
                raise RuntimeUnavailable(f"snapshot {snapshot}: no readable {path.name} in it", "make it anew")
            if self._jail is not None:
                os.chown(path, -1, self._jail.gid)
        machine = self._start(spec, home, files)
        body: dict[str, Any] = {
            "snapshot_path": STATE,
            "mem_backend": {"backend_type": "File", "backend_path": MEMORY},
            "resume_vm": False,
        }
        if spec.interfaces:
            body["network_overrides"] = [
                {"iface_id": f"net{number}", "host_dev_name": interface.tap}
                for number, interface in enumerate(spec.interfaces)
            ]
        try:
            machine.load(body)
            # Limits are part of a Firecracker's snapshot, and need not be those of now.
            for number, drive in enumerate(spec.drives):
                machine.call("PATCH", f"/drives/drive{number}", _limits(number, drive))
        except BaseException:
            machine.close()
            raise
        return machine

    def close(self) -> None:
        """Free what is shared by the machines; they are ended before."""
        self._consoles.close()

    def _start(self, spec: MachineSpec, home: Path, files: dict[str, Path]) -> FirecrackerMachine:
        """Start Firecracker, with its files shown to it, and wait until it answers."""
        id = re.sub(r"[^A-Za-z0-9-]", "-", spec.id)[:_MOST_ID]
        place: Place = (
            Plain(home, self._level) if self._jail is None else Jail(home, id, self._binary, self._jail, self._level)
        )
        try:
            for name, path in files.items():
                place.show(path, name)
            for number, drive in enumerate(spec.drives):
                place.show(home / drive.path, f"drive{number}", writable=not drive.readonly)
            monitor = Monitor(
                "Firecracker",
                place.argv(self._binary, id),
                spawn=self._spawn,
                consoles=self._consoles,
                home=home,
                directory=home if self._jail is not None else place.root,
                console_bytes=spec.console_bytes,
                network=spec.network,
                apart=self._jail is not None,
                explain=_explain,
            )
        except BaseException:
            place.clear()
            raise
        machine = FirecrackerMachine(spec, home, monitor, place, Saved.of(spec, self), _explain)
        try:
            self._await_answer(machine, monitor)
            if self._jail is not None:
                monitor.identify(machine.api.pid())
        except BaseException:
            machine.close()
            raise
        return machine

    @staticmethod
    def _await_answer(machine: FirecrackerMachine, monitor: Monitor) -> None:
        deadline = time.monotonic() + _ANSWER_S
        while True:
            try:
                machine.api.get("/version")
                return
            except OSError as error:
                if monitor.await_end(0.002) or time.monotonic() > deadline:
                    what = f"machine {machine.spec.id!r} was not started: {error}"
                    raise monitor.failure(what) from error


def find_jailer(configured: str | None = None) -> str:
    """The path of the jailer: the configured one, or the one on PATH.

    Raises:
        RuntimeUnavailable: There is none.
    """
    return find_program(configured, ("jailer",), "Firecracker's jailer", _INSTALL)


def _configuration(spec: MachineSpec) -> list[tuple[str, dict[str, Any]]]:
    """What a machine is, as requests to be put in order."""
    boot = {"kernel_image_path": _KERNEL, "boot_args": f"{_ARGS} {spec.boot_args}".strip()}
    if spec.initramfs is not None:
        boot["initrd_path"] = _INITRAMFS
    return [
        ("/machine-config", {"vcpu_count": spec.vcpu_count, "mem_size_mib": spec.memory_mb}),
        ("/boot-source", boot),
        *((f"/drives/drive{number}", _drive(number, drive)) for number, drive in enumerate(spec.drives)),
        *(
            (f"/network-interfaces/net{number}", _interface(number, interface))
            for number, interface in enumerate(spec.interfaces)
        ),
        ("/vsock", {"guest_cid": _CID, "uds_path": VSOCK_SOCKET}),
        ("/entropy", {}),
        *([("/balloon", _balloon(spec.balloon_mb))] if spec.balloon_mb else []),
    ]


def _drive(number: int, drive: Drive) -> dict[str, Any]:
    body: dict[str, Any] = {
        "drive_id": f"drive{number}",
        "path_on_host": f"drive{number}",
        "is_root_device": False,
        "is_read_only": drive.readonly,
        # What a machine wrote outlives it only in a snapshot, whose maker syncs the file.
        "cache_type": "Unsafe",
    }
    return body | _limiter("rate_limiter", drive.rate)


def _balloon(size_mb: int) -> dict[str, Any]:
    return {"amount_mib": size_mb, "deflate_on_oom": True, "stats_polling_interval_s": _BALLOON_STATISTICS_S}


def _limits(number: int, drive: Drive) -> dict[str, Any]:
    """Both limits of a drive; a bucket without size limits nothing."""
    none = {"size": 0, "refill_time": 0}
    limiter = {"bandwidth": none, "ops": none, **_limiter("limiter", drive.rate).get("limiter", {})}
    return {"drive_id": f"drive{number}", "rate_limiter": limiter}


def _refuse_huge_pages(spec: MachineSpec) -> None:
    if spec.huge_pages:
        raise RuntimeUnavailable(
            f"machine {spec.id!r}: Firecracker does not map a snapshot into huge pages, and machines are brought back"
            " from snapshots",
            'set huge_pages = "none", or use runtime = "qemu"',
        )


def _interface(number: int, interface: Interface) -> dict[str, Any]:
    body = {"iface_id": f"net{number}", "host_dev_name": interface.tap, "guest_mac": interface.mac}
    return body | _limiter("rx_rate_limiter", interface.receive) | _limiter("tx_rate_limiter", interface.send)


def _limiter(name: str, rate: Rate) -> dict[str, Any]:
    """A second's worth in a bucket that takes a second to fill."""
    limits = {"bandwidth": rate.bytes_per_s, "ops": rate.ops_per_s}
    buckets = {kind: {"size": value, "refill_time": 1000} for kind, value in limits.items() if value is not None}
    return {name: buckets} if buckets else {}


def _explain(text: str) -> str:
    """The remedy for what Firecracker says; "" for messages not known."""
    return next((remedy for pattern, remedy in _REMEDIES if re.search(pattern, text)), "")
