"""Kernels looked into, memory copied without its empty pages, snapshots that are there whole or not at all."""

from __future__ import annotations

import dataclasses
import io
import json
import os
import struct
from pathlib import Path

import pytest

from agentenv.errors import RuntimeUnavailable
from agentenv.sandbox.runtimes._vm import files
from agentenv.sandbox.runtimes._vm.files import (
    check_kernel,
    copy_memory,
    find_program,
    make_holes,
    read_version,
    receive_memory,
    written_whole,
)
from agentenv.sandbox.runtimes._vm.saved import Saved
from sandbox.vm.assets import Assets

_MIB = 1 << 20


def _elf(*, machine: int = 62, note: int | None = 18, name: bytes = b"Xen\0") -> bytes:
    """The head of an ELF image with one segment of notes, which has this one behind another."""
    notes = struct.pack("<III8s4s", 5, 4, 1, b"Linux\0\0\0", b"\0\0\0\0")
    if note is not None:
        notes += struct.pack("<III", len(name), 4, note) + name.ljust(len(name) + 3 & ~3, b"\0") + b"\0\0\0\1"
    header = b"\x7fELF\x02\x01\x01".ljust(16, b"\0")
    header += struct.pack("<HHIQQQIHHHHHH", 2, machine, 1, 0, 64, 0, 0, 64, 56, 1, 0, 0, 0)
    return header + struct.pack("<IIQQQQQQ", 4, 0, 120, 0, 0, len(notes), len(notes), 4) + notes


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (_elf(note=None), "no PVH entry"),
        (_elf(note=17), "no PVH entry"),
        (_elf(name=b"Sun\0"), "no PVH entry"),
        (_elf(machine=183), "expected an ELF image for x86-64"),
        (b"MZ".ljust(0x202, b"\0") + b"HdrS".ljust(100, b"\0"), r"compressed one \(bzImage\)"),
        (b"\x7fELF\x02\x01", "expected a readable kernel image"),
        (_elf()[:70], "no PVH entry"),
        (b"", "expected an ELF image"),
        (b"#!/bin/sh\n", "expected an ELF image"),
    ],
)
def test_what_is_no_kernel_is_told_apart(tmp_path: Path, content: bytes, words: str) -> None:
    path = tmp_path / "vmlinux"
    path.write_bytes(content)
    with pytest.raises(RuntimeUnavailable, match=words) as caught:
        check_kernel(path)
    assert caught.value.remedy


def test_a_kernel_with_an_entry_passes(tmp_path: Path, machine_assets: Assets) -> None:
    path = tmp_path / "vmlinux"
    path.write_bytes(_elf())
    check_kernel(path)
    check_kernel(machine_assets.kernel)


def test_an_absent_kernel_and_a_directory(tmp_path: Path) -> None:
    for path in (tmp_path / "absent", tmp_path):
        with pytest.raises(RuntimeUnavailable, match="expected a readable kernel image"):
            check_kernel(path)


def _memory(size: int, parts: dict[int, bytes]) -> int:
    fd = os.memfd_create("test")
    os.ftruncate(fd, size)
    for at, data in parts.items():
        os.pwrite(fd, data, at)
    return fd


_PARTS = {0: b"first", 5 * _MIB - 3: b"across", 7 * _MIB: bytes(2 * _MIB), 16 * _MIB - 1: b"z"}


def test_copied_memory_is_the_same_and_small(tmp_path: Path) -> None:
    source = _memory(16 * _MIB, _PARTS)
    target = os.open(tmp_path / "memory", os.O_RDWR | os.O_CREAT)
    try:
        copy_memory(source, target)
        assert os.pread(source, 17 * _MIB, 0) == os.pread(target, 17 * _MIB, 0)
        assert os.fstat(target).st_blocks * 512 < 2 * _MIB
    finally:
        os.close(source)
        os.close(target)


def test_received_memory_is_the_same_and_small(tmp_path: Path) -> None:
    source = _memory(16 * _MIB, _PARTS)
    target = os.open(tmp_path / "memory", os.O_RDWR | os.O_CREAT)
    try:
        os.ftruncate(target, 16 * _MIB)
        stream = io.BytesIO(os.pread(source, 16 * _MIB, 0))
        receive_memory(lambda count: stream.read(min(count, 100_001)), target, 0, 16 * _MIB)
        assert os.pread(source, 17 * _MIB, 0) == os.pread(target, 17 * _MIB, 0)
        assert os.fstat(target).st_blocks * 512 < 2 * _MIB
        with pytest.raises(ConnectionError, match="ended after 3 of 10 bytes"):
            receive_memory(io.BytesIO(b"abc").read, target, 0, 10)
    finally:
        os.close(source)
        os.close(target)


def test_holes_are_made_where_nothing_is(tmp_path: Path) -> None:
    path = tmp_path / "memory"
    path.write_bytes(b"a" + bytes(4 * _MIB) + b"b")
    before = path.read_bytes()
    fd = os.open(path, os.O_RDWR)
    make_holes(fd)
    os.close(fd)
    assert path.read_bytes() == before
    assert path.stat().st_blocks * 512 < _MIB


def test_files_appear_together(tmp_path: Path) -> None:
    with written_whole(tmp_path) as partial:
        (partial / "machine.json").write_text("{}")
        (partial / "memory").write_text("m")
        assert not (tmp_path / "memory").exists()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["machine.json", "memory"]


@pytest.mark.parametrize(("durable", "synced"), [(True, 2), (False, 0)])
def test_only_what_is_to_last_waits_for_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, durable: bool, synced: int
) -> None:
    calls: list[Path] = []
    monkeypatch.setattr(files, "sync", calls.append)
    with written_whole(tmp_path, durable=durable) as partial:
        (partial / "memory").write_text("m")
    assert len(calls) == synced
    assert (tmp_path / "memory").read_text() == "m"


def test_a_failure_leaves_nothing(tmp_path: Path) -> None:
    whole = written_whole(tmp_path)
    partial = whole.__enter__()
    (partial / "memory").write_text("m")
    assert not whole.__exit__(KeyboardInterrupt, KeyboardInterrupt(), None)
    assert not list(tmp_path.iterdir())


def test_a_snapshot_is_not_written_over_another(tmp_path: Path) -> None:
    (tmp_path / "memory").write_text("another's")
    with pytest.raises(RuntimeUnavailable, match="expected an existing, empty directory"), written_whole(tmp_path):
        pass
    with pytest.raises(RuntimeUnavailable, match="expected an existing, empty"), written_whole(tmp_path / "absent"):
        pass
    assert (tmp_path / "memory").read_text() == "another's"


_SAVED = Saved("qemu", "7.2.22", "tcg", "a processor", 256, 1, ("ro", "rw"), ())


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"hypervisor": "firecracker"}, "its hypervisor is 'qemu', here 'firecracker'"),
        ({"version": "8.0"}, "its version is '7.2.22', here '8.0'"),
        ({"processor": "another", "memory_mb": 1}, "(?s)its processor is.*its memory_mb is 256, here 1"),
        ({"drives": ("rw", "rw")}, "its drives is"),
    ],
)
def test_what_differs_is_said(tmp_path: Path, change: dict[str, object], words: str) -> None:
    _SAVED.write(tmp_path)
    _SAVED.check(tmp_path)
    with pytest.raises(RuntimeUnavailable, match=words):
        dataclasses.replace(_SAVED, **change).check(tmp_path)


@pytest.mark.parametrize(
    "content", [None, b"", b"\xff", b"[]", b"[" * 60_000, b'{"format": 1', json.dumps({"format": 1}).encode()]
)
def test_what_is_no_snapshot_is_refused(tmp_path: Path, content: bytes | None) -> None:
    if content is not None:
        (tmp_path / "machine.json").write_bytes(content)
    with pytest.raises(RuntimeUnavailable, match=r"is not a snapshot|cannot be brought back"):
        _SAVED.check(tmp_path)


def test_programs_are_found_or_said_to_be_missing() -> None:
    assert find_program(None, ("no-such-program", "sh"), "a shell", "install one").endswith("/sh")
    assert find_program("/bin/sh", ("x",), "a shell", "install one") == "/bin/sh"
    with pytest.raises(RuntimeUnavailable, match=r"(?s)a shell: no no-such-program on PATH.*remedy: install one"):
        find_program(None, ("no-such-program",), "a shell", "install one")
    with pytest.raises(RuntimeUnavailable, match="not an executable file"):
        find_program("/etc/passwd", ("x",), "a shell", "install one")


def test_a_program_that_says_no_text_tells_no_version(tmp_path: Path) -> None:
    program = tmp_path / "program"
    program.write_text("#!/bin/sh\nprintf '\\377\\376 nothing'\n")
    program.chmod(0o755)
    with pytest.raises(RuntimeUnavailable, match=r"expected .* to tell a version of QEMU, it said .* nothing"):
        read_version(str(program), "QEMU", r"version (\d+\.\d+\S*)", (6, 2), "install one")
