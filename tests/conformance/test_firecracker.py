"""Firecracker, and control groups of version 2, in the emulated machine that has both."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from machines_ground import need_machines

ROOT = Path(__file__).resolve().parents[2]
_LAB_S = 900
_CGROUP_TESTS = ("tests/sandbox/test_cgroup.py", "tests/sandbox/test_cgroup_runs.py")


@pytest.mark.lab
@pytest.mark.timeout(_LAB_S + 60)
def test_firecracker_and_control_groups_of_version_2() -> None:
    need_machines()
    python = f"{sys.executable} -W ignore"
    script = f"{python} tests/lab/firecracker.py && {python} -m pytest -q -p no:cacheprovider {' '.join(_CGROUP_TESTS)}"
    cache = [f"--env=AGENTENV_CACHE={os.environ['AGENTENV_CACHE']}"] if "AGENTENV_CACHE" in os.environ else []
    command = [sys.executable, "tools/kvmlab", "run", f"--timeout={_LAB_S}", "--memory=6000", *cache]
    done = subprocess.run(
        [*command, "--", "sh", "-c", script], cwd=ROOT, capture_output=True, text=True, timeout=_LAB_S + 30, check=False
    )
    assert done.returncode == 0, f"{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    assert "kill_one: one of two was killed, and nothing differs" in done.stdout
    assert " passed" in done.stdout
