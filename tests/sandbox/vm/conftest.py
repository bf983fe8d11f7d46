"""What tests of machines share: assets, a spawn whose programs end with the test, a machine, and a snapshot of it."""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from agentenv.sandbox.runtimes._vm.machine import (
    Command,
    Drive,
    Hypervisor,
    Interface,
    Machine,
    MachineSpec,
    Rate,
    Spawn,
    Started,
)
from agentenv.sandbox.runtimes._vm.relay import RelayProcess

pytest.register_assert_rewrite("sandbox.vm.machine_suite")

from sandbox.vm.assets import Assets, ask, fetch  # noqa: E402 (the path above)
from sandbox.vm.machine_suite import BOOT_S, MAC, MEMORY_MB, Kept, make_home  # noqa: E402 (likewise)


@pytest.fixture(scope="session")
def machine_assets() -> Assets:
    """The assets, made once; skips where they cannot be had."""
    found = fetch()
    if isinstance(found, str):
        pytest.skip(found)
    return found


@pytest.fixture(scope="module")
def spawn() -> Iterator[Spawn]:
    """Starts programs that die with this process, and reaps them after the module's last test."""
    children: list[subprocess.Popen[bytes]] = []
    prctl = ctypes.CDLL(None).prctl

    def start(command: Command) -> Started:
        child = subprocess.Popen(
            list(command.argv),
            cwd=command.directory,
            env=dict(command.variables),
            stdin=subprocess.DEVNULL,
            stdout=command.output,
            stderr=command.output,
            pass_fds=list(command.inherit),
            preexec_fn=lambda: prctl(1, signal.SIGKILL),
        )
        children.append(child)
        return Started(child.pid, os.pidfd_open(child.pid))

    yield start
    left = [child for child in children if child.poll() is None]
    for child in children:
        child.kill()
        child.wait()
    assert not left, f"machines that were not closed: {[child.args for child in left]}"


@pytest.fixture(scope="module")
def relay_spawn(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Spawn]:
    """Starts programs by a relay, which can start the first process of a namespace."""
    relay = RelayProcess(sys.path, tmp_path_factory.mktemp("relay"))
    yield relay.spawn
    relay.close()


@pytest.fixture(scope="module")
def directory(hypervisor: Hypervisor, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("machines")


@pytest.fixture(scope="module")
def taps() -> Iterator[tuple[str, ...]]:
    """TAP devices for four machines at once; none, where they cannot be made."""
    names = tuple(f"aevt{os.getpid()}-{number}"[:15] for number in range(4))
    made = []
    for name in names:
        command = ["ip", "tuntap", "add", "dev", name, "mode", "tap", "user", "65534"]
        if shutil.which("ip") and subprocess.run(command, check=False, capture_output=True).returncode == 0:
            made.append(name)
    yield tuple(made) if len(made) == len(names) else ()
    for name in made:
        subprocess.run(["ip", "link", "delete", name], check=False, capture_output=True)


@pytest.fixture(scope="module")
def spec(machine_assets: Assets, directory: Path, taps: tuple[str, ...]) -> MachineSpec:
    shared = directory / "shared, image.img"  # a comma has a meaning in QEMU's arguments
    shared.write_bytes(b"the shared image".ljust(1 << 20, b"\0"))
    shared.chmod(0o644)
    return MachineSpec(
        "one",
        machine_assets.kernel,
        machine_assets.initramfs,
        (
            Drive(str(shared)),
            Drive("own.img", readonly=False, rate=Rate(bytes_per_s=50 << 20, ops_per_s=10_000)),
            Drive(str(shared), rate=Rate(ops_per_s=10_000)),
            Drive(str(shared)),
        ),
        MEMORY_MB,
        2,
        boot_args="quiet agentenv.test=1",
        interfaces=tuple(Interface(tap, MAC) for tap in taps[:1]),
        console_bytes=8 << 10,
    )


@pytest.fixture(scope="module")
def booted(hypervisor: Hypervisor, spec: MachineSpec, directory: Path) -> Iterator[Machine]:
    machine = hypervisor.boot(spec, make_home(directory, "booted"))
    yield machine
    machine.close()


@pytest.fixture(scope="module")
def kept(booted: Machine, directory: Path) -> Kept:
    with booted.connect(BOOT_S) as stream:
        assert ask(stream, "remember where booted") == "ok"
        assert ask(stream, "write vdb before the snapshot") == "ok"
    return Kept(booted, directory / "kept")


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 16 MiB."""
    if os.geteuid() != 0:
        pytest.skip("a small file system cannot be mounted: be root")
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=16m", "none", str(tmp_path)], check=False)
    if mounted.returncode != 0:
        pytest.skip("a small file system cannot be mounted here")
    yield tmp_path
    subprocess.run(["umount", str(tmp_path)], check=True)
