"""The same attacks as an ordinary user, who may write no control group: per-process limits stand in, and it is said."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from conformance.attacks_ground import DEBIAN_PYTHON, NOBODY, nobodys_environment

pytestmark = [
    pytest.mark.skipif(
        os.geteuid() != 0, reason="becoming another user needs root; run as that user, the others cover it"
    ),
    pytest.mark.skipif(
        not Path(DEBIAN_PYTHON).exists(), reason="no interpreter outside root's home: apt install python3"
    ),
]


def _as_nobody(home: Path, *arguments: str, timeout_s: float = 200.0) -> subprocess.CompletedProcess[str]:
    for directory in (home, *home.parents[:-2]):
        directory.chmod(directory.stat().st_mode | 0o055)
    os.chown(home, 65534, 65534)
    return subprocess.run(
        [*NOBODY, DEBIAN_PYTHON, *arguments],
        env=nobodys_environment(home),
        cwd=home,
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )


def _same_version() -> bool:
    probe = subprocess.run([DEBIAN_PYTHON, "-c", "import numpy"], env=nobodys_environment(Path("/")), check=False,
                           capture_output=True)  # fmt: skip
    return probe.returncode == 0


@pytest.mark.timeout(240)
@pytest.mark.skipif(not _same_version(), reason="the system's interpreter is of another version than the tests'")
def test_the_whole_suite_holds(tmp_path: Path) -> None:
    result = _as_nobody(tmp_path, "-m", "agentenv.testing.attacks", "bubblewrap")
    lines = result.stdout.splitlines()
    failed = [line for line in lines if line.startswith("NOT HELD")]
    assert failed == []
    assert result.returncode == 0, result.stderr[-2000:]
    assert sum(line.startswith("held ") for line in lines) > 100
    assert "'memory': 'rlimit (per process)'" in lines[0]
    assert "'cpu': 'not enforced'" in lines[0]
    assert "'pids': 'rlimit (per user namespace)'" in lines[0]
