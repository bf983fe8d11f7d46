"""The host's clock is set while machines live: what is collected by its age just as a machine is started, and a clock
inside that stood still meanwhile. tests/lab/clock.py really sets one, where that may be done.
"""

from __future__ import annotations

import os
import sys
import time
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from agentenv import AgentENV
from agentenv.fleet.machines import machine_files
from agentenv.fleet.output import SandboxOutput
from agentenv.images.collect import collect
from agentenv.images.drives import scratch_template
from agentenv.images.store import Store
from agentenv.sandbox.contract import RuntimeOptions, SandboxSpec
from agentenv.sandbox.files import MachineFiles
from agentenv.sandbox.registry import open_runtime
from agentenv.sandbox.runtimes._runid import new_run_id
from agentenv.testing import traces
from machines_ground import need_machines

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.timeout(300)]

HOUR_S = 3600
NEAR_S = 60.0


@pytest.fixture(scope="module", autouse=True)
def machines() -> None:
    need_machines()


def test_what_is_collected_before_it_is_held_is_made_again(tmp_path: Path) -> None:
    """Asked for just now, and by a clock that leapt forward unused for hours."""
    store = Store(tmp_path / "cache")
    find = machine_files([])
    found: list[MachineFiles] = []

    def find_files(spec: SandboxSpec) -> MachineFiles:
        scratch = scratch_template(64, store)
        if not found:
            # A clock that is two hours further is one by which the store is two hours older.
            for path in (store.root / "objects").iterdir():
                os.utime(path, (time.time() - 2 * HOUR_S,) * 2)
            assert collect(store).removed == 1
            assert not scratch.exists()
        found.append(replace(find(spec), scratch=scratch, cache=tmp_path / "machines"))
        return found[-1]

    before = traces.take()
    options = RuntimeOptions(new_run_id(), tuple(path for path in sys.path if path), find_files=find_files)
    with (
        closing(open_runtime("qemu", options)) as runtime,
        closing(SandboxOutput(lambda sandbox_id: None)) as output,
    ):
        (sandbox,) = runtime.create([SandboxSpec("box", memory_mb=128, start_timeout_s=120.0)], output)
        assert sandbox.alive()
        # What is held stays, however old.
        os.utime(found[-1].scratch.parent, (0, 0))
        assert collect(store).removed == 0
        sandbox.destroy()
    assert len(found) == 2
    assert traces.take().left_since(before) == []


def test_files_that_were_collected_are_found_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where they had been found before by the same run."""
    find = machine_files([])
    spec = SandboxSpec("box", disk_mb=64)
    first = find(spec)
    gone = tmp_path / "gone"
    assert find(spec) is first
    made: list[Path] = []
    monkeypatch.setattr("agentenv.fleet.machines.scratch_template", lambda *_: made.append(gone) or gone)
    other = replace(spec, disk_mb=80)
    assert find(other).scratch == gone
    find(other)
    assert made == [gone, gone]


def test_the_clock_of_a_machine_is_the_hosts_whenever_it_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """All of the host's side reads its clock here, and no deadline by it."""
    real, ahead = time.time, 0.0
    monkeypatch.setattr(time, "time", lambda: real() + ahead)
    monkeypatch.setattr(time, "time_ns", lambda: int((real() + ahead) * 1e9))
    keys = {"memory_mb": 192, "disk_mb": 64, "start_timeout_s": 120.0}
    with closing(AgentENV.from_env("frail:Itself", runtime="qemu", **keys)) as env:
        env.reset(seed=1)
        moment = env.snapshot(how="machine")
        for leap in (7 * HOUR_S, -12 * HOUR_S):
            bench = env._fleet.sandboxes[0].workbench
            assert bench is not None
            bench.pause()
            ahead = leap
            bench.resume()
            assert abs(env.call("who")["time"] - time.time()) < NEAR_S
            ahead = leap / 2
            env.restore(moment)
            assert abs(env.call("who")["time"] - time.time()) < NEAR_S
