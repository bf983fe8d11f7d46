"""Firecracker as far as one comes where KVM does not work: its interface, its complaints, its jail."""

from __future__ import annotations

import dataclasses
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from agentenv.errors import RuntimeUnavailable
from agentenv.sandbox.runtimes._vm.console import Consoles
from agentenv.sandbox.runtimes._vm.machine import Command, Drive, Interface, MachineSpec, Rate, Spawn, Started
from agentenv.sandbox.runtimes._vm.monitor import Monitor
from agentenv.sandbox.runtimes.firecracker.api import Api, ApiError
from agentenv.sandbox.runtimes.firecracker.hypervisor import (
    FirecrackerHypervisor,
    _configuration,
    _explain,
    find_jailer,
)
from agentenv.sandbox.runtimes.firecracker.jail import JailOptions
from agentenv.sandbox.runtimes.firecracker.machine import goes_on_from_snapshots_only
from sandbox.vm.assets import Assets

_NOBODY = 65534


@pytest.fixture
def binary(machine_assets: Assets) -> str:
    return str(machine_assets.bin / "firecracker")


@pytest.fixture
def api(binary: str, spawn: Spawn, tmp_path: Path) -> Iterator[Api]:
    """Of a Firecracker that runs in a directory with a path longer than a socket's address."""
    home = tmp_path / ("long" * 40)
    home.mkdir()
    consoles = Consoles()
    argv = [binary, "--api-sock", "api.sock", "--level", "Warn"]
    monitor = Monitor("Firecracker", argv, spawn=spawn, consoles=consoles, home=home, console_bytes=1 << 16)
    made = Api(home, "api.sock")
    while True:
        try:
            made.get("/version")
            break
        except (FileNotFoundError, ConnectionRefusedError):
            assert not monitor.await_end(0.01), monitor.console(20)
    yield made
    monitor.close()
    consoles.close()
    with pytest.raises(ConnectionError):
        made.get("/version")


def test_it_answers_and_takes_a_configuration(api: Api, machine_assets: Assets, tmp_path: Path) -> None:
    assert api.get("/version")["firecracker_version"][0].isdigit()
    assert api.get("/")["state"] == "Not started"
    drive = tmp_path / "own.img"
    drive.write_bytes(bytes(1 << 20))
    spec = MachineSpec(
        "one",
        machine_assets.kernel,
        machine_assets.initramfs,
        (Drive("own.img", readonly=False, rate=Rate(1 << 20, 100)),),
        256,
        2,
        boot_args="quiet",
    )
    links = {"vmlinux": spec.kernel, "initramfs": machine_assets.initramfs, "drive0": drive}
    for name, path in links.items():
        (tmp_path / ("long" * 40) / name).symlink_to(path)
    for path, body in _configuration(spec):
        api.put(path, body)
    found = api.get("/vm/config")
    assert found["machine-config"]["vcpu_count"] == 2
    assert found["machine-config"]["mem_size_mib"] == 256
    assert found["boot-source"]["boot_args"].startswith("console=ttyS0 reboot=k panic=-1")
    assert found["boot-source"]["boot_args"].endswith(" quiet")
    assert found["vsock"] == {"guest_cid": 3, "uds_path": "v.sock"}
    (drive_found,) = found["drives"]
    assert drive_found["is_read_only"] is False
    assert drive_found["rate_limiter"]["bandwidth"]["size"] == 1 << 20
    assert drive_found["rate_limiter"]["ops"]["refill_time"] == 1000


@pytest.mark.parametrize(
    ("path", "body", "words"),
    [
        ("/nothing", {}, "Invalid request method and/or path"),
        ("/drives/a", {"drive_id": "a", "path_on_host": "absent", "is_root_device": False}, "os error 2"),
        ("/machine-config", {"vcpu_count": 0, "mem_size_mib": 1}, "vCPU"),
        ("/machine-config", {"unknown": 1}, "unknown"),
        ("/actions", {"action_type": "InstanceStart"}, "without kernel"),
    ],
)
def test_a_refusal_has_its_words(api: Api, path: str, body: dict[str, object], words: str) -> None:
    with pytest.raises(ApiError, match=words) as caught:
        api.put(path, body)
    assert caught.value.status == 400


def test_what_does_not_work_before_the_start(api: Api) -> None:
    with pytest.raises(ApiError, match="not supported"):
        api.patch("/vm", {"state": "Paused"})


def test_limits_become_buckets() -> None:
    interface = Interface("tap0", "06:00:00:00:00:01", receive=Rate(bytes_per_s=5000), send=Rate(ops_per_s=7))
    spec = MachineSpec("one", Path("k"), None, (Drive("/shared"),), 128, 1, interfaces=(interface,))
    found = dict(_configuration(spec))
    assert list(found)[-2:] == ["/vsock", "/entropy"]
    assert "rate_limiter" not in found["/drives/drive0"]
    assert "initrd_path" not in found["/boot-source"]
    assert found["/network-interfaces/net0"] == {
        "iface_id": "net0",
        "host_dev_name": "tap0",
        "guest_mac": "06:00:00:00:00:01",
        "rx_rate_limiter": {"bandwidth": {"size": 5000, "refill_time": 1000}},
        "tx_rate_limiter": {"ops": {"size": 7, "refill_time": 1000}},
    }


@pytest.mark.parametrize(
    ("said", "remedy"),
    [
        ("Internal error while starting microVM: Error creating KVM object: Permission denied (os error 13)", "kvm"),
        ("Open tap device failed: Error while creating ifreq: Resource busy (os error 16)", "give each its own"),
        ("Cannot create vm memory: Cannot allocate memory (os error 12)", "lower memory_mb"),
        ("Load snapshot error: Invalid snapshot version: 9.0.0", "make the snapshot anew"),
        ("something nobody has seen", ""),
    ],
)
def test_remedies(said: str, remedy: str) -> None:
    found = _explain(said)
    assert remedy in found
    assert bool(found) == bool(remedy)


def test_missing_programs_say_where_they_are_to_be_had(spawn: Spawn, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(RuntimeUnavailable, match="no firecracker on PATH") as caught:
        FirecrackerHypervisor(spawn)
    assert "github.com/firecracker-microvm/firecracker/releases" in caught.value.remedy
    with pytest.raises(RuntimeUnavailable, match="no jailer on PATH"):
        find_jailer()
    with pytest.raises(RuntimeUnavailable, match="to tell a version of Firecracker"):
        FirecrackerHypervisor(spawn, binary="/bin/true")


def test_an_old_one_is_refused(spawn: Spawn, tmp_path: Path) -> None:
    old = tmp_path / "firecracker"
    old.write_text("#!/bin/sh\necho Firecracker v1.7.0\n")
    old.chmod(0o755)
    with pytest.raises(RuntimeUnavailable, match=r"expected version 1\.12 or newer, .* is 1\.7\.0"):
        FirecrackerHypervisor(spawn, binary=str(old))


@pytest.fixture
def spec(machine_assets: Assets) -> MachineSpec:
    return MachineSpec("one_1", machine_assets.kernel, machine_assets.initramfs, (), 128, 1)


def test_without_kvm_it_says_so_and_leaves_nothing(
    binary: str, spawn: Spawn, spec: MachineSpec, tmp_path: Path
) -> None:
    def spawn_without(command: Command) -> Started:
        hidden = ["unshare", "-m", "--", "sh", "-c", 'mount --bind /dev/null /dev/kvm && exec "$@"', "sh"]
        prefix = hidden if os.path.exists("/dev/kvm") else []
        return spawn(dataclasses.replace(command, argv=[*prefix, *command.argv], variables=dict(os.environ)))

    if os.path.exists("/dev/kvm") and os.geteuid() != 0:
        pytest.skip("to hide /dev/kvm needs root")
    hypervisor = FirecrackerHypervisor(spawn_without, binary=binary, probe=False)
    descriptors = len(os.listdir("/proc/self/fd"))
    with pytest.raises(RuntimeUnavailable, match=r"(?s)refused PUT /actions.*KVM.*usermod -aG kvm"):
        hypervisor.boot(spec, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["console.log"]
    assert len(os.listdir("/proc/self/fd")) == descriptors
    hypervisor.close()


def test_a_jail_that_cannot_be_made_says_why(
    binary: str, relay_spawn: Spawn, spec: MachineSpec, tmp_path: Path
) -> None:
    if os.geteuid() != 0:
        with pytest.raises(RuntimeUnavailable, match="needs root"):
            FirecrackerHypervisor(
                relay_spawn, binary=binary, jail=JailOptions("/bin/true", _NOBODY, _NOBODY), probe=False
            )
        return
    hypervisor = FirecrackerHypervisor(
        relay_spawn, binary=binary, jail=JailOptions("/bin/false", _NOBODY, _NOBODY), probe=False
    )
    with pytest.raises(RuntimeUnavailable, match=r"was not started.*Firecracker has ended"):
        hypervisor.boot(spec, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["console.log"]
    secret = tmp_path / "secret.img"
    secret.write_bytes(bytes(4096))
    secret.chmod(0o600)
    with pytest.raises(RuntimeUnavailable, match="the jailed user 65534:65534 may not read it"):
        hypervisor.boot(dataclasses.replace(spec, drives=(Drive(str(secret)),)), tmp_path)
    hypervisor.close()


def test_a_jail_holds_what_it_should(
    binary: str, machine_assets: Assets, relay_spawn: Spawn, spec: MachineSpec, tmp_path: Path
) -> None:
    """Its start succeeds wherever /dev/kvm opens, whether or not a guest comes to life."""
    if os.geteuid() != 0 or not os.path.exists("/dev/kvm"):
        pytest.skip("expected /dev/kvm, and to be root")
    jail = JailOptions(str(machine_assets.bin / "jailer"), _NOBODY, _NOBODY)
    hypervisor = FirecrackerHypervisor(relay_spawn, binary=binary, jail=jail, probe=False)
    (tmp_path / "own.img").write_bytes(bytes(1 << 20))
    machine = hypervisor.boot(dataclasses.replace(spec, drives=(Drive("own.img", readonly=False),)), tmp_path)
    try:
        status = Path(f"/proc/{machine.pid}/status").read_text()
        assert "Uid:\t65534\t65534\t65534\t65534" in status
        assert "CapEff:\t0000000000000000" in status
        assert set(os.listdir(f"/proc/{machine.pid}/root")) >= {"vmlinux", "initramfs", "drive0", "dev", "v.sock"}
        assert "home" not in os.listdir(f"/proc/{machine.pid}/root")
        with pytest.raises(OSError, match="Read-only"):
            os.open(f"/proc/{machine.pid}/root/vmlinux", os.O_RDWR)
        mounts = Path("/proc/self/mounts").read_text()
        assert str(tmp_path) not in mounts
    finally:
        machine.close()
        hypervisor.close()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["console.log", "own.img"]
    assert subprocess.run(["pgrep", "-f", f"chroot-base-dir {tmp_path}"], check=False).returncode != 0


@pytest.mark.parametrize(
    ("version", "needed"),
    [
        ("1.12.1", False),
        ("1.15.1", False),
        ("1.16.0", True),
        ("1.16.1", True),
        ("1.16.0-dev", True),
        ("1.17.0", False),
        ("1.160.0", False),
        ("2.16.0", False),
    ],
)
def test_which_versions_go_on_from_snapshots_only(version: str, needed: bool) -> None:
    assert goes_on_from_snapshots_only(version) is needed
