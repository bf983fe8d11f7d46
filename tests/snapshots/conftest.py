"""A store of its own for each test, and a small disk."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from agentenv.snapshots.store import SnapshotStore


@pytest.fixture
def store(tmp_path: Path) -> SnapshotStore:
    return SnapshotStore(tmp_path / "store")


@pytest.fixture(autouse=True)
def _private_default(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No test touches the user's own store."""
    monkeypatch.setenv("AGENTENV_DATA", str(tmp_path / "default"))


@pytest.fixture
def fast_path() -> Iterator[Path]:
    """An empty directory, in memory where there is such a place: hundreds of snapshots are synced there."""
    shared = "/dev/shm"
    with tempfile.TemporaryDirectory(dir=shared if os.access(shared, os.W_OK) else None) as name:
        yield Path(name)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 2 MiB."""
    if os.geteuid() != 0:
        pytest.skip("a small file system cannot be mounted: be root")
    place = tmp_path / "small"
    place.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "none", str(place)], check=False)
    if mounted.returncode != 0:
        pytest.skip("a small file system cannot be mounted here")
    yield place
    subprocess.run(["umount", str(place)], check=True)
