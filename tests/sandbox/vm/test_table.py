"""What a monitor's table makes of a machine, and what of it is part of a snapshot."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from agentenv.errors import RuntimeUnavailable
from agentenv.sandbox.runtimes._vm.machine import Drive, MachineSpec, Rate
from agentenv.sandbox.runtimes._vm.table import MachineTable, unlimited
from machines_ground import make_drive

_MACHINE = MachineSpec("one", Path("k"), None, (Drive("/root"), Drive("own", readonly=False)), 256, 1)


def _table(**settings: Any) -> MachineTable:
    return MachineTable.of(settings)


def test_nothing_said_changes_nothing() -> None:
    assert MachineTable.of({}).equip(_MACHINE, 128) == _MACHINE
    assert list(MachineTable.of({}).places(_MACHINE)) == []


def test_a_machine_gets_what_was_said(tmp_path: Path) -> None:
    path = make_drive(tmp_path)
    table = _table(
        boot_args="quiet",
        drives=[{"path": str(path), "mount": "/data", "readonly": True}],
        disk_mb_per_s=3,
        disk_ops_per_s=100,
        balloon_mb=64,
        huge_pages="none",
    )
    machine = table.equip(_MACHINE, 128)
    rate = Rate(3 << 20, 100)
    assert [drive.rate for drive in machine.drives] == [rate] * 3
    assert machine.drives[2].path == str(path)
    assert machine.drives[2].readonly
    assert (machine.boot_args, machine.balloon_mb, machine.huge_pages) == ("quiet", 64, False)
    assert list(table.places(machine)) == [{"device": "/dev/vdc", "kind": "ext4", "places": [["", "/data"]]}]
    assert [drive.rate for drive in unlimited(machine).drives] == [Rate()] * 3


def test_what_is_on_a_drive_is_part_of_a_snapshot_and_limits_are_not(tmp_path: Path) -> None:
    path = make_drive(tmp_path)
    drives = [{"path": str(path), "mount": "/data"}]
    first = _table(drives=drives).parts()
    assert _table(drives=drives, disk_mb_per_s=3).parts() == first
    assert _table(drives=[{"path": str(path), "mount": "/other"}]).parts() != first
    for change in ({"boot_args": "x"}, {"balloon_mb": 1}, {"huge_pages": "2M"}):
        assert _table(drives=drives, **change).parts() != first
    os.utime(path, ns=(1, 1))
    assert _table(drives=drives).parts() != first


def test_a_squashfs_is_told_from_an_ext4(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"hsqs" + bytes(2044))  # its superblock begins so; nobody mounts it here
    assert _table(drives=[{"path": str(tmp_path / "a"), "mount": "/a"}]).drives[0].kind == "squashfs"


@pytest.mark.parametrize(
    ("content", "words"), [(None, "can be read: No such file"), (b"", "it is neither"), (bytes(4096), "it is neither")]
)
def test_what_cannot_be_mounted_is_refused(tmp_path: Path, content: bytes | None, words: str) -> None:
    if content is not None:
        (tmp_path / "x.img").write_bytes(content)
    with pytest.raises(RuntimeUnavailable, match=words) as caught:
        _table(drives=[{"path": str(tmp_path / "x.img"), "mount": "/a"}])
    assert caught.value.remedy


def test_a_balloon_must_leave_enough() -> None:
    table = _table(balloon_mb=129)
    with pytest.raises(RuntimeUnavailable, match="leaves 127 MiB, and a machine needs 128"):
        table.equip(_MACHINE, 128)
    assert _table(balloon_mb=128).equip(_MACHINE, 128).balloon_mb == 128


@pytest.mark.timeout(20)
def test_a_pipe_is_no_drive_and_nobody_waits_for_its_writer(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(RuntimeUnavailable, match="expected an ext4 or squashfs image, it is neither"):
        _table(drives=[{"path": str(tmp_path / "pipe"), "mount": "/data"}])
