"""Usage read from real processes: what they allocate, share, write, and when they are gone."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from agentenv.sandbox.contract import Usage
from agentenv.sandbox.runtimes._cgroup import open_run
from agentenv.sandbox.runtimes._cgroup_contract import CgroupStats
from agentenv.sandbox.runtimes._runid import new_run_id
from agentenv.sandbox.runtimes._usage import descendants, read_usage
from cgroup_children import child, needs, start

MIB = 1024 * 1024


@contextmanager
def running(code: str, *prefix: str) -> Iterator[subprocess.Popen[str]]:
    """A Python process that has run the code and waits."""
    process = subprocess.Popen(
        [*prefix, sys.executable, "-I", "-S", "-c", f"{code}\nprint('up', flush=True); input()"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout.readline() == "up\n"
        yield process
    finally:
        for pid in descendants(process.pid):
            os.kill(pid, signal.SIGKILL)
        process.kill()
        process.communicate()


def test_memory_that_is_written_is_unshared_memory():
    with running("x = bytearray(b'x') * (20 << 20)") as big, running("") as small:
        more = read_usage([big.pid])
        less = read_usage([small.pid])
    # What an empty interpreter has to itself differs by some pages from one to the next.
    assert 19.9 * MIB <= more.memory_bytes - less.memory_bytes < 24 * MIB
    assert more.rss_bytes >= more.memory_bytes
    assert more.processes == less.processes == 1
    assert not more.partial


def test_pages_shared_since_a_fork_are_resident_in_both_and_unshared_in_neither():
    code = (
        "import os, signal\nx = bytearray(b'x') * (20 << 20)\n"
        "if os.fork() == 0:\n    print('up', flush=True); signal.pause()\n"
        "import sys; sys.stdin.readline()"
    )
    with running(code) as parent:
        family = [parent.pid, *descendants(parent.pid)]
        assert len(family) == 2
        total = read_usage(family)
    assert total.processes == 2
    assert total.rss_bytes > 40 * MIB
    assert total.memory_bytes < 12 * MIB


def test_processor_time_includes_children_that_were_waited_for():
    burn = "import time\\nwhile time.process_time() < 0.2: pass"
    with running(f"import subprocess, sys; subprocess.run([sys.executable, '-c', '''{burn}'''])") as process:
        assert 0.19 <= read_usage([process.pid]).cpu_s < 5


def test_what_is_written_to_a_file_is_counted(tmp_path):
    target = str(tmp_path / "data")
    code = f"import os\nf = os.open({target!r}, os.O_CREAT | os.O_WRONLY)\nos.write(f, bytes(4 << 20)); os.fsync(f)"
    with running(code) as process:
        written = read_usage([process.pid]).io_write_bytes
    if _is_memory(tmp_path):
        pytest.skip(f"{tmp_path} is in memory, which is no disk; set TMPDIR to a directory on one")
    assert 4 * MIB <= written < 8 * MIB


def _is_memory(path) -> bool:
    kind = subprocess.run(["stat", "-f", "-c", "%T", path], capture_output=True, text=True, timeout=10).stdout.strip()
    return kind in ("tmpfs", "ramfs", "overlayfs")


def test_the_gone_and_the_dead_count_as_nothing():
    with subprocess.Popen(["true"]) as process:
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        assert read_usage([process.pid]) == Usage(0, 0, 0, 0, 0, 0)  # a zombie
    assert read_usage([process.pid]) == Usage(0, 0, 0, 0, 0, 0)
    assert read_usage([]) == Usage(0, 0, 0, 0, 0, 0)


def test_a_pid_given_twice_counts_once():
    assert read_usage([os.getpid(), os.getpid()]).processes == 1


def test_descendants_are_all_of_them_parents_first():
    code = (
        "import os, signal, sys\n"
        "r, w = os.pipe()\n"
        "for depth in range(3):\n"
        "    if os.fork() != 0:\n        break\n"
        "else:\n    os.write(w, b'x')\n"
        "if depth or not os.read(r, 1): signal.pause()"
    )
    with running(code) as process:
        family = descendants(process.pid)
        assert len(family) == 3
        parents = [process.pid, *family[:-1]]
        for pid, parent in zip(family, parents, strict=True):
            with open(f"/proc/{pid}/stat") as stat:
                assert int(stat.read().rpartition(")")[2].split()[1]) == parent
        assert process.pid not in family


def test_another_users_process_is_read_as_far_as_it_may_be():
    if os.geteuid() != 0:
        usage = read_usage([1])  # init is root's
        assert usage.partial
        assert usage.rss_bytes > 0
        return
    with running("x = bytearray(b'x') * (8 << 20)") as process:
        code = (
            "import os; os.setgroups([]); os.setgid(65534); os.setuid(65534)\n"
            f"u = read_usage([{process.pid}])\n"
            "print(u.partial, u.memory_bytes >= 8 << 20, u.io_write_bytes, u.processes)"
        )
        done = subprocess.run(
            [sys.executable, "-c", "from agentenv.sandbox.runtimes._usage import read_usage\n" + code],
            capture_output=True,
            text=True,
            timeout=30,
        )
    assert done.stdout == "True True 0 1\n", done.stderr


def test_a_control_groups_figures_become_usage():
    stats = CgroupStats(1.5, 10, 30, 2, 0, 5, 6, charged_bytes=20)
    assert read_usage(stats) == Usage(1.5, 10, 20, 2, 5, 6)


@needs("memory", "pids")
def test_a_real_group_and_its_process_agree():
    with (
        open_run(new_run_id()) as run,
        child("x = bytearray(b'x') * (20 << 20)\nprint('up', flush=True); input()") as one,
    ):
        group = run.create("one", memory_mb=128, vcpu_count=1, pids=8)
        group.add(one.pid)
        start(one)
        assert one.stdout.readline() == "up\n"
        from_group, from_proc = read_usage(group.stats()), read_usage([one.pid])
    assert from_group.processes == from_proc.processes == 1
    assert 20 * MIB <= from_group.memory_bytes <= from_proc.memory_bytes
