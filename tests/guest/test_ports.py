"""The agent's port, where there is vsock: it is the host's, whatever else runs in the machine."""

from __future__ import annotations

import json
import shutil
import sys
from importlib.resources import files
from pathlib import Path

import pytest

from lab_ground import TRIES, run_in_lab

_LIMIT_S = 240
_PROGRAMS = {"qemu-system-x86_64": "qemu-system-x86", "busybox": "busybox-static", "dpkg-deb": "dpkg"}


@pytest.mark.timeout(TRIES * (_LIMIT_S + 60))
def test_a_peer_in_the_machine_is_not_the_host() -> None:
    """As an ordinary user over the kernel's loopback; that the host is heard every machine of Firecracker needs."""
    for program, package in _PROGRAMS.items():
        if shutil.which(program) is None:
            pytest.skip(f"{program} is not installed: apt-get install --no-install-recommends {package}")
    probe = [sys.executable, "-I", "-S", "tests/guest/vsock_probe.py", str(Path(str(files("agentenv"))).parent)]
    done = run_in_lab(probe, _LIMIT_S)
    if "could not" in done.stderr:
        pytest.skip(done.stderr)
    assert done.returncode == 0, f"{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    found = json.loads(done.stdout)
    assert found == {"said": ["connected, closed"] * 3, "welcomed": [], "descriptors left": 0}
