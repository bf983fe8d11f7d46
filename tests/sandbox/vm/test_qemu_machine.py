"""Machines that really run in QEMU."""

from __future__ import annotations

import dataclasses
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from agentenv.errors import RuntimeUnavailable
from agentenv.sandbox.runtimes._vm.machine import Hypervisor, MachineSpec, Spawn
from agentenv.sandbox.runtimes.qemu.hypervisor import QemuHypervisor
from agentenv.sandbox.runtimes.qemu.ram import Ram
from sandbox.vm.assets import ask, digest
from sandbox.vm.machine_suite import BOOT_S, MEMORY_MB, Kept, MachineSuite, elsewhere, make_home

pytestmark = pytest.mark.skipif(
    shutil.which("qemu-system-x86_64") is None, reason="qemu-system-x86_64 is missing: apt-get install qemu-system-x86"
)


@pytest.fixture(scope="module")
def hypervisor(spawn: Spawn) -> Iterator[Hypervisor]:
    made = QemuHypervisor(spawn)
    yield made
    made.close()


class TestQemu(MachineSuite):
    """See the suite."""

    def test_it_says_what_it_is(self, hypervisor: Hypervisor) -> None:
        assert hypervisor.name == "qemu"
        assert hypervisor.version[0].isdigit()
        assert hypervisor.accelerator in ("kvm", "tcg")

    def test_both_ways_to_get_at_its_memory_give_the_same(
        self,
        hypervisor: Hypervisor,
        spec: MachineSpec,
        directory: Path,
        kept: Kept,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        machine = hypervisor.restore(elsewhere(spec), make_home(directory, "both", kept.drive), kept.path)
        try:
            machine.resume()
            with machine.connect(BOOT_S) as stream:
                assert ask(stream, "fill 10 9") == "ok"
            machine.pause()
            by_pages, by_pipe = tmp_path / "pages", tmp_path / "pipe"
            by_pages.mkdir()
            machine.snapshot(by_pages)
            by_pipe.mkdir()
            # As where the kernel keeps us from looking into QEMU's process.
            monkeypatch.setattr(Ram, "copy", lambda self, target, pid: False)
            machine.snapshot(by_pipe)
            assert digest(by_pages / "memory") == digest(by_pipe / "memory") != digest(kept.path / "memory")
        finally:
            machine.close()

    def test_a_balloon_is_refused_with_the_reason(
        self, hypervisor: Hypervisor, spec: MachineSpec, tmp_path: Path
    ) -> None:
        with pytest.raises(RuntimeUnavailable, match="take pages out of the snapshot"):
            hypervisor.boot(dataclasses.replace(spec, drives=(), balloon_mb=64), tmp_path)

    def test_its_memory_may_consist_of_huge_pages(
        self, hypervisor: Hypervisor, spec: MachineSpec, directory: Path, huge_pages: Callable[[int], None]
    ) -> None:
        huge_pages(MEMORY_MB)  # for two of them at once
        huge = dataclasses.replace(elsewhere(spec), huge_pages=True)
        booted = hypervisor.boot(huge, make_home(directory, "huge"))
        try:
            with booted.connect(BOOT_S) as stream:
                assert ask(stream, "remember where booted") == "ok"
                assert ask(stream, "fill 20 7") == "ok"
            assert _huge_mb(booted.pid) == MEMORY_MB
            kept = Kept(booted, directory / "kept-huge")
            assert (kept.path / "memory").stat().st_blocks * 512 < (MEMORY_MB << 20) * 0.7
            machine = hypervisor.restore(elsewhere(huge, 2), make_home(directory, "huge-back", kept.drive), kept.path)
        finally:
            booted.close()
        try:
            machine.resume()
            with machine.connect(BOOT_S) as stream:
                assert ask(stream, "recall where") == "booted"
                assert ask(stream, "ballast") == f"{20 << 20} {7 * (20 << 20) % (1 << 32)}"
            assert _huge_mb(machine.pid) == MEMORY_MB
            descriptors = len(os.listdir("/proc/self/fd"))
            huge_pages(MEMORY_MB // 2 + 2)  # all but these are taken
            with pytest.raises(
                RuntimeUnavailable, match=r"needs 128 huge pages of 2 MiB: the host has \d+, of which"
            ) as no:
                hypervisor.restore(huge, make_home(directory, "huge-none", kept.drive), kept.path)
            assert "vm.nr_hugepages" in no.value.remedy
            assert len(os.listdir("/proc/self/fd")) == descriptors
        finally:
            machine.close()
        with pytest.raises(RuntimeUnavailable, match=r"memory_mb = 257 .*expected an even number"):
            hypervisor.boot(dataclasses.replace(huge, memory_mb=257), make_home(directory, "huge-odd"))


def _huge_mb(pid: int) -> int:
    """What a process has mapped in pages of 2 MiB, MiB."""
    found = 0
    size_kb = 0
    for line in Path(f"/proc/{pid}/smaps").read_text().split("\n"):
        if line.startswith("Size:"):
            size_kb = int(line.split()[1])
        elif line.startswith("KernelPageSize:") and int(line.split()[1]) == 2048:
            found += size_kb
    return found >> 10


@pytest.fixture
def huge_pages() -> Iterator[Callable[[int], None]]:
    """Has the host set aside so many pages of 2 MiB; as before after the test."""
    setting = Path("/proc/sys/vm/nr_hugepages")
    if os.geteuid() != 0 or not setting.exists():
        pytest.skip("expected to be root, and a kernel with huge pages")
    before = setting.read_text()

    def set_aside(count: int) -> None:
        setting.write_text(str(count))
        if int(setting.read_text()) < count:
            pytest.skip(f"this host cannot set aside {count} huge pages now")

    yield set_aside
    setting.write_text(before)


def test_a_configured_binary_must_be_qemu(spawn: Spawn, tmp_path: Path) -> None:
    with pytest.raises(RuntimeUnavailable, match="not an executable file"):
        QemuHypervisor(spawn, binary=str(tmp_path / "absent"))
    with pytest.raises(RuntimeUnavailable, match="expected /bin/true --version to tell a version"):
        QemuHypervisor(spawn, binary="/bin/true")
