"""Whether KVM works is found out by running a guest; that its device opens is no proof."""

from __future__ import annotations

import json
import logging
import os
import platform
import tempfile
from pathlib import Path

import pytest

from agentenv.disk import cache_directory
from agentenv.errors import RuntimeUnavailable
from agentenv.sandbox.runtimes._vm import accelerator
from agentenv.sandbox.runtimes._vm.accelerator import choose, probe_kvm
from agentenv.sandbox.runtimes._vm.diagnosis import Kvm

pytestmark = pytest.mark.skipif(platform.machine() != "x86_64", reason="expected an x86-64 host")


def test_no_device(tmp_path: Path) -> None:
    found = probe_kvm(str(tmp_path / "kvm"), cache=tmp_path)
    assert not found.works
    assert found.detail.startswith(f"no {tmp_path}/kvm")
    assert found.remedy


def test_a_device_this_user_may_not_open() -> None:
    if os.geteuid() != 0:
        pytest.skip("to be another user needs root")
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        directory.chmod(0o755)
        (directory / "kvm").touch(mode=0o600)
        os.seteuid(65534)
        try:
            found = probe_kvm(f"{directory}/kvm", cache=directory)
        finally:
            os.seteuid(0)
    assert not found.works
    assert f"this user may not open {directory}/kvm (it belongs to group root)" in found.detail
    assert "setfacl" in found.remedy


def test_a_device_that_opens_and_is_no_kvm(tmp_path: Path) -> None:
    found = probe_kvm("/dev/null", cache=tmp_path)
    assert not found.works
    assert "exists and opens, but runs no guest: Inappropriate ioctl" in found.detail
    assert json.loads((tmp_path / "kvm.json").read_text())["outcome"].startswith("Inappropriate")


def test_a_guest_that_never_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trial = tmp_path / "trial.py"
    trial.write_text("import time\nwhile True: time.sleep(1)\n")
    monkeypatch.setattr(accelerator, "_TRIAL", trial)
    found = probe_kvm("/dev/null", cache=tmp_path, deadline_s=0.5)
    assert "it had not ended after 0.5 s" in found.detail
    trial.write_text("import resource\nresource.setrlimit(resource.RLIMIT_CPU, (1, 1))\nwhile True: pass\n")
    found = probe_kvm("/dev/null", cache=tmp_path / "another")
    assert "it used up seconds of processor time and had not ended" in found.detail


def test_what_came_of_it_is_remembered_until_the_next_boot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trial = tmp_path / "trial.py"
    trial.write_text(f"open({str(tmp_path / 'ran')!r}, 'a').write('x')\nprint('works')\n")
    monkeypatch.setattr(accelerator, "_TRIAL", trial)
    for _ in range(3):
        assert probe_kvm("/dev/null", cache=tmp_path).works
    assert (tmp_path / "ran").read_text() == "x"
    kept = json.loads((tmp_path / "kvm.json").read_text())
    kept["key"][0] = "another boot"
    (tmp_path / "kvm.json").write_text(json.dumps(kept))
    assert probe_kvm("/dev/null", cache=tmp_path).works
    assert (tmp_path / "ran").read_text() == "xx"


def test_a_failure_is_not_believed_for_long(tmp_path: Path) -> None:
    probe_kvm("/dev/null", cache=tmp_path)
    kept = json.loads((tmp_path / "kvm.json").read_text())
    (tmp_path / "kvm.json").write_text(json.dumps(kept | {"outcome": "an old failure"}))
    assert "an old failure" in probe_kvm("/dev/null", cache=tmp_path).detail
    (tmp_path / "kvm.json").write_text(json.dumps(kept | {"outcome": "an old failure", "time": kept["time"] - 4000}))
    assert "an old failure" not in probe_kvm("/dev/null", cache=tmp_path).detail


@pytest.mark.parametrize("content", [b"", b"\xff", b"[]", b"{}", b'{"key": 1, "outcome": 2}'])
def test_a_damaged_memory_is_none(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "kvm.json").write_bytes(content)
    assert "Inappropriate" in probe_kvm("/dev/null", cache=tmp_path).detail


def test_a_cache_that_cannot_be_written_is_no_failure() -> None:
    assert "Inappropriate" in probe_kvm("/dev/null", cache=Path("/dev/null/cache")).detail


def test_this_hosts_kvm_is_what_choose_says() -> None:
    found = probe_kvm()
    assert choose() == ("kvm" if found.works else "tcg")
    assert choose("tcg") == "tcg"
    if not found.works:
        with pytest.raises(RuntimeUnavailable, match="kvm"):
            choose("kvm")


def test_that_machines_are_emulated_is_said_once_for_each_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("AGENTENV_CACHE", str(tmp_path))
    caplog.set_level(logging.INFO, "agentenv.sandbox")
    for reason in ("no device", "no device", "it may not be opened", "it may not be opened"):
        monkeypatch.setattr(accelerator, "probe_kvm", lambda reason=reason: Kvm(works=False, detail=reason, remedy=""))
        assert choose() == "tcg"
    assert [record.getMessage().rpartition(": ")[2] for record in caplog.records] == [
        "no device",
        "it may not be opened",
    ]


def test_the_cache_is_where_the_user_wants_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGENTENV_CACHE", str(tmp_path))
    assert cache_directory() == tmp_path
    monkeypatch.delenv("AGENTENV_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_directory() == tmp_path / "agentenv"
