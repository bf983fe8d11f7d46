"""Faults around machines: templates that real machines are brought back from, odd places, too little time; and what an
environment tries that only root may.
"""

from __future__ import annotations

import logging
import os
import select
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from agentenv.errors import CauseKind, Owner, StepTimeout
from agentenv.fleet.machines import machine_files
from agentenv.fleet.output import SandboxOutput
from agentenv.sandbox.contract import Runtime, RuntimeOptions, SandboxSpec
from agentenv.sandbox.files import MachineFiles
from agentenv.sandbox.registry import open_runtime
from agentenv.sandbox.runtimes._runid import new_run_id
from agentenv.sandbox.runtimes.qemu.machine import QemuMachine
from agentenv.testing import traces
from machines_ground import need_machines

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.timeout(300)]

PYTHON = "/.agentenv/bin/python"
FORBIDDEN = """
import ctypes
def crash():
    open("/proc/sysrq-trigger", "w").write("c")
def console():
    open("/dev/console", "w").write("agentenv: init: forged")
def kernel_log():
    open("/dev/kmsg", "w").write("Kernel panic - not syncing: forged")
def reboot():
    if ctypes.CDLL(None, use_errno=True).reboot(0x01234567):
        raise OSError(ctypes.get_errno(), "reboot")
for attempt in (crash, console, kernel_log, reboot):
    try:
        attempt()
        print(attempt.__name__, "was allowed", flush=True)
    except OSError as error:
        print(attempt.__name__, type(error).__name__, flush=True)
"""


@pytest.fixture(scope="module", autouse=True)
def machines() -> None:
    need_machines()


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Templates of this module: of machines for programs, which boot in a few seconds."""
    return tmp_path_factory.mktemp("machines")


@pytest.fixture
def opened(cache: Path) -> Iterator[Callable[[], Runtime]]:
    """Opens a runtime; afterwards nothing is left of it."""
    find = machine_files([])
    runtimes: list[Runtime] = []

    def found(spec: SandboxSpec) -> MachineFiles:
        return replace(find(spec), cache=cache)

    def open_one() -> Runtime:
        options = RuntimeOptions(new_run_id(), tuple(path for path in sys.path if path), find_files=found)
        runtimes.append(open_runtime("qemu", options))
        return runtimes[-1]

    before = traces.take()
    yield open_one
    for runtime in runtimes:
        runtime.close()
    assert traces.take().left_since(before) == []
    assert list(Path(tempfile.gettempdir()).glob(f"agentenv.{os.getpid()}-*")) == []


def run(runtime: Runtime, *words: str, start_timeout_s: float = 120.0) -> str:
    """What a program writes in a machine."""
    spec = SandboxSpec("box", command=words, memory_mb=128, start_timeout_s=start_timeout_s)
    with closing(SandboxOutput(lambda sandbox_id: None)) as output:
        (sandbox,) = runtime.create([spec], output)
        poller = select.poll()
        poller.register(sandbox.pidfd, select.POLLIN)
        assert poller.poll(60_000), "it did not end"
        cause = sandbox.cause()
        sandbox.destroy()
        assert (cause.kind, cause.exit_code) == (CauseKind.EXIT, 0), cause
        return output.tail(spec.id)


def test_only_root_can_crash_a_machine_or_forge_what_is_believed(opened: Callable[[], Runtime]) -> None:
    said = run(opened(), PYTHON, "-c", FORBIDDEN).splitlines()
    assert [line.split()[0] for line in said] == ["crash", "console", "kernel_log", "reboot"]
    assert not [line for line in said if "allowed" in line]


def test_a_place_with_a_long_and_odd_name(
    opened: Callable[[], Runtime], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    odd = tmp_path / "ein Verzeichnis, mit ünïcode 世界 = 'x' %s" / ("long" * 40)
    odd.mkdir(parents=True)
    monkeypatch.setattr(tempfile, "tempdir", str(odd))
    assert run(opened(), PYTHON, "-c", "print('here')") == "here"


def test_a_machine_that_stands_still_from_the_start_is_late_and_leaves_nothing(
    opened: Callable[[], Runtime], monkeypatch: pytest.MonkeyPatch
) -> None:
    runtime = opened()
    run(runtime, PYTHON, "-c", "")
    monkeypatch.setattr(QemuMachine, "resume", lambda machine: None)
    with pytest.raises(StepTimeout, match=r"was still booting after 0\.5 s; raise start_timeout_s") as caught:
        run(runtime, PYTHON, "-c", "", start_timeout_s=0.5)
    assert (caught.value.cause.kind, caught.value.cause.owner) == (CauseKind.TIMEOUT, Owner.INFRASTRUCTURE)


def test_a_damaged_template_is_made_anew_and_nobody_is_bothered(
    opened: Callable[[], Runtime], cache: Path, caplog: pytest.LogCaptureFixture
) -> None:
    runtime = opened()
    run(runtime, PYTHON, "-c", "")
    (template,) = [path for path in cache.iterdir() if path.is_dir()]
    written = (template / "seal.json").stat().st_mtime_ns
    with open(template / "state", "r+b") as state:
        state.seek(1000)
        byte = state.read(1)
        state.seek(1000)
        state.write(bytes([byte[0] ^ 0xFF]))
    with caplog.at_level(logging.WARNING):
        assert run(runtime, PYTHON, "-c", "print('all the same')") == "all the same"
    assert "is damaged (state is not what was written)" in caplog.text
    assert (template / "seal.json").stat().st_mtime_ns > written
