"""Ten thousand lives: what is left of the machine after creating, stepping and closing sandboxes again and again.

    python benchmarks/lifetimes.py                                  # 10 000 sandboxes and 100 whole runs, some minutes
    python benchmarks/lifetimes.py --cycles 500 --runs 10
    python benchmarks/lifetimes.py --json benchmarks/results/lifetimes.json

Two lives are repeated. *Sandboxes*: one runtime stays open, and in it sandboxes are created, reset, stepped and
closed one after the other, each with its namespaces, control group, shared memory, bells, pipes and watch. *Runs*:
``AgentENV`` from the constructor to ``close``, each with a runtime, a zygote and threads of its own; slower, so fewer.

Descriptors, threads, processes (zombies too), control groups under every controller, mounts, and files (the run
directory, this process's temporary files, and whatever in /tmp, /dev/shm and /run carries a run id of this process)
must be the same number before and after: exit code 1 if one is not. The memory of the process is judged by the slope
over all cycles: it leaks if it grows throughout, with 99 % confidence, by more than 64 bytes a cycle and 1 MiB in all.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))

from agentenv import AgentENV, Config, load_config
from agentenv.fleet.context import RunContext
from agentenv.fleet.fleet import Fleet
from agentenv.fleet.manifest import git_state
from agentenv.sandbox.runtimes._runid import new_run_id
from agentenv.soak import counts
from agentenv.soak.judge import HOUR_S, Limit, Outcome, judge
from agentenv.soak.sampler import temporary_files_in
from agentenv.wire.slot import Op
from agentenv.wire.values import encode

WARM_UP = 20
LOOKS = 500
BYTES_A_CYCLE, LEAST_BYTES = 64.0, 1 << 20
PLACES = (Path("/tmp"), Path("/dev/shm"), Path("/run"))


def holdings(mine: str, *folders: Path) -> dict[str, int]:
    """What this process holds now; ``mine`` is how all its run ids begin."""
    return {
        "descriptors": counts.own_descriptors(),
        "threads": counts.own_threads(),
        "processes": counts.own_processes(),
        "cgroups": counts.count_groups(counts.find_groups([f"agentenv.{mine}"])),
        "mounts": len(Path("/proc/self/mountinfo").read_bytes().splitlines()),
        "files": sum(len(names) + len(below) for folder in folders for _, below, names in os.walk(folder))
        + sum(1 for _ in counts.named_after([mine], PLACES)),
    }


def settle(mine: str, folders: list[Path], wanted: dict[str, int], within_s: float = 10.0) -> dict[str, int]:
    """The holdings as soon as they are what is wanted, or after a time: the kernel is a moment behind."""
    ends = time.monotonic() + within_s
    while (found := holdings(mine, *folders)) != wanted and time.monotonic() < ends:
        time.sleep(0.02)
    return found


def repeat(live: Callable[[int], None], cycles: int, mine: str, folders: list[Path]) -> dict[str, Any]:
    """Live ``cycles`` times, after a few times that do not count."""
    for number in range(WARM_UP):
        live(number)
    before = holdings(mine, *folders)
    every = max(1, cycles // LOOKS)
    numbers, memory = [], []
    began = time.monotonic()
    for number in range(cycles):
        live(number)
        if number % every == 0:
            numbers.append(float(number))
            memory.append(counts.own_memory_mb() * counts.MIB)
        if sys.stderr.isatty() and number % 100 == 0:
            print(f"\r{number} of {cycles}", end="", file=sys.stderr, flush=True)
    elapsed_s = time.monotonic() - began
    after = settle(mine, folders, before)
    # A cycle stands for a second here, so that a slope is in bytes a cycle.
    verdict = judge(numbers, memory, Limit(BYTES_A_CYCLE * HOUR_S, LEAST_BYTES))
    trend = verdict.trend
    return {
        "cycles": cycles,
        "ms a cycle": round(1000 * elapsed_s / cycles, 2),
        "before": before,
        "after": after,
        "growth": {name: after[name] - before[name] for name in before},
        "memory MB": [round(memory[0] / counts.MIB, 2), round(memory[-1] / counts.MIB, 2)],
        "memory MB over the cycles": [round(x / counts.MIB, 2) for x in memory[:: max(1, len(memory) // 25)]],
        "bytes a cycle": None if trend is None else [round(x, 2) for x in (trend.slope, trend.low, trend.high)],
        "memory": f"{verdict.outcome.value}: {verdict.reason}",
        "flat": verdict.outcome is Outcome.STEADY or trend is None,
    }


def live_in_one_run(context: RunContext, config: Config) -> Callable[[int], None]:
    """A function that creates a sandbox in an open runtime, steps its environment and closes it."""
    members = list(config.expand())

    def live(number: int) -> None:
        fleet = Fleet(context, members)
        try:
            fleet.exchange(Op.RESET, 60.0, None, [encode([number, None])])
            fleet.action_bytes[:] = 0
            for _ in range(3):
                fleet.exchange(Op.STEP, 60.0)
            if not np.isfinite(fleet.channel.rewards).all():
                raise RuntimeError(f"cycle {number}: a reward that is not finite")
        finally:
            fleet.close()

    return live


def live_whole(config: Config) -> Callable[[int], None]:
    """A function that opens everything, steps one environment and closes everything."""

    def live(number: int) -> None:
        env = AgentENV(config)
        try:
            env.reset(seed=number)
            for _ in range(3):
                env.step(env.action_space.sample())
        finally:
            env.close()

    return live


def show(label: str, result: dict[str, Any]) -> None:
    """Print one result."""
    grown = {name: by for name, by in result["growth"].items() if by}
    low_high = result["bytes a cycle"]
    slope = "too few cycles for a slope" if low_high is None else "{} ({} to {}) bytes a cycle".format(*low_high)
    print(f"{label}: {result['cycles']} cycles of {result['ms a cycle']} ms; growth {grown or 'none'}")
    print(f"  held {result['after']}")
    print(f"  memory {result['memory MB'][0]} to {result['memory MB'][1]} MB, {slope}: {result['memory']}", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cycles", type=int, default=10_000, help="sandboxes in one open runtime")
    parser.add_argument("--runs", type=int, default=100, help="whole runs")
    parser.add_argument("--env", default="agentenv/GridWorld-v0", help="such as noop:Noop")
    parser.add_argument("--runtime", default="auto")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    mine = new_run_id().rpartition("-")[0]
    results: dict[str, Any] = {
        "machine": f"{os.cpu_count()} cores, {platform.processor() or platform.machine()}, Linux {platform.release()}",
        "python": platform.python_version(),
        "sources": git_state(Path(__file__).parent),
        "environment": options.env,
        "load before": os.getloadavg()[0],
    }
    with ExitStack() as stack:
        place = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="agentenv-lifetimes-")))
        stack.enter_context(temporary_files_in(place / "tmp"))
        place.chmod(0o755)
        config = load_config(
            {
                "global": {"seed": 1, "runtime": options.runtime, "run_dir": str(place / "runs")},
                "environments": [{"id": "grid", "env": options.env}],
            }
        )
        if options.cycles > 0:
            context = RunContext(config, list(config.expand()), record=True)
            try:
                results["runtime"] = context.runtime_name
                results["sandboxes"] = repeat(live_in_one_run(context, config), options.cycles, mine, [place])
            finally:
                context.close()
            show("sandboxes in one run", results["sandboxes"])
        if options.runs > 0:
            results["runs"] = repeat(live_whole(config), options.runs, mine, [place])
            show("whole runs", results["runs"])
    if options.json:
        options.json.write_text(json.dumps(results, indent=1) + "\n")
    parts = [results[name] for name in ("sandboxes", "runs") if name in results]
    return 0 if all(part["flat"] and not any(part["growth"].values()) for part in parts) else 1


if __name__ == "__main__":
    sys.exit(main())
