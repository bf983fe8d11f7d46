"""The filter in force: each call made for real, with it and without, and ordinary programs under it."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from agentenv.guest import seccomp

PROBE = Path(__file__).with_name("seccomp_probe.py")
SOURCE = Path(seccomp.__file__).parents[2]


def run_python(*command: str | Path, cwd: Path | None = None) -> str:
    done = subprocess.run(
        list(map(str, command)),
        capture_output=True,
        text=True,
        timeout=60,
        stdin=subprocess.DEVNULL,
        cwd=cwd,
        env={"PATH": os.environ["PATH"], "PYTHONPATH": str(SOURCE)},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def probe(directory: Path, mode: str, *prefix: str) -> dict[str, str]:
    directory.mkdir()
    path = directory / "file"
    path.touch()
    for each_path, bits in ((directory, 0o777), (path, 0o666)):
        os.chown(each_path, 65534, 65534) if os.geteuid() == 0 else None
        each_path.chmod(bits)
    interpreter = prefix or (sys.executable,)
    return json.loads(run_python(*interpreter, PROBE, mode, path))


ALSO_REFUSED = {
    *("unshare user", "clone user", "clone net high", "fchmod setuid", "fchmodat setgid", "fchmodat high"),
    *("fchmodat2 setuid", "mkdirat setgid", "openat setuid", "openat tmpfile setuid", "mknodat setuid"),
    *("mknodat character", "mknodat block", "personality no_randomize", "personality high", "ioctl TIOCSTI"),
    *("ioctl TIOCSTI high", "ioctl TIOCLINUX", "socket raw"),
}
ALSO_REFUSED_ON = {
    "x86_64": {"chmod setuid", "mkdir setuid", "mknod character", "mknod setuid", "creat setuid", "open setuid"},
    "aarch64": set(),
}
NO_FAMILY = {
    *("socket packet", "socket inet packet", "socket vsock", "socket alg", "socket alg high", "socket bluetooth"),
    *("socket netlink audit", "socketpair tipc"),
}
PERMITTED = {
    *("clone fork", "fchmodat plain", "openat ignored mode", "openat create", "mknodat fifo", "personality query"),
    *("personality linux", "ioctl other", "socket unix", "socket inet", "socket inet6", "socket netlink route"),
    *("memfd_create", "future call"),
}
# Kernels built without these say ENOSYS or EAFNOSUPPORT themselves; there the filter's answer proves nothing. User
# namespaces are refused to root as well where the suite runs in a chroot.
MAY_BE_ABSENT = {
    *("unshare user", "clone user"),
    *("lookup_dcookie", "nfsservctl", "kexec_load", "kexec_file_load", "init_module", "finit_module", "delete_module"),
    *("iopl", "ioperm", "memfd_secret", "quotactl_fd", "process_madvise", "fchmodat2", "open_tree_attr", "userfaultfd"),
    *("mount_setattr", "socket vsock", "socket alg", "socket alg high", "socket bluetooth", "socketpair tipc"),
    *("socket packet", "socket inet packet", "socket netlink audit", "io_uring_setup", "io_uring_enter"),
    *("io_uring_register", "x32 getpid", "minus one", "kcmp", "modify_ldt", "move_pages", "migrate_pages"),
}


def promised(refused_on: dict[str, set[str]], missing: set[str]) -> dict[str, str]:
    arch = platform.machine()
    answers = dict.fromkeys(refused_on[arch] | ALSO_REFUSED | ALSO_REFUSED_ON[arch], "EPERM")
    answers |= dict.fromkeys(missing, "ENOSYS") | dict.fromkeys(NO_FAMILY, "EAFNOSUPPORT")
    if arch == "x86_64":
        answers |= {"x32 getpid": "ENOSYS", "minus one": "ENOSYS"}
    return answers


def check_answers(filtered: dict[str, str], bare: dict[str, str], expected: dict[str, str]) -> None:
    expected = expected | {name: bare[name] for name in PERMITTED}
    if "int80" in bare:
        # Where the kernel has no 32-bit calls the instruction itself faults (SIGSEGV) before any filter is asked.
        expected["int80"] = "signal 11" if bare["int80"] == "signal 11" else "signal 31"
    assert filtered == expected


def test_each_denied_call_gets_the_promised_answer_and_would_not_without_the_filter(tmp_path, refused_on, missing):
    answers = promised(refused_on, missing)
    bare = probe(tmp_path / "bare", "bare")
    check_answers(probe(tmp_path / "filtered", "filtered"), bare, answers)
    if os.geteuid() == 0:
        same = {name for name, answer in answers.items() if bare[name] == answer}
        assert same <= MAY_BE_ABSENT, "as root the kernel itself should have answered these differently"


@pytest.fixture
def open_directory():
    """A directory any user may enter; those of tmp_path are for their owner only."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        yield Path(name)


def test_an_ordinary_user_gets_the_same_answers(open_directory, unprivileged, unprivileged_python, refused_on, missing):
    prefix = [*unprivileged, "env", unprivileged_python]
    bare = probe(open_directory / "bare", "bare", *prefix)
    check_answers(probe(open_directory / "filtered", "filtered", *prefix), bare, promised(refused_on, missing))


def test_network_permits_raw_sockets_to_whoever_may_open_them_and_nothing_else(tmp_path):
    bare = probe(tmp_path / "bare", "bare")
    closed = probe(tmp_path / "closed", "filtered")
    opened = probe(tmp_path / "opened", "network")
    assert {name for name in closed if closed[name] != opened[name]} <= {"socket raw"}
    assert opened["socket raw"] == bare["socket raw"]


WORKS = {
    "subprocess": "import subprocess\nassert subprocess.run(['cat'], input=b'x', capture_output=True).stdout == b'x'",
    "shell": "import os\nassert os.system('true | cat') == 0",
    "threads": (
        "import threading\nseen = []\nts = [threading.Thread(target=seen.append, args=(i,)) for i in range(8)]\n"
        "[t.start() for t in ts]; [t.join() for t in ts]\nassert sorted(seen) == list(range(8))"
    ),
    "multiprocessing fork": (
        "import multiprocessing as m\nq = m.get_context('fork').SimpleQueue()\n"
        "p = m.get_context('fork').Process(target=q.put, args=(7,)); p.start(); p.join()\nassert q.get() == 7"
    ),
    "multiprocessing spawn": (
        "import multiprocessing as m\nif __name__ == '__main__':\n"
        "    with m.get_context('spawn').Pool(2) as pool:\n        assert pool.map(abs, [-1, -2]) == [1, 2]"
    ),
    "shared memory": (
        "from multiprocessing.shared_memory import SharedMemory\ns = SharedMemory(create=True, size=64)\n"
        "s.buf[0] = 9; s.close(); s.unlink()"
    ),
    "loopback": (
        "import socket\ns = socket.create_server(('127.0.0.1', 0)); c = socket.create_connection(s.getsockname())\n"
        "a, _ = s.accept(); a.sendall(b'hi'); assert c.recv(2) == b'hi'; [x.close() for x in (a, c, s)]\n"
        "assert socket.getaddrinfo('127.0.0.1', 80) and socket.if_nameindex()"
    ),
    "asyncio": (
        "import asyncio\nasync def main():\n    p = await asyncio.create_subprocess_exec('true')\n"
        "    return await p.wait()\nassert asyncio.run(main()) == 0"
    ),
    "files": (
        "import os, shutil, tempfile\nd = tempfile.mkdtemp(); open(d + '/a', 'w').write('x')\n"
        "shutil.copy2(d + '/a', d + '/b'); os.chmod(d + '/b', 0o755); os.mkfifo(d + '/f'); shutil.rmtree(d)"
    ),
    "numpy": (
        "import numpy as np\na = np.random.default_rng(0).random((256, 256))\n"
        "assert np.allclose(a @ np.linalg.inv(a), np.eye(256), atol=1e-6)"
    ),
    "mujoco": (
        "import gymnasium as g\ne = g.make('HalfCheetah-v5'); e.reset(seed=0)\n"
        "[e.step(e.action_space.sample()) for _ in range(5)]; e.close()"
    ),
    "ale": (
        "import ale_py, gymnasium as g\ng.register_envs(ale_py); e = g.make('ALE/Breakout-v5'); e.reset(seed=0)\n"
        "[e.step(0) for _ in range(5)]; e.close()"
    ),
}
NEEDS = {"numpy": "numpy", "mujoco": "mujoco", "ale": "ale_py"}


@pytest.mark.parametrize("what", WORKS)
def test_ordinary_programs_work_under_it(what, tmp_path):
    if what in NEEDS:
        pytest.importorskip(NEEDS[what])
    script = tmp_path / "program.py"  # a file, because spawned children import it again
    script.write_text(
        "if __name__ == '__main__':\n    from agentenv.guest import seccomp\n    seccomp.install()\n" + WORKS[what]
    )
    run_python(sys.executable, "-W", "ignore", script, cwd=tmp_path)


def test_the_filter_covers_threads_that_were_there_before_and_children():
    out = run_python(
        sys.executable,
        "-c",
        "import os, threading, subprocess, sys\n"
        "from agentenv.guest import seccomp\n"
        "go, seen = threading.Event(), []\n"
        "def late():\n    go.wait()\n    try:\n        os.chmod('/nonexistent', 0o4000)\n"
        "    except OSError as e:\n        seen.append(e.errno)\n"
        "t = threading.Thread(target=late); t.start()\n"
        "seccomp.install(); go.set(); t.join()\n"
        "child = subprocess.run([sys.executable, '-c', 'import os; os.chmod(\"/nonexistent\", 0o4000)'],"
        " capture_output=True, text=True)\n"
        "status = open('/proc/self/status').read()\n"
        "print(seen, 'PermissionError' in child.stderr, 'NoNewPrivs:\\t1' in status, 'Seccomp:\\t2' in status)\n",
    )
    assert out == "[1] True True True\n"


def test_a_second_filter_may_be_added():
    run_python(sys.executable, "-c", "from agentenv.guest.seccomp import install\ninstall(); install()")
