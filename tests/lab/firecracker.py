"""What is tried with Firecracker where KVM works: run by hand there, or in the emulated machine of tools/kvmlab.

    python tests/lab/firecracker.py [play_example] [kill_one]

Plays the example, kills a monitor in the middle of a run and compares, leaves nothing behind; prints a line for each.
Without names all of it.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import closing
from pathlib import Path
from typing import Any

from agentenv import AgentVectorEnv
from agentenv.testing import exact, traces

ROOT = Path(__file__).resolve().parents[2]
KEYS: dict[str, Any] = {"runtime": "firecracker", "memory_mb": 256, "start_timeout_s": 240.0}


def play_example() -> str:
    with tempfile.TemporaryDirectory() as directory:
        command = [sys.executable, "-m", "agentenv", "run", str(ROOT / "examples/firecracker.toml"), "--json"]
        done = subprocess.run(command, cwd=directory, capture_output=True, text=True, timeout=400, check=False)
    assert done.returncode == 0, done.stderr
    summary = json.loads(done.stdout)
    episodes = {one["id"]: one["episodes"] for one in summary["environments"]}
    assert episodes == {"cartpole": 3, "gridworld": 1}, summary
    return f"{episodes}"


def played(kill_at: int) -> list[Any]:
    with closing(AgentVectorEnv.from_env("CartPole-v1", num_envs=2, seed=5, **KEYS)) as vec:
        seen: list[Any] = [vec.reset(seed=1)[0].copy()]
        vec.action_space.seed(3)
        for step in range(30):
            if step == kill_at:
                os.kill(vec._fleet.sandboxes[0].pid, signal.SIGKILL)
            observations, rewards, terminated, truncated, infos = vec.step(vec.action_space.sample())
            seen.append((observations.copy(), rewards.copy(), terminated.copy(), truncated.copy(), infos))
        assert vec._fleet.recovery.recovered == (kill_at >= 0)
        return seen


def kill_one() -> str:
    before = traces.take()
    quiet = played(-1)
    exact.assert_same(played(12), quiet)
    assert traces.take().left_since(before) == []
    return "one of two was killed, and nothing differs"


def main() -> None:
    parts = {part.__name__: part for part in (play_example, kill_one)}
    for part in map(parts.__getitem__, sys.argv[1:] or parts):
        began = time.monotonic()
        said = part()
        print(f"{part.__name__}: {said} ({time.monotonic() - began:.0f} s)", flush=True)


if __name__ == "__main__":
    main()
