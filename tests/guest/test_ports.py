"""The agent's port, where there is vsock: it is the host's, whatever else runs in the machine."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from importlib.resources import files
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
_LIMIT_S = 240
_PROGRAMS = {"qemu-system-x86_64": "qemu-system-x86", "busybox": "busybox-static", "dpkg-deb": "dpkg"}


@pytest.mark.timeout(_LIMIT_S + 60)
def test_a_peer_in_the_machine_is_not_the_host() -> None:
    """As an ordinary user over the kernel's loopback; that the host is heard every machine of Firecracker needs."""
    for program, package in _PROGRAMS.items():
        if shutil.which(program) is None:
            pytest.skip(f"{program} is not installed: apt-get install --no-install-recommends {package}")
    cache = [f"--env=AGENTENV_CACHE={os.environ['AGENTENV_CACHE']}"] if "AGENTENV_CACHE" in os.environ else []
    kvmlab = [sys.executable, "tools/kvmlab", "run", f"--timeout={_LIMIT_S}", *cache]
    probe = [sys.executable, "-I", "-S", "tests/guest/vsock_probe.py", str(Path(str(files("agentenv"))).parent)]
    done = subprocess.run(
        [*kvmlab, "--", *probe], cwd=ROOT, capture_output=True, text=True, timeout=_LIMIT_S + 30, check=False
    )
    if "could not" in done.stderr:
        pytest.skip(done.stderr)
    assert done.returncode == 0, f"{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    found = json.loads(done.stdout)
    assert found == {"said": ["connected, closed"] * 3, "welcomed": [], "descriptors left": 0}
