"""The same command line as an ordinary user, also where the suite runs as root."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy
import pytest

import agentenv

NOBODY = 65534


@pytest.fixture
def unprivileged(tmp_path: Path) -> list[str]:
    """The beginning of a command line that runs agentenv as a user without rights, in a directory of his own."""
    paths = [Path(module.__file__ or "").parents[1] for module in (agentenv, numpy)]
    variables = [f"PYTHONPATH={':'.join(map(str, paths))}", f"HOME={tmp_path}", "PYTHONDONTWRITEBYTECODE=1"]
    prefix = ["env", "-i", "PATH=/usr/bin:/bin", *variables]
    if os.geteuid() == 0:
        prefix = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups", *prefix]
        os.chown(tmp_path, NOBODY, NOBODY)
        for above in tmp_path.parents:
            mode = above.stat().st_mode
            if mode & 0o001:
                break  # from here on it is the system's, whatever the base of the suite is
            above.chmod(mode | 0o011)
    version = f"import sys, numpy, pydantic, agentenv; sys.exit(sys.version_info[:2] != {sys.version_info[:2]})"
    # The suite's own interpreter may lie in root's home.
    for python in (sys.executable, "/usr/bin/python3", "/usr/local/bin/python3"):
        try:
            found = subprocess.run([*prefix, python, "-c", version], cwd="/", capture_output=True, timeout=60)
        except FileNotFoundError:
            pytest.skip("no setpriv here: apt-get install util-linux")
        if found.returncode == 0:
            return [*prefix, python, "-m", "agentenv.cli"]
    pytest.skip("no Python of this version that an ordinary user may execute together with these packages")


def test_runs_isolated_and_says_what_nothing_enforces(unprivileged: list[str], tmp_path: Path) -> None:
    project = tmp_path / "project"
    project.mkdir()
    if os.geteuid() == 0:
        os.chown(project, NOBODY, NOBODY)
    (project / "c.toml").write_text('[[environments]]\nid = "a"\ncount = 3\nepisodes = 2\n')
    done = subprocess.run(
        [*unprivileged, "run", "c.toml", "--json"], cwd=project, capture_output=True, text=True, timeout=90
    )
    assert done.returncode == 0, done.stderr
    summary = json.loads(done.stdout)
    assert summary["isolation"] == "sandbox"
    assert summary["episodes"] == 6
    gaps = [name for name, how in summary["limits"].items() if how == "not enforced"]
    assert "network" not in gaps
    for name in gaps:
        assert f"not enforced here: {', '.join(gaps)}" in done.stderr, name


def test_runtimes_name_the_remedy(unprivileged: list[str], tmp_path: Path) -> None:
    done = subprocess.run(
        [*unprivileged, "runtimes", "--json"], cwd=tmp_path, capture_output=True, text=True, timeout=90
    )
    assert done.returncode == 0, done.stderr
    found = {r["name"]: r for r in json.loads(done.stdout)["runtimes"]}["bubblewrap"]
    assert found["works"], found
    if "not enforced" in found["limits"].values():
        assert found["remedy"]
