"""What keeps "auto" from Firecracker, cheapest first. That it is taken is tried where KVM works."""

from __future__ import annotations

from pathlib import Path

import pytest

from agentenv.sandbox.automatic import firecracker_obstacle
from agentenv.sandbox.probe import FindFiles
from agentenv.sandbox.runtimes._vm.accelerator import probe_kvm


def _not_asked() -> FindFiles:
    raise AssertionError("files were looked for")


def test_no_firecracker(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert firecracker_obstacle({}, _not_asked) == "Firecracker: no firecracker on PATH"
    said = firecracker_obstacle({"binary": str(tmp_path / "absent")}, _not_asked)
    assert said == f"Firecracker: {str(tmp_path / 'absent')!r} is not an executable file"


def test_no_kvm(tmp_path: Path) -> None:
    if (found := probe_kvm()).works:
        pytest.skip("expected a host whose KVM does not work")
    assert firecracker_obstacle({"binary": "/bin/true"}, _not_asked, cache=tmp_path) == found.detail
    assert list(tmp_path.iterdir()) == []
