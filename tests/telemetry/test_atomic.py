"""Replacing a file: the new content or the old, nothing else, nothing beside it."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from agentenv.telemetry.atomic import write_atomic


def test_new_and_replaced(tmp_path: Path) -> None:
    path = tmp_path / "summary.json"
    for content in (b"first", b"second"):
        write_atomic(path, content)
        assert path.read_bytes() == content
    assert [found.name for found in tmp_path.iterdir()] == ["summary.json"]
    assert stat.S_IMODE(path.stat().st_mode) == 0o644


def test_an_error_leaves_nothing_behind(tmp_path: Path) -> None:
    path = tmp_path / "summary.json"
    (path / "occupied").mkdir(parents=True)
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(IsADirectoryError, match="directory") as caught:
        write_atomic(path, b"content")
    assert caught.value.filename == str(path), "not the temporary file's name"
    assert [found.name for found in tmp_path.iterdir()] == ["summary.json"]
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_missing_directory_is_said(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError) as caught:
        write_atomic(tmp_path / "nowhere" / "summary.json", b"content")
    assert caught.value.filename == str(tmp_path / "nowhere" / "summary.json")


# A file system of 256 KiB, really full, in a mount namespace of its own: sinks, records and whole files on it.
_FULL = textwrap.dedent(
    """
    import logging, os, subprocess, sys
    from pathlib import Path
    from agentenv.errors import ResourceLimit
    from agentenv.telemetry.logs import LogSink, read_log
    from agentenv.telemetry.records import RecordWriter, read_records, write_atomic

    logging.disable(logging.CRITICAL)
    disk = Path(sys.argv[1])
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "none", disk], check=True)
    summary = disk / "summary.json"
    write_atomic(summary, b"old")
    writer, sink = RecordWriter(disk / "episodes.jsonl"), LogSink(disk / "stdout.log", max_bytes=2**20)
    written = [n for n in range(3) if writer.append({"n": n})]
    sink.write(b"before\\n")

    filler = disk / "filler"
    with filler.open("wb", buffering=0) as file:
        try:
            while file.write(b"x" * 4096):
                pass
        except OSError:
            pass

    for n in range(3, 50):
        if writer.append({"n": n, "text": "y" * 1000}):
            written.append(n)
        sink.write(b"%d " % n + b"z" * 1000 + b"\\n")
    assert writer.lost > 40 and sink.lost_bytes > 40_000, (writer.lost, sink.lost_bytes)
    assert "49 zzz" in sink.tail()
    try:
        write_atomic(summary, b"new" * 10_000)
    except ResourceLimit as error:
        assert "30000 bytes" in str(error), error
    else:
        raise AssertionError("a full disk took a new file")
    assert summary.read_bytes() == b"old"
    assert sorted(found.name for found in disk.iterdir()) == ["episodes.jsonl", "filler", "stdout.log", "summary.json"]

    filler.unlink()
    assert writer.append({"n": 50})
    sink.write(b"after\\n")
    write_atomic(summary, b"new")
    records, damaged = read_records(disk / "episodes.jsonl")
    assert [record["n"] for record in records] == [*written, 50] and damaged <= 1, (records, damaged)
    log = b"".join(read_log(disk / "stdout.log"))
    assert log.startswith(b"before\\n") and log.endswith(b"after\\n") and b"bytes missing here (No space left" in log
    """
)


def test_a_disk_that_is_really_full(tmp_path: Path) -> None:
    space = ["unshare", "--user", "--map-root-user", "--mount"]
    try:
        possible = subprocess.run([*space, "true"], capture_output=True, timeout=30, check=False).returncode == 0
    except FileNotFoundError:
        possible = False
    if not possible:
        pytest.skip("needs user namespaces and the unshare command (util-linux) to mount a small file system")
    command = [*space, sys.executable, "-c", _FULL, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, timeout=60, check=False)
    assert (done.returncode, done.stderr.decode()) == (0, "")
