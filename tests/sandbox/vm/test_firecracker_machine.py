"""Machines that really run in Firecracker, jailed and not."""

from __future__ import annotations

import dataclasses
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from agentenv.errors import RuntimeUnavailable
from agentenv.sandbox.runtimes._vm.accelerator import probe_kvm
from agentenv.sandbox.runtimes._vm.machine import Hypervisor, MachineSpec, Rate, Spawn
from agentenv.sandbox.runtimes._vm.table import await_balloon
from agentenv.sandbox.runtimes.firecracker.hypervisor import FirecrackerHypervisor
from agentenv.sandbox.runtimes.firecracker.jail import JailOptions
from agentenv.sandbox.runtimes.firecracker.machine import FirecrackerMachine
from sandbox.vm.assets import Assets, ask
from sandbox.vm.machine_suite import BOOT_S, MEMORY_MB, Kept, MachineSuite, await_console, elsewhere, make_home

if not (_kvm := probe_kvm()).works:
    pytest.skip(f"{_kvm.detail}; {_kvm.remedy}", allow_module_level=True)

_NOBODY = 65534


@pytest.fixture(scope="module", params=["plain", "jailed"])
def hypervisor(
    request: pytest.FixtureRequest, spawn: Spawn, relay_spawn: Spawn, machine_assets: Assets
) -> Iterator[Hypervisor]:
    binary = str(machine_assets.bin / "firecracker")
    if request.param == "jailed":
        if os.geteuid() != 0:
            pytest.skip("jailing needs root")
        # The first process of a namespace, which a jail needs, is something only the relay starts.
        jail = JailOptions(str(machine_assets.bin / "jailer"), _NOBODY, _NOBODY)
        made = FirecrackerHypervisor(relay_spawn, binary=binary, jail=jail)
    else:
        made = FirecrackerHypervisor(spawn, binary=binary)
    yield made
    made.close()


class TestFirecracker(MachineSuite):
    """See the suite."""

    def test_a_balloon_holds_its_memory_and_lets_go_of_it_when_that_is_needed(
        self, hypervisor: Hypervisor, spec: MachineSpec, directory: Path
    ) -> None:
        wanted = 96
        with_balloon = dataclasses.replace(elsewhere(spec), balloon_mb=wanted)
        booted = hypervisor.boot(with_balloon, make_home(directory, "balloon"))
        try:
            with booted.connect(BOOT_S) as stream:
                assert ask(stream, "echo here") == "here"
            await_balloon(booted)
            assert booted.ballooned_mb() == wanted
            kept = Kept(booted, directory / "with-balloon")
        finally:
            booted.close()
        machine = hypervisor.restore(with_balloon, make_home(directory, "balloon-back", kept.drive), kept.path)
        try:
            machine.resume()
            with machine.connect(BOOT_S) as stream:
                assert ask(stream, "echo here") == "here"
                assert machine.ballooned_mb() == wanted
                # More than is left beside the balloon; less than there is without it.
                assert ask(stream, f"fill {MEMORY_MB - wanted} 7", BOOT_S) == "ok"
                assert machine.ballooned_mb() < wanted
        finally:
            machine.close()

    def test_a_balloon_that_cannot_be_filled_is_told(
        self, hypervisor: Hypervisor, spec: MachineSpec, directory: Path
    ) -> None:
        asked = dataclasses.replace(elsewhere(spec), initramfs=None, boot_args="panic=0", balloon_mb=64)
        machine = hypervisor.boot(asked, make_home(directory, "no-driver"))
        try:
            with pytest.raises(RuntimeUnavailable, match=r"the balloon held 0 MiB after 0\.5 s") as caught:
                await_balloon(machine, 0.5)
            assert "virtio_balloon" in caught.value.remedy
        finally:
            machine.close()

    @pytest.mark.parametrize("version", ["1.15.1", "1.16.1"])
    def test_a_pause_is_followed_by_a_snapshot_where_that_must_be(
        self, hypervisor: Hypervisor, spec: MachineSpec, directory: Path, kept: Kept, version: str
    ) -> None:
        machine = hypervisor.restore(elsewhere(spec), make_home(directory, f"as-{version}", kept.drive), kept.path)
        try:
            assert isinstance(machine, FirecrackerMachine)
            machine._saved = dataclasses.replace(machine._saved, version=version)
            asked: list[str] = []
            call = machine.call
            machine.call = lambda method, path, *given, **keys: (  # type: ignore[method-assign]  # to see what is said
                asked.append(path) or call(method, path, *given, **keys)
            )
            for _ in range(2):
                machine.resume()
                with machine.connect(BOOT_S) as stream:
                    assert ask(stream, "recall where") == "booted"
                machine.pause()
            between = ["/snapshot/create"] if version == "1.16.1" else []
            assert asked == [
                "/vm",
                "/vm",
                *between,
                "/vm",
                "/vm",
            ]  # brought back from a snapshot, it needs none at first
            assert not list(machine._place.root.glob("kept.*"))
        finally:
            machine.close()

    def test_a_full_disk_for_a_snapshot_that_must_be_leaves_it_paused(
        self, hypervisor: Hypervisor, spec: MachineSpec, kept: Kept, small_disk: Path
    ) -> None:
        shutil.copy(kept.drive, small_disk / "own.img")
        machine = hypervisor.restore(elsewhere(spec), small_disk, kept.path)
        try:
            assert isinstance(machine, FirecrackerMachine)
            machine._saved = dataclasses.replace(machine._saved, version="1.16.1")
            machine.pause()
            free = os.statvfs(small_disk)
            filler = small_disk / "filler"
            filler.write_bytes(bytes(free.f_bavail * free.f_frsize - (1 << 20)))
            with pytest.raises(OSError, match=r"(?i)no space left"):
                machine.resume()
            assert machine.call("GET", "/", None)["state"] == "Paused"
            assert not list(machine._place.root.glob("kept.*"))
        finally:
            machine.close()

    def test_limits_can_be_read_back(
        self, hypervisor: Hypervisor, spec: MachineSpec, directory: Path, kept: Kept
    ) -> None:
        for rate in (Rate(bytes_per_s=5 << 20), Rate()):
            drives = tuple(dataclasses.replace(drive, rate=rate) for drive in spec.drives)
            asked = dataclasses.replace(elsewhere(spec), drives=drives)
            name = f"rates-{rate.bytes_per_s}"
            machine = hypervisor.restore(asked, make_home(directory, name, kept.drive), kept.path)
            try:
                assert isinstance(machine, FirecrackerMachine)
                found = [drive.get("rate_limiter") or {} for drive in machine.api.get("/vm/config")["drives"]]
                sizes = [(one.get("bandwidth") or {}).get("size") for one in found]
                assert sizes == [rate.bytes_per_s] * len(spec.drives)
                assert [one.get("ops") for one in found] == [None] * len(spec.drives)
            finally:
                machine.close()

    def test_huge_pages_are_refused_with_the_reason(
        self, hypervisor: Hypervisor, spec: MachineSpec, tmp_path: Path
    ) -> None:
        with pytest.raises(RuntimeUnavailable, match="does not map a snapshot into huge pages"):
            hypervisor.boot(dataclasses.replace(spec, huge_pages=True), tmp_path)


@pytest.mark.parametrize(("level", "talks"), [("info", True), ("error", False)])
def test_what_it_logs_is_what_was_asked_for(
    level: str, talks: bool, spawn: Spawn, spec: MachineSpec, machine_assets: Assets, directory: Path
) -> None:
    made = FirecrackerHypervisor(spawn, binary=str(machine_assets.bin / "firecracker"), log_level=level)
    machine = made.boot(elsewhere(spec), make_home(directory, f"log-{level}"))
    try:
        with machine.connect(BOOT_S) as stream:
            assert ask(stream, "shout here") == "ok"
        await_console(machine, "here")
        assert ("InstanceStart" in (machine.home / "console.log").read_text(errors="replace")) == talks
    finally:
        machine.close()
        made.close()
