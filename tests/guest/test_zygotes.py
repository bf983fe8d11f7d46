"""How the agent of a machine starts an image's Python: which one, as whom, and what an unfit one says."""

from __future__ import annotations

import json
import pwd
import subprocess
import sys
from importlib.resources import files
from pathlib import Path

import pytest

from agentenv.guest.agent.zygotes import _BOOTSTRAP, find_python, find_tenant
from older_python import find_interpreter

SOURCES = Path(str(files("agentenv"))).parent


@pytest.mark.parametrize("user", ["", "root", "0", "0:5", "root:root"])
def test_root_is_nobody_special(user: str) -> None:
    found = find_tenant(user)
    assert (found.uid, found.gid, found.groups) == (1000, 1000, ())


def test_a_user_of_the_image_is_that_user() -> None:
    nobody = pwd.getpwnam("nobody")
    assert (find_tenant("nobody").uid, find_tenant("nobody").gid) == (nobody.pw_uid, nobody.pw_gid)
    assert (find_tenant("nobody:7").uid, find_tenant("nobody:7").gid) == (nobody.pw_uid, 7)
    assert (find_tenant("123456").uid, find_tenant("123456").gid) == (123456, 0), "as docker does"
    with pytest.raises(OSError, match="no user 'ghost-of-nobody'"):
        find_tenant("ghost-of-nobody")


def test_the_first_python_of_the_path(tmp_path: Path) -> None:
    for name in ("not-executable", "first", "second"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "python3").touch(0o644 if name == "not-executable" else 0o755)
    path = f"relative:{tmp_path}/nothing:{tmp_path}/not-executable:{tmp_path}/first:{tmp_path}/second"
    assert find_python(path) == f"{tmp_path}/first/python3"
    assert find_python("") == find_python(f"{tmp_path}/nothing")


def start(python: str, directory: Path) -> subprocess.CompletedProcess[str]:
    config = json.dumps({"site": [str(SOURCES)], "path": []})
    argv = [python, "-s", "-c", _BOOTSTRAP, config]
    return subprocess.run(argv, capture_output=True, text=True, timeout=60, cwd=directory, env={"LC_ALL": "C.UTF-8"})


def test_nothing_is_imported_from_where_it_starts(tmp_path: Path) -> None:
    for name in ("json", "numpy", "agentenv", "signal"):
        (tmp_path / f"{name}.py").write_text(f"raise SystemExit('{name} of a stranger')\n")
    said = start(sys.executable, tmp_path).stderr
    assert said.endswith("KeyError: 'fd'\n"), "it came as far as to ask for its socket"


@pytest.mark.parametrize("version", ["3.6", "3.7", "3.8"])
def test_a_python_that_is_too_old_says_so(tmp_path: Path, version: str) -> None:
    python = find_interpreter(version)
    if python is None:
        pytest.skip(f"no Python {version} here: pyenv install {version}")
    done = start(python, tmp_path)
    assert done.returncode == 1
    assert done.stderr.startswith(f"expected Python 3.9 or newer in the image, found {version}."), done.stderr
    assert done.stderr.count("\n") == 1
