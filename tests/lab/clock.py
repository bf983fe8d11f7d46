"""What happens when the host's clock is set, by hours: run in the emulated machine of tools/kvmlab, and only there.

    tools/kvmlab run --memory=6000 -- .venv/bin/python tests/lab/clock.py [PART ...]

Environments are stepped, killed, late, paused, kept and brought back while the clock leaps, and compared with ones that
nothing happened to; prints a line for each part.
"""

from __future__ import annotations

import os
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

sys.path.append(str(Path(__file__).resolve().parents[1]))

from agentenv import AgentENV, AgentVectorEnv
from agentenv.errors import CauseKind, StepTimeout
from agentenv.fleet.rundir import RunDir
from agentenv.fleet.runs import find_run, list_runs
from agentenv.testing import exact, traces

HOUR_S = 3600.0
KEYS: dict[str, Any] = {"memory_mb": 256, "start_timeout_s": 240.0, "disk_mb": 64}
NEAR_S = 120.0
"""How far apart two clocks are that count as the same: everything is slow there, and leaps are of hours."""


def leap(hours: float) -> None:
    """Set the clock."""
    time.clock_settime(time.CLOCK_REALTIME, time.time() + hours * HOUR_S)


def played(runtime: str, leaps: dict[int, float]) -> list[Any]:
    """What two environments answer. Before some steps the clock leaps, and the first environment is killed."""
    with closing(AgentVectorEnv.from_env("frail:Walk", num_envs=2, seed=5, runtime=runtime, **KEYS)) as vec:
        seen: list[Any] = [vec.reset(seed=1)[0].copy()]
        vec.action_space.seed(3)
        for step in range(30):
            if step in leaps:
                leap(leaps[step])
                vec._fleet.sandboxes[0].kill()
            observations, rewards, terminated, truncated, infos = vec.step(vec.action_space.sample())
            seen.append((observations.copy(), rewards.copy(), terminated.copy(), truncated.copy(), infos))
        assert vec._fleet.recovery.recovered == len(leaps)
        return seen


def step_and_kill(runtime: str) -> str:
    before = traces.take()
    quiet = played(runtime, {})
    exact.assert_same(played(runtime, {4: 5.0, 11: -9.0, 20: 4.0}), quiet)
    assert traces.take().left_since(before) == []
    return "the clock leapt three times, and nothing differs"


def be_late(runtime: str) -> str:
    """A deadline that is running passes neither at once nor never."""
    for hours in (5.0, -9.0, 4.0):
        env = AgentENV.from_env("frail:Particular", runtime=runtime, step_timeout_s=20.0, on_crash="raise", **KEYS)
        with closing(env):
            env.reset(seed=1)
            timer = threading.Timer(5.0, leap, [hours])
            timer.start()
            began = time.monotonic()
            with pytest.raises(StepTimeout) as caught:
                env.step(1)
            timer.join()
            assert caught.value.cause.kind in (CauseKind.TIMEOUT, CauseKind.FROZEN), caught.value.cause
            assert time.monotonic() - began >= 20.0, "it was too early"
    return "late when it was, wherever the clock had gone"


def stand_still(runtime: str) -> str:
    """The clock in a machine is the host's after it stood still, and after it was brought back."""
    with closing(AgentENV.from_env("frail:Itself", runtime=runtime, **KEYS)) as env:
        env.reset(seed=1)
        moment = env.snapshot(how="machine")
        for hours in (7.0, -12.0, 5.0):
            bench = env._fleet.sandboxes[0].workbench
            assert bench is not None
            bench.pause()
            leap(hours)
            bench.resume()
            assert abs(env.call("who")["time"] - time.time()) < NEAR_S, "after it stood still"
            leap(hours / 2)
            env.restore(moment)
            assert abs(env.call("who")["time"] - time.time()) < NEAR_S, "after it was brought back"
            leap(-hours / 2)
    return "its clock is the host's"


def list_them(_runtime: str) -> str:
    with tempfile.TemporaryDirectory() as directory:
        root = Path(directory)
        for name, hours in (("first", -9.0), ("second", 5.0), ("third", -30.0), ("fourth", 34.0)):
            RunDir.create(root, name, f"id-{name}")
            assert find_run(root, "latest").run_id == f"id-{name}"
            leap(hours)
        assert [run.run_id for run in list_runs(root)] == ["id-first", "id-second", "id-third", "id-fourth"]
    return "in the order they were made, and the latest is the latest"


PARTS: dict[str, tuple[Callable[[str], str], ...]] = {
    "bubblewrap": (list_them, step_and_kill, be_late),
    "firecracker": (step_and_kill, be_late, stand_still),
}


def main() -> None:
    if os.environ.get("KVMLAB") != "1":
        sys.exit("this sets the clock: expected to be run by tools/kvmlab")
    wanted = sys.argv[1:]
    for runtime, parts in PARTS.items():
        for part in parts:
            if wanted and part.__name__ not in wanted:
                continue
            began = time.monotonic()
            said = part(runtime)
            print(f"{runtime}, {part.__name__}: {said} ({time.monotonic() - began:.0f} s)", flush=True)


if __name__ == "__main__":
    main()
