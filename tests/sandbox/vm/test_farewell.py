"""What a command leaves behind arrives whole, however long that takes."""

from __future__ import annotations

import sys
import time
from contextlib import closing
from pathlib import Path

import pytest

from agentenv.fleet.machines import machine_files
from agentenv.fleet.output import SandboxOutput
from agentenv.sandbox.contract import RuntimeOptions, SandboxSpec
from agentenv.sandbox.registry import open_runtime
from agentenv.sandbox.runtimes._runid import new_run_id
from agentenv.testing import traces
from machines_ground import need_machines

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.timeout(120)]

MB = 80
WRITE = f"""
with open("/out/big", "wb") as file:
    for number in range({MB}):
        file.write(bytes([number]) * (1 << 20))
open("/out/last", "w").write("whole")
"""


def test_more_than_goes_out_in_a_moment(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Some seconds of it, of an emulated machine; the machine waits one for output that nobody else can end."""
    need_machines()
    before = traces.take()
    options = RuntimeOptions(
        new_run_id(), tuple(path for path in sys.path if path), find_files=machine_files([]), preload=()
    )
    out = tmp_path / "out"
    out.mkdir()
    spec = SandboxSpec(
        "one", command=("python3", "-c", WRITE), out=out, disk_mb=MB + 20, memory_mb=256, start_timeout_s=120.0
    )
    with (
        closing(open_runtime("qemu", options)) as runtime,
        closing(SandboxOutput(lambda sandbox_id: None)) as output,
    ):
        (sandbox,) = runtime.create([spec], output)
        deadline = time.monotonic() + 60
        while sandbox.alive() and time.monotonic() < deadline:
            sandbox.await_end(1.0)
        assert sandbox.cause().exit_code == 0
        sandbox.destroy()
    assert (out / "last").read_text() == "whole"
    with open(out / "big", "rb") as file:
        assert all(file.read(1 << 20) == bytes([number]) * (1 << 20) for number in range(MB))
        assert file.read() == b""
    assert not [record.getMessage() for record in caplog.records if record.levelname != "INFO"]
    assert traces.take().left_since(before) == []
