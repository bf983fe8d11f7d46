"""Templates: written once for the same parts, whole or not at all, and not without end."""

from __future__ import annotations

import errno
import logging
import os
import shutil
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from agentenv import locks
from agentenv.errors import ResourceLimit
from agentenv.sandbox.runtimes._vm import templates
from agentenv.sandbox.runtimes._vm.files import copy_sparsely
from agentenv.sandbox.runtimes._vm.templates import Templates
from cli_watch import poll


def test_the_same_parts_are_made_once(tmp_path: Path) -> None:
    made: list[Path] = []

    def make(place: Path) -> None:
        made.append(place)
        everybody.wait(timeout=20)  # until all others are about to ask
        (place / "memory").write_bytes(b"x")

    def ask() -> None:
        if asked.acquire(blocking=False):
            found.append(kept.get(["a", "b"], make))
        else:
            everybody.wait(timeout=20)
            found.append(kept.get(["a", "b"], make))

    kept = Templates(tmp_path / "t")
    found: list[Path] = []
    everybody, asked = threading.Barrier(4), threading.Lock()
    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(made) == 1
    assert len(set(found)) == 1
    assert (found[0] / "memory").read_bytes() == b"x"
    assert kept.get(["ab"], _fill) != found[0]


def test_who_waits_for_another_says_so(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """It may be a process that was stopped, which nobody would find otherwise."""
    kept = Templates(tmp_path)
    path = kept.get(["a"], _fill)
    shutil.rmtree(path)
    held = locks.take(tmp_path / f"{path.name}.lock")
    assert held is not None
    with caplog.at_level(logging.INFO), ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(kept.get, ["a"], _fill)
        try:
            poll(lambda: "waiting for another process" in caplog.text, "its word", 10)
        finally:
            os.close(held)
        assert waiting.result(10) == path
    assert f"has {path.name}.lock" in caplog.text


def test_a_failure_leaves_nothing_and_a_full_disk_is_named(tmp_path: Path) -> None:
    def full(place: Path) -> None:
        (place / "memory").write_bytes(b"x")
        raise OSError(errno.ENOSPC, "No space left on device")

    def gone(place: Path) -> None:
        raise ConnectionError("the monitor is gone")

    kept = Templates(tmp_path / "t")
    with pytest.raises(ResourceLimit, match=r"cannot keep a machine's snapshot in .*: No space left"):
        kept.get(["a"], full)
    with pytest.raises(ConnectionError, match="the monitor is gone"):
        kept.get(["a"], gone)
    assert [path for path in (tmp_path / "t").iterdir() if path.is_dir()] == []


def test_what_was_not_used_for_long_makes_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(templates, "_MOST_BYTES", 9 << 12)  # each has two small files beside its own
    kept = Templates(tmp_path / "t")
    found = [kept.get([str(number)], lambda place: _fill(place)) for number in range(3)]
    for age, path in zip((9000, 7000, 10), found, strict=True):
        os.utime(path, (time.time() - age,) * 2)
    newest = kept.get(["new"], _fill)
    assert [path.is_dir() for path in (*found, newest)] == [False, True, True, True]


def _fill(place: Path) -> None:
    (place / "memory").write_bytes(b"x" * 4096)


def test_holes_stay_holes(tmp_path: Path) -> None:
    source, target = tmp_path / "a", tmp_path / "b"
    with open(source, "wb") as file:
        file.truncate(64 << 20)
        file.seek(32 << 20)
        file.write(b"in the middle")
    copy_sparsely(source, target)
    assert target.stat().st_size == 64 << 20
    assert target.stat().st_blocks * 512 < 1 << 20
    with open(target, "rb") as file:
        file.seek(32 << 20)
        assert file.read(13) == b"in the middle"
