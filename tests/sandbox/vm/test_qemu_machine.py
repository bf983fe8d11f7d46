"""Machines that really run in QEMU."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from agentenv.errors import RuntimeUnavailable
from agentenv.sandbox.runtimes._vm.machine import Hypervisor, MachineSpec, Spawn
from agentenv.sandbox.runtimes.qemu.hypervisor import QemuHypervisor
from agentenv.sandbox.runtimes.qemu.ram import Ram
from sandbox.vm.assets import ask, digest
from sandbox.vm.machine_suite import BOOT_S, Kept, MachineSuite, elsewhere, make_home

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


def test_a_configured_binary_must_be_qemu(spawn: Spawn, tmp_path: Path) -> None:
    with pytest.raises(RuntimeUnavailable, match="not an executable file"):
        QemuHypervisor(spawn, binary=str(tmp_path / "absent"))
    with pytest.raises(RuntimeUnavailable, match="expected /bin/true --version to tell a version"):
        QemuHypervisor(spawn, binary="/bin/true")
