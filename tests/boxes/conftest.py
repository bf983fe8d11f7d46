"""A machine of QEMU's for a module, and stores of its own: what other tests and users keep is not touched."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from agentenv import Sandbox
from machines_ground import need_machines


@pytest.fixture(scope="module")
def ground(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A directory for snapshots and sockets."""
    need_machines()
    path = tmp_path_factory.mktemp("ground")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AGENTENV_DATA", str(path / "data"))
        patch.setenv("XDG_RUNTIME_DIR", str(path))
        yield path


@pytest.fixture(scope="module")
def box(ground: Path) -> Iterator[Sandbox]:
    with Sandbox.create(name="shared", runtime="qemu", memory_mb=256, env={"FROM_CREATE": "1"}) as box:
        yield box
