"""A Python 3.9 with packages, for tests of what runs inside images; made once where that is kept."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

VERSION = "3.9"
_INSTALL_S = 100


def find_interpreter(version: str = VERSION) -> str | None:
    """A Python of that version, wherever such tools as pyenv and uv put one; a shim may lead nowhere."""
    for candidate in _candidates(version):
        said = subprocess.run(
            [candidate, "-I", "-c", "import sys; print('%d.%d' % sys.version_info[:2])"],
            capture_output=True,
            text=True,
            timeout=30,
        )
        if said.returncode == 0 and said.stdout.strip() == version:
            return candidate
    return None


def _candidates(version: str) -> Iterator[str]:
    name = f"python{version}"
    if found := shutil.which(name):
        yield found
    pyenv = Path(os.environ.get("PYENV_ROOT", "~/.pyenv")).expanduser()
    uv = Path(os.environ.get("UV_PYTHON_INSTALL_DIR", "~/.local/share/uv/python")).expanduser()
    for place in [*pyenv.glob(f"versions/{version}.*"), *uv.glob(f"cpython-{version}.*")]:
        if (place / "bin" / name).exists():
            yield str(place / "bin" / name)


def provide(shelf: Path, *packages: str) -> str:
    """An interpreter that has these packages, made on a shelf; skips the test where there can be none."""
    base = find_interpreter()
    if base is None:
        pytest.skip(f"no Python {VERSION} here: pyenv install {VERSION}, or uv python install {VERSION}")
    place = shelf / "-".join([f"python{VERSION}", *(re.sub(r"[=.*]+", "_", package) for package in packages)])
    python = place / "bin/python"
    if not (place / "done").exists():
        shutil.rmtree(place, ignore_errors=True)
        done = subprocess.run([base, "-m", "venv", str(place)], capture_output=True, text=True, timeout=_INSTALL_S)
        if done.returncode == 0:
            argv = [str(python), "-m", "pip", "install", "--quiet", *packages]
            done = subprocess.run(argv, capture_output=True, text=True, timeout=_INSTALL_S)
        if done.returncode != 0:
            pytest.skip(f"{' '.join(packages)} cannot be installed for Python {VERSION}: {done.stderr[-300:]}")
        (place / "done").touch()
    return str(python)
