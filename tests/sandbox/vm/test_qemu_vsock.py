"""Whether agents of QEMU's machines call over vhost-vsock: what is asked for, found and refused; in the lab, really."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import logging
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import pytest

from agentenv.errors import RuntimeUnavailable
from agentenv.fleet.machines import machine_files
from agentenv.sandbox.contract import SandboxSpec
from agentenv.sandbox.runtimes._vm.machine import Hypervisor, MachineSpec, Spawn
from agentenv.sandbox.runtimes._vm.saved import Saved
from agentenv.sandbox.runtimes.qemu.hypervisor import QemuHypervisor
from agentenv.sandbox.runtimes.qemu.vsock import DEVICE, choose
from lab_ground import TRIES, run_in_lab
from machines_ground import need_machines

_INSIDE = "tests/sandbox/vm/test_qemu_vsock_inside.py"
_LIMIT_S = 900


@contextlib.contextmanager
def _as_nobody() -> Iterator[None]:
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


def test_serial_is_taken_without_a_look(tmp_path: Path) -> None:
    assert choose("serial", str(tmp_path / "absent")) == "serial"


def test_what_is_missing_is_said_with_what_helps(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    absent, closed = tmp_path / "absent", tmp_path / "closed"
    closed.touch(mode=0o000)
    with pytest.raises(RuntimeUnavailable, match=r"expected to open .*absent.*got: No such file") as missing:
        choose("vsock", str(absent))
    assert "sudo modprobe vhost_vsock" in missing.value.remedy
    assert 'agent_port = "serial"' in missing.value.remedy
    tmp_path.chmod(0o755)
    with _as_nobody(), pytest.raises(RuntimeUnavailable, match="got: Permission denied") as denied:
        choose("vsock", str(closed))
    assert "usermod -aG kvm" in denied.value.remedy
    # That something opens proves nothing.
    with pytest.raises(RuntimeUnavailable, match="got: "):
        choose("vsock", "/dev/null")
    with caplog.at_level(logging.INFO, "agentenv.sandbox"):
        assert choose("auto", str(absent)) == "serial"
    assert "reached over a serial port" in caplog.text
    assert str(absent) in caplog.text


def test_no_descriptor_is_left_by_a_look(tmp_path: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    for path in (tmp_path / "absent", Path("/dev/null")):
        assert choose("auto", str(path)) == "serial"
    assert len(os.listdir("/proc/self/fd")) == before


def test_qemu_is_not_even_started_where_it_is_missing(spawn: Spawn) -> None:
    if os.path.exists(DEVICE):
        pytest.skip(f"this host has {DEVICE}")
    with pytest.raises(RuntimeUnavailable, match=f"expected to open {DEVICE}"):
        QemuHypervisor(spawn, agent_port="vsock")
    automatic = QemuHypervisor(spawn, agent_port="auto")
    assert automatic.agent_port == "serial"
    automatic.close()


@dataclasses.dataclass
class _Kind:
    name: str = "qemu"
    version: str = "7.2"
    accelerator: str = "kvm"
    agent_port: str = "serial"


def _saved(kind: _Kind) -> Saved:
    return Saved.of(MachineSpec("one", Path("k"), None, (), 256, 1), cast("Hypervisor", kind))


def test_a_snapshot_is_brought_back_only_with_the_port_it_was_made_with(tmp_path: Path) -> None:
    _saved(_Kind(agent_port="vsock")).write(tmp_path)
    _saved(_Kind(agent_port="vsock")).check(tmp_path)
    with pytest.raises(RuntimeUnavailable, match="its agent_port is 'vsock', here 'serial'"):
        _saved(_Kind()).check(tmp_path)


@pytest.mark.parametrize(("name", "port"), [("qemu", "serial"), ("firecracker", "vsock")])
def test_a_snapshot_from_before_there_was_a_choice_is_brought_back(tmp_path: Path, name: str, port: str) -> None:
    saved = _saved(_Kind(name=name, agent_port=port))
    saved.write(tmp_path)
    path = tmp_path / "machine.json"
    found = json.loads(path.read_text())
    assert found.pop("agent_port") == port
    path.write_text(json.dumps(found))
    saved.check(tmp_path)


@pytest.mark.alone
@pytest.mark.timeout(TRIES * (_LIMIT_S + 120))
def test_machines_over_vhost_vsock() -> None:
    """In the emulated machine, whose kernel has it."""
    if os.path.exists(DEVICE):
        pytest.skip(f"this host has {DEVICE}: {_INSIDE} runs here")
    need_machines()
    machine_files([])(SandboxSpec("any"))  # what machines are made of: here it is faster, and kept
    tests = [sys.executable, "-W", "ignore", "-m", "pytest", "-q", "-p", "no:cacheprovider", "--durations=0", _INSIDE]
    done = run_in_lab(tests, _LIMIT_S, memory_mb=6000)
    assert done.returncode == 0, f"{done.stdout[-6000:]}\n{done.stderr[-3000:]}"
    assert " passed" in done.stdout
    assert "skipped" not in done.stdout
