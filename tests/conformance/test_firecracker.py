"""Firecracker, and control groups of version 2, in the emulated machine that has both: a part of it, and all of it."""

from __future__ import annotations

import shutil
import sys

import pytest

from agentenv.sandbox.runtimes._vm.accelerator import probe_kvm
from lab_ground import TRIES, run_in_lab
from machines_ground import need_machines

_PART_S, _ALL_S = 900, 7200
_CGROUPS = ("tests/sandbox/test_cgroup.py", "tests/sandbox/test_cgroup_runs.py")
_INSIDE = "tests/conformance/test_firecracker_inside.py"
_PART = (
    f"{_INSIDE}::test_whoever_is_killed_it_comes_back_and_equals_gymnasium[jailed]",
    f"{_INSIDE}::test_the_cause_of_a_killed_monitor_is_not_the_environments[plain]",
    "tests/sandbox/test_cgroup.py",
)
_PYTEST = f"{sys.executable} -W ignore -m pytest -q -p no:cacheprovider -o timeout=800"


def _command(tests: tuple[str, ...]) -> str:
    return f"{_PYTEST} --durations=0 " + " ".join(f"'{one}'" for one in tests)


def _run(script: str, limit_s: int) -> str:
    """What a script says in the emulated machine."""
    done = run_in_lab(["sh", "-c", script], limit_s, memory_mb=6000)
    assert done.returncode == 0, f"{done.stdout[-6000:]}\n{done.stderr[-3000:]}"
    left_out = [line for line in done.stdout.splitlines() if line.startswith("SKIPPED") and "firecracker" in line]
    assert left_out == []
    return done.stdout


@pytest.mark.alone
@pytest.mark.timeout(TRIES * (_PART_S + 60))
def test_a_part_of_it() -> None:
    if probe_kvm().works and shutil.which("firecracker"):
        pytest.skip("KVM and Firecracker are here: nothing has to be emulated")
    need_machines()
    said = _run(f"{sys.executable} -W ignore tests/lab/firecracker.py play_example && {_command(_PART)}", _PART_S)
    assert "play_example: {'cartpole': 3, 'gridworld': 1}" in said
    assert " passed" in said


@pytest.mark.lab
@pytest.mark.timeout(TRIES * (_ALL_S + 60))
def test_all_of_it() -> None:
    need_machines()
    machines = _command(("tests/sandbox/vm/test_firecracker_machine.py", _INSIDE, *_CGROUPS))
    by_hand = " && ".join(f"{sys.executable} -W ignore tests/lab/{name}.py" for name in ("firecracker", "clock"))
    said = _run(f"{by_hand} && {machines}", _ALL_S)
    assert "kill_one: one of two was killed, and nothing differs" in said
    assert "firecracker, stand_still: its clock is the host's" in said
    assert " passed" in said
