"""What one step asks of the kernel, counted by strace: at most a write and a read for each sandbox, and giving way."""

from __future__ import annotations

import collections
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

STEPS = 200
# A vector changes its pace now and then, and a bell may have been rung twice: neither is part of every step.
RARE = 0.05
# Memory for numpy, the interpreter's lock beside the watch's thread: not the channel's. It gives way before it sleeps.
NOT_OURS = {"futex", "brk", "mmap", "munmap", "mremap", "madvise", "sched_yield", "restart_syscall", "rt_sigreturn"}

_SCRIPT = """
import os, sys
from agentenv import AgentENV, AgentVectorEnv

num_envs, per_sandbox = int(sys.argv[1]), int(sys.argv[2])
if num_envs:
    env = AgentVectorEnv.from_env(
        "agentenv.testing.samples:Patient",
        num_envs=num_envs,
        envs_per_sandbox=per_sandbox,
        runtime="process",
        checkpoint_every="never",  # saving states is not part of a step
    )
else:
    env = AgentENV.from_env("agentenv.testing.samples:Patient", checkpoint_every="never", runtime="process")
env.reset(seed=1)
action = env.action_space.sample()
env.step(action)
os.access("/begin-counting", 0)
for _ in range({steps}):
    env.step(action)
os.access("/end-counting", 0)
env.close()
"""


def _calls_per_step(tmp_path: Path, num_envs: int, per_sandbox: int) -> dict[str, float]:
    """Calls of the host's main thread, by name, for one step."""
    trace = tmp_path / "trace"
    script = _SCRIPT.format(steps=STEPS)
    command = ["strace", "-o", str(trace), sys.executable, "-c", script, str(num_envs), str(per_sandbox)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    if "ptrace" in done.stderr and done.returncode:
        pytest.skip("strace may not trace here; allow ptrace (sysctl kernel.yama.ptrace_scope=0) to count system calls")
    assert done.returncode == 0, done.stderr
    text = trace.read_text()
    counted = text[text.index("/begin-counting") : text.index("/end-counting")]
    names = re.findall(r"^(\w+)\(", counted, re.MULTILINE)
    calls = collections.Counter(name for name in names if name not in NOT_OURS and name != "access")
    calls.pop("faccessat", None)
    return {name: count / STEPS for name, count in calls.items()}


@pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed: apt-get install strace")
@pytest.mark.parametrize(("num_envs", "per_sandbox", "sandboxes"), [(0, 1, 1), (1, 1, 1), (4, 1, 4), (6, 3, 2)])
def test_a_step_costs_at_most_a_write_and_a_read_for_each_sandbox(
    tmp_path: Path, num_envs: int, per_sandbox: int, sandboxes: int
) -> None:
    calls = _calls_per_step(tmp_path, num_envs, per_sandbox)
    assert set(calls) <= {"write", "read"}, calls
    assert calls.get("write", 0) <= sandboxes * (1 + RARE)
    assert calls.get("read", 0) <= sandboxes * (1 + RARE)


def test_the_count_can_fail(tmp_path: Path) -> None:
    """The counter sees what it has to: a poll in the middle of the counted part is found."""
    if shutil.which("strace") is None:
        pytest.skip("strace is not installed: apt-get install strace")
    trace = tmp_path / "trace"
    script = "import os, select; os.access('/begin-counting', 0); select.poll().poll(0); os.access('/end-counting', 0)"
    done = subprocess.run(["strace", "-o", str(trace), sys.executable, "-c", script], check=False, capture_output=True)
    if done.returncode:
        pytest.skip(f"strace may not trace here: {os.fsdecode(done.stderr)[:200]}")
    text = trace.read_text()
    assert "poll(" in text[text.index("/begin-counting") : text.index("/end-counting")]
