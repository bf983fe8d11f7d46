"""Stacks in what was printed, and states of processes. Real sandboxes: tests/sandbox/test_cause_seen.py."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

from hypothesis import given
from hypothesis import strategies as st

from agentenv.fleet.evidence import STACK_BYTES, find_stack, full_disks, state_of
from agentenv.testing.leftovers import becomes_true

# As CPython 3.11 printed them.
TWO_THREADS = """Thread 0x00007f3c57fff6c0 (most recent call first):
  File "/env/work.py", line 12 in hold
  File "/usr/lib/python3.11/threading.py", line 982 in run

Current thread 0x00007f3c5884eb80 (most recent call first):
  File "/env/work.py", line 32 in spin
  File "<string>", line 1 in <module>
"""
SEGFAULT = """Fatal Python error: Segmentation fault

Current thread 0x00007f3c5884eb80 (most recent call first):
  File "/usr/lib/python3.11/ctypes/__init__.py", line 519 in string_at
  File "/env/work.py", line 66 in segfault
  ...

Extension modules: numpy._core._multiarray_umath (total: 1)
"""


def test_stacks_are_cut_out_of_what_stands_around_them() -> None:
    found = find_stack("a warning\n" + TWO_THREADS + "and on it goes\n  indented\n")
    assert found == TWO_THREADS.replace("\n\n", "\n").rstrip("\n")


def test_a_fatal_error_is_named_and_replaces_what_came_before() -> None:
    lines = find_stack(TWO_THREADS + SEGFAULT).split("\n")
    assert (lines[0], lines[-2], lines[-1]) == (
        "Fatal Python error: Segmentation fault",
        '  File "/env/work.py", line 66 in segfault',
        "  ...",
    )


def test_without_stacks_there_is_nothing() -> None:
    assert find_stack("") == ""
    assert find_stack("Fatal Python error: Segmentation fault\n") == ""
    assert find_stack('  File "/env/work.py", line 66 in segfault\n') == ""


@given(st.text())
def test_any_text_is_taken(text: str) -> None:
    assert len(find_stack(TWO_THREADS + text)) <= STACK_BYTES


def test_a_dump_without_end_is_cut() -> None:
    endless = TWO_THREADS + '  File "/env/work.py", line 1 in f\n' * 10_000
    assert len(find_stack(endless)) <= STACK_BYTES


def test_states_of_a_process() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        assert becomes_true(lambda: state_of(process.pid) == "sleeping", 10)
        process.send_signal(signal.SIGSTOP)
        assert becomes_true(lambda: state_of(process.pid) == "stopped", 10)
        process.send_signal(signal.SIGCONT)
        process.kill()
        assert becomes_true(lambda: state_of(process.pid) == "gone", 10)
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as process:
        assert becomes_true(lambda: state_of(process.pid) == "running", 10)
        process.kill()
    assert state_of(process.pid) == "gone"


def test_a_disk_with_room_is_not_full() -> None:
    assert full_disks(os.getpid()) == ()
