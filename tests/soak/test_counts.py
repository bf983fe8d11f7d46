from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from agentenv.soak import counts

_COUNTED = """
import os, threading
from agentenv.soak import counts

before = counts.own_descriptors()
pipe = os.pipe()
assert counts.own_descriptors() == before + 2
for fd in pipe:
    os.close(fd)
assert counts.own_descriptors() == before
threads, done = counts.own_threads(), threading.Event()
thread = threading.Thread(target=done.wait)
thread.start()
assert counts.own_threads() == threads + 1
done.set()
thread.join()
print("counted")
"""


def test_descriptors_and_threads_are_counted() -> None:
    """In a process of its own: in this one, threads of other tests may just be ending."""
    done = subprocess.run([sys.executable, "-c", _COUNTED], capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout == "counted\n", done.stderr


def test_memory_that_is_used_is_seen() -> None:
    before = counts.own_memory_mb()
    kept = bytearray(b"x" * (32 * counts.MIB))
    assert counts.own_memory_mb() >= before + 30
    del kept


def test_a_tree_of_processes_and_its_descriptors() -> None:
    code = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'print(1, flush=True); input()'])"
    processes = counts.own_processes()
    parent = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        assert parent.stdout is not None
        parent.stdout.read(2)
        family = counts.tree(parent.pid)
        assert family[0] == parent.pid
        assert len(family) == 2
        assert counts.own_processes() == processes + 2
        held = counts.descriptors_of(family)
        assert held is not None
        assert held >= 6  # both have standard streams
    finally:
        parent.communicate(b"\n", timeout=20)
    assert counts.tree(parent.pid) == []
    assert counts.descriptors_of([parent.pid]) == 0


def test_a_zombie_counts_as_a_process() -> None:
    before = counts.own_processes()
    child = subprocess.Popen([sys.executable, "-c", ""], stdout=subprocess.PIPE)
    assert child.stdout is not None
    child.stdout.read()  # it has ended, or is about to; nobody has waited for it
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert counts.own_processes() == before + 1
    child.wait()
    child.stdout.close()
    assert counts.own_processes() == before


def test_disk_of_a_folder(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"1234")
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "c").write_bytes(b"123456")
    (tmp_path / "link").symlink_to("/usr")
    link = len("/usr")
    assert counts.disk_bytes(tmp_path) == 10 + link
    assert counts.disk_bytes(tmp_path, {tmp_path / "b"}) == 4 + link
    assert counts.disk_bytes(tmp_path / "a") == 4
    assert counts.disk_bytes(tmp_path / "missing") == 0
    assert [path.name for path in counts.named_after(["in"], [tmp_path, tmp_path / "missing"])] == ["link"]


def test_groups_are_found_by_name_and_counted_with_what_is_below(tmp_path: Path) -> None:
    for controller in ("memory", "cpu"):
        (tmp_path / controller / "own" / "agentenv.1-2-abc" / "env-0" / "deeper").mkdir(parents=True)
        (tmp_path / controller / "own" / "agentenv.9-9-fff").mkdir()
    roots = counts.find_groups(["1-2-abc"], tmp_path)
    assert len(roots) == 2
    assert counts.count_groups(roots) == 6
    assert counts.count_groups([tmp_path / "gone"]) == 0


def test_a_folder_that_is_the_hosts_own_is_nobodys_scratch() -> None:
    assert counts.scratch_mb_of(os.getpid()) is None
    assert counts.scratch_mb_of(2**22 + 1) is None


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to become another user: run the suite as root")
def test_what_may_not_be_looked_into_is_not_nothing() -> None:
    code = "import os; from agentenv.soak.counts import descriptors_of; os.setuid(65534); print(descriptors_of([1]))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "None"
