"""QEMU as a hypervisor: found on this host, started for each machine; with KVM where that works, else it emulates."""

from __future__ import annotations

import contextlib
import re
import socket
from pathlib import Path

from agentenv.errors import AgentEnvError, RuntimeUnavailable
from agentenv.sandbox.runtimes._vm import accelerator as accelerators
from agentenv.sandbox.runtimes._vm.console import Consoles
from agentenv.sandbox.runtimes._vm.files import check_spec, find_program, read_version
from agentenv.sandbox.runtimes._vm.machine import MachineSpec, Spawn
from agentenv.sandbox.runtimes._vm.monitor import Monitor
from agentenv.sandbox.runtimes._vm.saved import Saved
from agentenv.sandbox.runtimes.qemu.command import AGENT_SOCKET, MOST_CPUS, build_arguments
from agentenv.sandbox.runtimes.qemu.machine import MEMORY, STATE, QemuMachine
from agentenv.sandbox.runtimes.qemu.qmp import Qmp, QmpError
from agentenv.sandbox.runtimes.qemu.ram import Ram
from agentenv.sandbox.runtimes.qemu.vsock import Line
from agentenv.sandbox.runtimes.qemu.vsock import choose as choose_port

_PROGRAM = "qemu-system-x86_64"
_OLDEST = (6, 2)
# With the rest of what machines are made by: whoever lacks the one lacks the others.
_INSTALL = (
    "apt-get install --no-install-recommends qemu-system-x86 busybox-static e2fsprogs kmod lz4 mmdebstrap (Debian,"
    " Ubuntu), dnf install qemu-system-x86-core; docs/runtimes.md has it all"
)
_ANSWER_S = 30.0
_MOST_STATE_BYTES = 1 << 28

# What QEMU says, and what helps.
_REMEDIES = (
    (r"Could not access KVM kernel module: Permission denied", "sudo usermod -aG kvm $USER, then log in anew"),
    (r"Could not access KVM kernel module|failed to initialize kvm", "leave the accelerator to agentenv, or fix KVM"),
    (r"Cannot allocate memory|cannot set up guest memory", "lower memory_mb, or run fewer machines at once"),
    (r"/dev/net/tun.*(Operation not permitted|Permission denied)", "make the TAP device for this user, or be root"),
    (r"/dev/net/tun.*(Device or resource busy)", "another machine uses this TAP device: give each its own"),
    (r"Failed to get .*lock", "another program has this drive open: end it, or give the machine a copy"),
    (
        r"can't open backing store.*Read-only file system",
        "make the disk writable, or choose another AGENTENV_CACHE=DIR",
    ),
    (r"Could not open '[^']*'|can't open backing store", "look at the file's rights: QEMU runs as this user"),
    (r"-sandbox.*(not supported|seccomp|invalid)", "this QEMU was built without seccomp: use a distribution's build"),
    (
        r"vhost-vsock-device.*not a valid device",
        'this QEMU was built without vhost: use a distribution\'s build, or agent_port = "serial"',
    ),
    (r"load of migration failed|Unknown savevm|error while loading state", "make the snapshot anew with this QEMU"),
)


class QemuHypervisor:
    """See ``agentenv.sandbox.runtimes._vm.machine.Hypervisor``."""

    name = "qemu"

    def __init__(
        self, spawn: Spawn, *, binary: str | None = None, accelerator: str = "auto", agent_port: str = "serial"
    ) -> None:
        """Find QEMU and what can accelerate it.

        Args:
            spawn: Starts monitors.
            binary: Path of QEMU, or None to look for it.
            accelerator: "auto", "kvm", "hvf" or "tcg".
            agent_port: "serial", "vsock", or "auto" for vsock where this host has it.

        Raises:
            RuntimeUnavailable: It is missing or too old, or what was asked for does not work.
        """
        self._spawn = spawn
        self._binary = find_program(binary, (_PROGRAM,), "QEMU", _INSTALL)
        self.version = read_version(self._binary, "QEMU", r"version (\d+\.\d+\S*)", _OLDEST, _INSTALL)
        self.accelerator = accelerators.choose(accelerator)
        self.agent_port = choose_port(agent_port)
        self._consoles = Consoles()

    def boot(self, spec: MachineSpec, home: Path) -> QemuMachine:
        """Start a machine; see the contract."""
        check_spec(spec, home, most_cpus=MOST_CPUS, kernel=True)
        _refuse_balloon(spec)
        ram = Ram.fresh(spec.memory_mb, huge=spec.huge_pages)
        try:
            return self._start(spec, home, f"/proc/self/fd/{ram.fileno()}", ram)
        except BaseException:
            ram.close()
            raise

    def restore(self, spec: MachineSpec, home: Path, snapshot: Path) -> QemuMachine:
        """Bring a machine back; see the contract."""
        Saved.of(spec, self).check(snapshot)
        check_spec(spec, home, most_cpus=MOST_CPUS, kernel=False)
        memory = snapshot.absolute() / MEMORY
        try:
            size = memory.stat().st_size
            with open(snapshot / STATE, "rb") as file:
                state = file.read(_MOST_STATE_BYTES)
            ram = Ram.filled(memory) if spec.huge_pages else Ram.of_snapshot(memory)
        except OSError as error:
            raise RuntimeUnavailable(f"snapshot {snapshot}: {error}", "it was damaged: make it anew") from error
        try:
            if size != spec.memory_mb << 20:
                raise RuntimeUnavailable(
                    f"snapshot {snapshot}: expected {spec.memory_mb << 20} bytes of memory, got {size}", "make it anew"
                )
            path = f"/proc/self/fd/{ram.fileno()}" if ram.shared else str(memory)
            machine = self._start(spec, home, path, ram, restore=True)
        except BaseException:
            ram.close()
            raise
        try:
            machine.load(state)
        except BaseException:
            machine.close()
            raise
        return machine

    def close(self) -> None:
        """Free what is shared by the machines; they are ended before."""
        self._consoles.close()

    def _start(self, spec: MachineSpec, home: Path, path: str, ram: Ram, *, restore: bool = False) -> QemuMachine:
        """Start QEMU and wait until it obeys.

        Args:
            spec: The machine.
            home: Its directory.
            path: The file that is its RAM, as QEMU opens it.
            ram: The same, as we have it.
            restore: Whether it waits for its state.
        """
        line = Line.claim() if self.agent_port == "vsock" else None
        ours, theirs = socket.socketpair()
        try:
            argv = build_arguments(
                self._binary,
                spec,
                accelerator=self.accelerator,
                control=theirs.fileno(),
                memory=path,
                shared=ram.shared,
                restore=restore,
                vsock=None if line is None else (line.cid, line.device),
            )
            inherit = [theirs.fileno(), *([ram.fileno()] if ram.shared else [])]
            if line is not None:
                # The port too, which QEMU knows nothing of: so that nobody else can have it before its end.
                inherit += [line.device, line.listener.fileno()]
            monitor = Monitor(
                "QEMU",
                argv,
                spawn=self._spawn,
                consoles=self._consoles,
                home=home,
                console_bytes=spec.console_bytes,
                network=spec.network,
                inherit=inherit,
                explain=_explain,
            )
            if line is not None:
                line.hand_over()
        except BaseException:
            ours.close()
            if line is not None:
                line.close()
            raise
        finally:
            theirs.close()
        qmp = Qmp(ours)
        try:
            qmp.greet(_ANSWER_S)
            return QemuMachine(spec, home, monitor, qmp, ram, Saved.of(spec, self), line)
        except BaseException as error:
            qmp.close()
            failure = monitor.failure(f"machine {spec.id!r} was not started: {error}")
            monitor.close()
            if line is not None:
                line.close()
            with contextlib.suppress(OSError):
                (home / AGENT_SOCKET).unlink()
            if isinstance(error, OSError | QmpError | AgentEnvError):
                raise failure from error
            raise


def _refuse_balloon(spec: MachineSpec) -> None:
    if spec.balloon_mb:
        raise RuntimeUnavailable(
            f"machine {spec.id!r}: by its balloon a guest of QEMU could take pages out of the snapshot others share",
            'set balloon_mb = 0, or use runtime = "firecracker"',
        )


def _explain(text: str) -> str:
    """The remedy for what QEMU says when it ends too early; "" for messages not known."""
    return next((remedy for pattern, remedy in _REMEDIES if re.search(pattern, text)), "")
