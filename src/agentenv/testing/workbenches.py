"""The promises of ``agentenv.sandbox.workbench``, as a class of tests: subclass it and name the runtime.

    class TestMyRuntime(WorkbenchSuite):
        settings = {"runtime": "mine"}

The image must have a shell and Python.
"""

from __future__ import annotations

import errno
import io
import json
import os
import signal
import tarfile
import tempfile
import time
from pathlib import Path
from typing import Any

import pytest

from agentenv.errors import RuntimeUnavailable
from agentenv.fleet.context import RunContext
from agentenv.sandbox.contract import Sandbox
from agentenv.sandbox.workbench import Task, Workbench
from agentenv.testing.leftovers import becomes_true
from agentenv.testing.workbench_ends import WorkbenchEnds
from agentenv.testing.workbench_ground import END_S
from agentenv.testing.workbench_ground import Done as Done
from agentenv.testing.workbench_ground import Running as Running
from agentenv.testing.workbench_ground import run as run
from agentenv.testing.workbench_ground import work as work


def _is_broken(fd: int) -> bool:
    try:
        os.write(fd, b"x")
    except BrokenPipeError:
        return True
    return False


class WorkbenchSuite(WorkbenchEnds):
    """See the module.

    Attributes:
        settings: Keys of ``[global]`` and of the environment, "runtime" above all.
    """

    # -- programs

    def test_bytes_and_the_exit_status_come_through(self, bench: Workbench) -> None:
        data = bytes(range(256)) * 5
        done = run(bench, "sh", "-c", "cat; echo wrong >&2; exit 7", stdin=data)
        assert (done.status, done.stdout, done.stderr) == ({"exit": 7}, data, b"wrong\n")

    def test_a_signal_is_told(self, bench: Workbench) -> None:
        assert run(bench, "sh", "-c", "kill -SEGV $$").status == {"signal": int(signal.SIGSEGV)}

    def test_much_in_and_out_at_once(self, bench: Workbench) -> None:
        data = os.urandom(1 << 20) * 3
        assert run(bench, "cat", stdin=data).stdout == data

    def test_variables_directory_and_user(self, bench: Workbench) -> None:
        script = 'echo "$COLOUR $PWD $(id -u):$(id -g)"; echo "$HOME"'
        done = run(bench, "sh", "-c", script, variables={"COLOUR": "red"}, directory="/tmp", user="nobody")
        assert done.stdout.splitlines()[0] == b"red /tmp 65534:65534"
        assert run(bench, "id", "-g", user="1234:4321").stdout == b"4321\n"
        assert run(bench, "id", "-un").stdout == b"root\n"

    @pytest.mark.parametrize(
        ("task", "code", "text"),
        [
            (Task(("no-such-program",)), errno.ENOENT, "program 'no-such-program'"),
            (Task(("/etc/passwd",)), errno.EACCES, "program '/etc/passwd'"),
            (Task(("true",), directory="/nowhere"), errno.ENOENT, "directory '/nowhere'"),
            (Task(("true",), user="nobody-of-that-name"), errno.EINVAL, "nobody-of-that-name"),
            (Task(("a\0b",)), errno.EINVAL, "null"),
        ],
    )
    def test_what_cannot_be_started_says_so(self, bench: Workbench, task: Task, code: int, text: str) -> None:
        with pytest.raises(OSError, match=text) as caught:
            Running(bench, task)
        assert caught.value.errno == code

    def test_whose_output_nobody_reads_gets_a_broken_pipe(self, bench: Workbench) -> None:
        running = Running(bench, Task(("yes",)))
        assert running.line() == b"y\n"
        os.close(running.stdout)
        running.stdout = os.open(os.devnull, os.O_RDONLY)
        assert running.end().status == {"signal": int(signal.SIGPIPE)}

    def test_who_writes_to_one_that_has_ended_gets_a_broken_pipe(self, bench: Workbench) -> None:
        running = Running(bench, Task(("true",)), stdin=None)
        with open(running.status, "rb", closefd=False) as file:
            assert json.loads(file.read()) == {"exit": 0}
        assert becomes_true(lambda: _is_broken(running.stdin), END_S)
        running.end()

    def test_a_kill_takes_everything_it_has_started(self, bench: Workbench) -> None:
        script = "setsid sh -c 'echo $$; exec sleep 1000' & wait"
        running = Running(bench, Task(("sh", "-c", script)))
        pid = running.line().strip().decode()
        bench.signal(running.number, signal.SIGKILL)
        assert running.end().status == {"signal": int(signal.SIGKILL)}
        assert run(bench, "sh", "-c", f"test -d /proc/{pid} && ! grep -q 'State:.Z' /proc/{pid}/status").status != {
            "exit": 0
        }

    def test_a_signal_can_be_caught(self, bench: Workbench) -> None:
        script = "trap 'echo caught; exit 3' TERM; echo ready; while :; do sleep 0.05; done"
        running = Running(bench, Task(("sh", "-c", script)))
        assert running.line() == b"ready\n"
        bench.signal(running.number, signal.SIGTERM)
        done = running.end()
        assert (done.status, done.stdout) == ({"exit": 3}, b"caught\n")
        bench.signal(running.number, signal.SIGTERM)  # it has ended: nothing happens

    def test_a_terminal_has_a_size_that_changes(self, bench: Workbench) -> None:
        script = (
            "import os, signal, sys\n"
            "signal.signal(signal.SIGWINCH, lambda *_: None)\n"
            "print(sys.stdin.isatty(), *os.get_terminal_size(), os.environ['TERM'], flush=True)\n"
            "signal.sigwait([signal.SIGWINCH])\n"
            "print(*os.get_terminal_size())\n"
        )
        code = f"import signal; signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGWINCH])\n{script}"
        running = Running(bench, Task(("python3", "-c", code), terminal=(20, 70)), stdin=None)
        assert running.line().split() == [b"True", b"70", b"20", b"xterm-256color"]
        bench.resize(running.number, 33, 99)
        done = running.end()
        assert (done.status, done.stdout.split()) == ({"exit": 0}, [b"99", b"33"])

    def test_memory_beyond_the_machines_ends_the_task_and_not_the_sandbox(self, bench: Workbench) -> None:
        done = run(bench, "python3", "-c", "held = []\nwhile True: held.append(b'x' * (1 << 20))")
        assert done.status["signal"] == signal.SIGKILL
        assert done.status["oom_kills"] >= 1
        assert run(bench, "true").status == {"exit": 0}

    def test_a_full_disk_is_the_programs_trouble(self, bench: Workbench) -> None:
        done = run(bench, "sh", "-c", "cat /dev/zero > /root/big; rm /root/big")
        assert b"No space left" in done.stderr
        assert run(bench, "sh", "-c", "echo fine > /root/small; cat /root/small; rm /root/small").stdout == b"fine\n"

    # -- files

    def test_files_are_written_read_and_listed(self, bench: Workbench) -> None:
        data = os.urandom(300_000)
        assert work(bench, data, op="write", path="/var/tmp/w/a/file", mode=0o640, parents=True).status == {"exit": 0}
        assert work(bench, op="read", path="/var/tmp/w/a/file").stdout == data
        assert work(bench, op="read", path="/var/tmp/w/a/file", offset=10, size=5).stdout == data[10:15]
        assert work(bench, b"more", op="write", path="/var/tmp/w/a/file", append=True).status == {"exit": 0}
        told = json.loads(work(bench, op="stat", path="/var/tmp/w/a/file").stdout)
        assert (told["kind"], told["size"], told["mode"]) == ("file", 300_004, 0o640)
        assert work(bench, op="move", path="/var/tmp/w/a/file", target="/var/tmp/w/b").status == {"exit": 0}
        listed = [json.loads(line) for line in work(bench, op="list", path="/var/tmp/w", depth=2).stdout.splitlines()]
        assert [(one["path"], one["kind"]) for one in listed] == [("a", "directory"), ("b", "file")]
        assert work(bench, op="remove", path="/var/tmp/w", recursive=True).status == {"exit": 0}

    @pytest.mark.parametrize(
        ("keys", "kind", "code"),
        [
            ({"op": "read", "path": "/nowhere"}, "FileNotFoundError", errno.ENOENT),
            ({"op": "read", "path": "/etc"}, "IsADirectoryError", errno.EISDIR),
            ({"op": "list", "path": "/etc/passwd"}, "NotADirectoryError", errno.ENOTDIR),
            ({"op": "write", "path": "/root/x", "user": "nobody"}, "PermissionError", errno.EACCES),
            ({"op": "remove", "path": "/etc"}, "OSError", errno.ENOTEMPTY),
            ({"op": "dance", "path": "/"}, "ValueError", None),
        ],
    )
    def test_what_cannot_be_done_to_a_file_says_so(
        self, bench: Workbench, keys: dict[str, Any], kind: str, code: int | None
    ) -> None:
        error = work(bench, **keys).status["error"]
        assert (error["type"], error["errno"]) == (kind, code)

    def test_a_tree_goes_in_and_comes_out(self, bench: Workbench) -> None:
        packed = io.BytesIO()
        with tarfile.open(fileobj=packed, mode="w") as archive:
            for name, content in (("one", b"1"), ("below/two", b"22")):
                entry = tarfile.TarInfo(name)
                entry.size = len(content)
                archive.addfile(entry, io.BytesIO(content))
        assert work(bench, packed.getvalue(), op="unpack", path="/var/tmp/tree").status == {"exit": 0}
        done = work(bench, op="pack", path="/var/tmp/tree")
        with tarfile.open(fileobj=io.BytesIO(done.stdout)) as archive:
            found = {entry.name.removeprefix("./"): entry.size for entry in archive if entry.isfile()}
        assert found == {"one": 1, "below/two": 2}

    def test_health(self, bench: Workbench) -> None:
        running = Running(bench, Task(("sleep", "1000")))
        health = bench.health()
        bench.signal(running.number, signal.SIGTERM)
        running.end()
        assert health["tasks"] == 1
        assert all(health[name] > 0 for name in ("uptime_s", "memory_bytes", "memory_free_bytes", "disk_free_bytes"))

    # -- standing still

    def test_five_pauses_lose_no_byte_and_no_file(self, bench: Workbench) -> None:
        script = "import sys\nfor line in sys.stdin: sys.stdout.write(line); sys.stdout.flush()"
        running = Running(bench, Task(("python3", "-u", "-c", script)), stdin=None)
        for number in range(5):
            os.write(running.stdin, b"%d\n" % number)
            work(bench, b"%d" % number, op="write", path=f"/root/kept-{number}")
            bench.pause()
            bench.pause()
            assert bench.paused
            with pytest.raises(RuntimeUnavailable, match="paused"):
                Running(bench, Task(("true",)))
            os.write(running.stdin, b"while it stood still %d\n" % number)
            bench.resume()
            bench.resume()
            assert not bench.paused
        os.close(running.stdin)
        running.stdin = os.open(os.devnull, os.O_WRONLY)
        lines = running.end().stdout.splitlines()
        assert lines == [line for n in range(5) for line in (b"%d" % n, b"while it stood still %d" % n)]
        kept = run(bench, "sh", "-c", "cat /root/kept-*; rm /root/kept-*")
        assert kept.stdout == b"01234"

    def test_the_clock_is_right_after_standing_still(self, bench: Workbench) -> None:
        assert run(bench, "date", "--set=2001-01-01").status == {"exit": 0}  # as if it had stood still for years
        bench.pause()
        bench.resume()
        assert abs(float(run(bench, "date", "+%s").stdout) - time.time()) < END_S

    def test_copies_begin_where_the_original_was_and_are_somebody_else(
        self, context: RunContext, sandbox: Sandbox, bench: Workbench
    ) -> None:
        """What ran goes on in the copies too; the original's streams stay the original's."""
        work(bench, b"before", op="write", path="/root/file")
        counter = "i=0; while :; do i=$((i+1)); echo $i; echo $i > /root/count; sleep 0.05; done"
        running = Running(bench, Task(("sh", "-c", counter)))
        assert running.line() == b"1\n"
        who = "cat /proc/sys/kernel/hostname /etc/machine-id; head -c 16 /dev/urandom | od -An -tx8"
        copies: list[Sandbox] = []
        with tempfile.TemporaryDirectory() as directory:
            bench.snapshot(Path(directory))
            assert not bench.paused
            try:
                specs = [self._spec(context, f"copy-{n}", origin=Path(directory)) for n in range(2)]
                copies += context.runtime.create(specs, context.output)
                found = set()
                for copy in copies:
                    assert copy.workbench is not None
                    assert work(copy.workbench, op="read", path="/root/file").stdout == b"before"
                    found.add(run(copy.workbench, "sh", "-c", who).stdout)
                    script = "a=$(cat /root/count); while [ $a = $(cat /root/count) ]; do sleep 0.05; done"
                    assert run(copy.workbench, "sh", "-c", script).status == {"exit": 0}
                    assert work(copy.workbench, b"its own", op="write", path="/root/file").status == {"exit": 0}
                found.add(run(bench, "sh", "-c", who).stdout)
                assert len(found) == 3
                assert all(len({one.split()[part] for one in found}) == 3 for part in (0, 1, 2))
                assert work(bench, op="read", path="/root/file").stdout == b"before"
            finally:
                for copy in copies:
                    copy.destroy()
        numbers = [int(running.line()) for _ in range(20)]
        assert numbers == list(range(2, 22))
        bench.signal(running.number, signal.SIGKILL)
        running.end()

    def test_a_snapshot_of_one_that_stands_still_leaves_it_so(self, bench: Workbench) -> None:
        bench.pause()
        with tempfile.TemporaryDirectory() as directory:
            bench.snapshot(Path(directory))
            assert bench.paused
            assert sorted(os.listdir(directory))
            with pytest.raises(RuntimeUnavailable, match="empty"):
                bench.snapshot(Path(directory))
        bench.resume()
        assert run(bench, "true").status == {"exit": 0}
