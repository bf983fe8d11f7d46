"""Talking to a program until it ends: real programs of this host, whose wrapper tells how they ended, as agents do."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

import pytest

from agentenv.boxes.exchange import Exchange, converse
from agentenv.boxes.pipes import Pipes

_WRAPPER = """
import os, subprocess, sys
done = subprocess.run(["/bin/sh", "-c", sys.argv[2]])
told = b'{"exit": %d}' % done.returncode if done.returncode >= 0 else b'{"signal": %d}' % -done.returncode
os.write(int(sys.argv[1]), told)
"""


@dataclass
class Program:
    pipes: Pipes
    process: subprocess.Popen[bytes]

    def kill(self) -> None:
        os.killpg(self.process.pid, signal.SIGKILL)


@contextmanager
def program(script: str, *, stdin: bool = False) -> Iterator[Program]:
    pipes = Pipes(stdin=stdin)
    theirs = pipes.theirs
    process = subprocess.Popen(
        [sys.executable, "-c", _WRAPPER, str(theirs.status), script],
        stdin=theirs.stdin if stdin else subprocess.DEVNULL,
        stdout=theirs.stdout,
        stderr=theirs.stderr,
        pass_fds=(theirs.status,),
        start_new_session=True,
    )
    pipes.send_off()
    with process:
        try:
            yield Program(pipes, process)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            pipes.close()


def run(script: str, stdin: bytes = b"", *, most_bytes: int = 1 << 30, timeout_s: float | None = None) -> Exchange:
    with program(script, stdin=bool(stdin)) as one:
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        return converse(one.pipes, stdin, deadline=deadline, most_bytes=most_bytes, kill=one.kill)


def test_both_outputs_and_the_end_come() -> None:
    done = run("echo out; echo err >&2; exit 3")
    assert (bytes(done.stdout), bytes(done.stderr), bytes(done.status)) == (b"out\n", b"err\n", b'{"exit": 3}')
    assert (done.timed_out, done.truncated, done.deaf) == (False, False, False)


def test_what_is_larger_than_any_pipe_goes_both_ways_at_once() -> None:
    data = os.urandom(1 << 16) * 64
    done = run("cat; cat >&2 </dev/null", data)
    assert bytes(done.stdout) == data


def test_megabytes_of_errors_before_anything_is_read_are_no_deadlock() -> None:
    done = run("head -c 3000000 /dev/zero >&2; wc -c", b"x" * 2_000_000)
    assert len(done.stderr) == 3_000_000
    assert done.stdout.strip() == b"2000000"


def test_a_program_that_does_not_read_is_no_error() -> None:
    done = run("exec <&-; exit 4", b"x" * 1_000_000)
    assert bytes(done.status) == b'{"exit": 4}'


def test_the_beginning_is_kept_and_the_rest_is_read_all_the_same() -> None:
    done = run("printf 0123456789; head -c 500000 /dev/zero; echo done >&2", most_bytes=8)
    assert bytes(done.stdout) == b"01234567"
    assert bytes(done.stderr) == b"done\n"
    assert done.truncated


def test_exactly_what_may_be_kept_is_not_called_truncated() -> None:
    assert not run("printf 01234567", most_bytes=8).truncated


def test_output_that_was_closed_does_not_end_it() -> None:
    done = run("exec >&- 2>&-; sleep 0.2; exit 6")
    assert bytes(done.status) == b'{"exit": 6}'


def test_what_is_left_running_does_not_hold_it_up() -> None:
    done = run("sleep 600 & echo begun")
    assert (bytes(done.stdout), bytes(done.status)) == (b"begun\n", b'{"exit": 0}')


def test_what_is_left_running_and_writes_for_ever_does_not_hold_it_up_either() -> None:
    done = run("yes & exit 0", most_bytes=100)
    assert bytes(done.status) == b'{"exit": 0}'


@pytest.mark.parametrize(
    "script", ["sleep 600", "exec >&- 2>&-; sleep 600", "while :; do echo x; done", "cat; sleep 600"]
)
def test_the_end_of_its_time_ends_it(script: str) -> None:
    done = run(script, b"some" if "cat" in script else b"", timeout_s=0.3, most_bytes=100)
    assert done.timed_out
    # The wrapper was killed as well, so that nobody tells how it ended: as when a machine ends.
    assert not done.status
    assert not done.deaf


def test_nobody_tells_how_it_ended() -> None:
    with program("echo some; kill -9 $PPID") as one:
        done = converse(one.pipes, b"", deadline=None, most_bytes=100, kill=one.kill)
    assert (bytes(done.stdout), bytes(done.status)) == (b"some\n", b"")


def test_pipes_are_closed_however_it_ends() -> None:
    before = sorted(os.listdir("/proc/self/fd"))
    for stdin in (b"", b"x"):
        run("cat", stdin)
    assert sorted(os.listdir("/proc/self/fd")) == before
