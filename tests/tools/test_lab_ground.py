"""When the emulated machine is run again, and when what failed in it has failed."""

from __future__ import annotations

import subprocess

import pytest

from lab_ground import blame


def _done(returncode: int, stdout: str = "", stderr: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.CompletedProcess(["tools/kvmlab"], returncode, stdout, stderr)


@pytest.mark.parametrize(
    ("done", "reason"),
    [
        (_done(125, stderr="Kernel panic - not syncing: Fatal exception"), "its kernel panicked"),
        (_done(125, stderr="a sign of life of the machine every 120 s, it stands still; it printed"), "it stood still"),
        (_done(1, "rcu: INFO: rcu_preempt detected stall"), "a guest's kernel stood still"),
        (_done(1, "rcu: INFO: rcu_sched self-detected stall on CPU"), "a guest's kernel stood still"),
        (
            _done(1, "ended while booting: its kernel panicked: Attempted to kill the idle task!"),
            "a guest's kernel faulted",
        ),
        (_done(1, "BUG: unable to handle page fault for address: 0000000000000008"), "a guest's kernel faulted"),
    ],
)
def test_what_only_an_emulator_does_is_tried_again(done: subprocess.CompletedProcess[str], reason: str) -> None:
    assert blame(done) == reason


@pytest.mark.parametrize(
    "done",
    [
        _done(0, "rcu: INFO: rcu_preempt detected stall"),
        _done(1, "assert 1 == 2"),
        _done(125, stderr="no room for the machine"),
        _done(124, stderr="timeout"),
        _done(1, "its kernel panicked: sysrq triggered crash"),
        _done(1, "its kernel panicked: Attempted to kill init! exitcode=0x00000009"),
    ],
)
def test_everything_else_is_told(done: subprocess.CompletedProcess[str]) -> None:
    assert blame(done) == ""
