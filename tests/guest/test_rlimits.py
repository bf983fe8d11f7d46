"""The plan as a table, and the limits really binding a process."""

from __future__ import annotations

import errno
import os
import resource
import subprocess
import sys

import pytest

from agentenv.guest import rlimits

MIB = 1024 * 1024
MODERN = (6, 1)


def _plan(limits, *, inherited_bytes=0, hard=None, kernel=MODERN, user_is_root=False):
    return rlimits.plan(
        limits, inherited_bytes=inherited_bytes, hard=hard or {}, kernel=kernel, user_is_root=user_is_root
    )


@pytest.mark.parametrize(
    ("limits", "which", "value"),
    [
        ({}, resource.RLIMIT_CORE, 0),
        ({"memory_mb": 100}, resource.RLIMIT_DATA, 100 * MIB),
        ({"pids": 16}, resource.RLIMIT_NPROC, 16),
        ({"open_files": 64}, resource.RLIMIT_NOFILE, 64),
        ({"disk_mb": 10}, resource.RLIMIT_FSIZE, 10 * MIB),
    ],
)
def test_each_key_becomes_one_resource_with_soft_and_hard_equal(limits, which, value):
    decided = _plan(limits).limits
    assert decided[which] == (value, value)
    assert set(decided) == {which, resource.RLIMIT_CORE}


def test_inherited_memory_is_not_charged():
    decided = _plan({"memory_mb": 10}, inherited_bytes=7 * MIB).limits
    assert decided[resource.RLIMIT_DATA] == (17 * MIB, 17 * MIB)


@pytest.mark.parametrize(("ceiling", "expected"), [(50, 50), (500, 64), (resource.RLIM_INFINITY, 64)])
def test_a_hard_limit_is_never_raised(ceiling, expected):
    decided = _plan({"open_files": 64}, hard={resource.RLIMIT_NOFILE: ceiling}).limits
    assert decided[resource.RLIMIT_NOFILE] == (expected, expected)


def test_an_old_kernel_leaves_processes_unlimited_and_says_so():
    decided = _plan({"pids": 16}, kernel=(5, 13))
    assert resource.RLIMIT_NPROC not in decided.limits
    assert any("5.14" in note for note in decided.notes)


def test_for_the_machines_root_user_the_limit_is_set_and_said_not_to_bind():
    decided = _plan({"pids": 16}, user_is_root=True)
    assert decided.limits[resource.RLIMIT_NPROC] == (16, 16)
    assert any("does not bind" in note for note in decided.notes)


def test_an_unknown_key_names_the_nearest():
    with pytest.raises(ValueError, match=r"'memory'; expected one of .*did you mean 'memory_mb'"):
        _plan({"memory": 10})


def test_a_value_below_one_is_refused():
    with pytest.raises(ValueError, match=r"pids is 0; expected at least 1"):
        _plan({"pids": 0})


@pytest.mark.parametrize(
    ("release", "expected"), [("6.18.44-fc-v669", (6, 18)), ("5.14+", (5, 14)), ("6.1.0-57-amd64", (6, 1))]
)
def test_kernel_versions_are_read_from_real_release_strings(release, expected):
    assert rlimits._kernel_version(release) == expected


def _run(code: str, *command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*(command or (sys.executable,)), "-c", "from agentenv.guest import rlimits\n" + code],
        capture_output=True,
        text=True,
        timeout=30,
        env={"PATH": os.environ["PATH"], "PYTHONPATH": os.pathsep.join(sys.path), "OPENBLAS_NUM_THREADS": "1"},
    )


def test_memory_beyond_the_limit_is_refused_and_the_process_lives():
    done = _run(
        "rlimits.apply({'memory_mb': 32})\n"
        "small = bytearray(16 << 20)\n"
        "try:\n    bytearray(64 << 20)\nexcept MemoryError:\n    print('refused', len(small) >> 20)\n"
    )
    assert (done.stdout, done.returncode) == ("refused 16\n", 0), done.stderr


def test_address_space_that_is_only_reserved_is_not_charged():
    done = _run(
        "import ctypes\n"
        "rlimits.apply({'memory_mb': 32})\n"
        "libc = ctypes.CDLL(None, use_errno=True)\n"
        "libc.mmap.restype = ctypes.c_void_p\n"
        "libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]\n"
        "print(libc.mmap(None, 1 << 34, 0, 0x4022, -1, 0) != 2**64 - 1)\n"  # PRIVATE | ANONYMOUS | NORESERVE
    )
    assert done.stdout == "True\n", done.stderr


def test_numpy_and_threads_work_within_an_ordinary_limit():
    done = _run(
        "rlimits.apply({'memory_mb': 200, 'open_files': 64, 'disk_mb': 8})\n"
        "import numpy, threading\n"
        "threads = [threading.Thread(target=numpy.ones, args=(1000,)) for _ in range(4)]\n"
        "[t.start() for t in threads]; [t.join() for t in threads]\n"
        "print(float((numpy.ones((300, 300)) @ numpy.ones((300, 300))).sum()))\n"
    )
    assert done.stdout == "27000000.0\n", done.stderr


def test_a_file_beyond_the_limit_and_one_descriptor_too_many_are_errors(tmp_path):
    done = _run(
        "import os\n"
        "rlimits.apply({'disk_mb': 1, 'open_files': 20})\n"
        f"f = os.open({str(tmp_path / 'big')!r}, os.O_WRONLY | os.O_CREAT)\n"
        "assert os.write(f, b'x' * (1 << 20)) == 1 << 20\n"
        "try:\n    os.write(f, b'x')\nexcept OSError as e:\n    print(e.errno)\n"
        "try:\n    [os.dup(0) for _ in range(20)]\nexcept OSError as e:\n    print(e.errno)\n"
    )
    assert [int(word) for word in done.stdout.split()] == [errno.EFBIG, errno.EMFILE], done.stderr


def test_a_fork_bomb_in_a_user_namespace_of_an_ordinary_user_is_stopped(unprivileged, unprivileged_python):
    code = (
        "import os, signal\n"
        "rlimits.apply({'pids': 8})\n"
        "children = []\n"
        "try:\n"
        "    for _ in range(50):\n"
        "        pid = os.fork()\n"
        "        if pid == 0:\n            signal.pause()\n"
        "        children.append(pid)\n"
        "except BlockingIOError:\n    print('refused')\n"
        "finally:\n    [os.kill(p, 9) for p in children]; [os.waitpid(p, 0) for p in children]\n"
        "print(len(children))\n"
    )
    command = [*unprivileged, "unshare", "--user", unprivileged_python]
    if subprocess.run([*command, "-c", ""], capture_output=True, timeout=30).returncode != 0:
        pytest.skip("this machine refuses user namespaces to ordinary users; allow them to run this test")
    done = _run(code, *command)
    assert done.stdout == "refused\n7\n", done.stderr
