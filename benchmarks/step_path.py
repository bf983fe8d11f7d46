"""The step path beside Gymnasium's AsyncVectorEnv, alternating in one run.

    python benchmarks/step_path.py                  # everything, about three minutes
    python benchmarks/step_path.py --only steps --pairs 7 --json benchmarks/results/step_path.json

Each figure is the median of the ratios of at least five pairs measured one after the other, because absolute times
wander on shared machines. Isolation and all limits are on. The ping-pong is what two bare Python processes reach with
one shared array and two eventfds: the floor under any design of this kind.
"""

from __future__ import annotations

import argparse
import json
import mmap
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np

sys.path.insert(0, str(Path(__file__).parent))

from noop import Noop

from agentenv import AgentVectorEnv

AIMS = {"steps 1": 5.0, "steps 10": 6.0, "steps 50": 12.0, "shared 50": 25.0, "breakout 10": 1.5}


def steps_per_second(vec: Any, seconds: float) -> float:
    """Environment steps per second of wall time, stepping with one fixed action."""
    actions = np.zeros(vec.num_envs, np.int64)
    for _ in range(20):
        vec.step(actions)
    started, count = time.perf_counter(), 0
    while (elapsed := time.perf_counter() - started) < seconds:
        for _ in range(10):
            vec.step(actions)
        count += 10 * vec.num_envs
    return count / elapsed


def ping_pong(seconds: float) -> float:
    """Round trips per second of two bare processes over shared memory and eventfds."""
    ask, answer, ring = os.eventfd(0), os.eventfd(0), (1).to_bytes(8, "little")
    memory = mmap.mmap(-1, 4096)
    words, values = memoryview(memory).cast("Q"), np.frombuffer(memory, np.float32, 4, 256)
    pid = os.fork()
    if pid == 0:
        observation = np.zeros(4, np.float32)
        while True:
            os.read(ask, 8)
            if words[0] == 0:
                os._exit(0)
            values[:] = observation
            words[1] = words[0]
            os.write(answer, ring)
    started, count = time.perf_counter(), 0
    while (elapsed := time.perf_counter() - started) < seconds:
        for _ in range(100):
            count += 1
            words[0] = count
            os.write(ask, ring)
            os.read(answer, 8)
            values.copy()
    words[0] = 0
    os.write(ask, ring)
    os.waitpid(pid, 0)
    os.close(ask)
    os.close(answer)
    return count / elapsed


def wake_ups(count: int, seconds: float) -> float:
    """Answers per second of ``count`` bare processes that are woken over an eventfd each and answer over another.

    No environment, no array, no isolation: the floor for one wake-up per environment.
    """
    bells, ring, pids = [(os.eventfd(0), os.eventfd(0)) for _ in range(count)], (1).to_bytes(8, "little"), []
    for ask, answer in bells:
        pid = os.fork()
        if pid == 0:
            while os.read(ask, 8) == ring:
                os.write(answer, ring)
            os._exit(0)
        pids.append(pid)
    started, answers = time.perf_counter(), 0
    while (elapsed := time.perf_counter() - started) < seconds:
        for ask, _ in bells:
            os.write(ask, ring)
        for _, answer in reversed(bells):
            os.read(answer, 8)
        answers += count
    for ask, _ in bells:
        os.write(ask, (2).to_bytes(8, "little"))
    for pid in pids:
        os.waitpid(pid, 0)
    for pair in bells:
        for fd in pair:
            os.close(fd)
    return answers / elapsed


def measure_floor(seconds: float) -> dict[str, Any]:
    """Median of five of ``wake_ups`` at 10 and 50."""
    return {
        f"bare wake-ups {count}": round(statistics.median(wake_ups(count, seconds) for _ in range(5)))
        for count in (10, 50)
    }


def in_pairs(ours: Callable[[], float], theirs: Callable[[], float], pairs: int) -> dict[str, Any]:
    """Measure alternately; the ratio is the median over the pairs."""
    rows = [(ours(), theirs()) for _ in range(pairs)]
    return {
        "ours": round(statistics.median(row[0] for row in rows), 4),
        "theirs": round(statistics.median(row[1] for row in rows), 4),
        "ratio": round(statistics.median(a / b for a, b in rows), 3),
        "pairs": [[round(a, 4), round(b, 4)] for a, b in rows],
    }


def measure_steps(pairs: int, seconds: float) -> dict[str, Any]:
    """Steps per second at 1, 10 and 50 environments, one sandbox each, and 50 in sandboxes of 25."""
    results = {}
    for label, count, shared in (("steps 1", 1, 1), ("steps 10", 10, 1), ("steps 50", 50, 1), ("shared 50", 50, 25)):
        ours = AgentVectorEnv.from_env("noop:Noop", num_envs=count, envs_per_sandbox=shared)
        theirs = gymnasium.vector.AsyncVectorEnv([Noop] * count, shared_memory=True)
        ours.reset(seed=0)
        theirs.reset(seed=0)
        results[label] = in_pairs(
            lambda v=ours: steps_per_second(v, seconds), lambda v=theirs: steps_per_second(v, seconds), pairs
        )
        if count == 1:
            results["ping-pong 1"] = in_pairs(
                lambda v=ours: steps_per_second(v, seconds), lambda: ping_pong(seconds), pairs
            )
        ours.close()
        theirs.close()
    return results


def measure_breakout(pairs: int, seconds: float) -> dict[str, Any]:
    """Ten Atari games with observations of 100 kB."""
    import ale_py

    gymnasium.register_envs(ale_py)
    ours = AgentVectorEnv.from_env("ALE/Breakout-v5", num_envs=10)
    theirs = gymnasium.vector.AsyncVectorEnv([lambda: gymnasium.make("ALE/Breakout-v5")] * 10, shared_memory=True)
    ours.reset(seed=0)
    theirs.reset(seed=0)
    result = in_pairs(lambda: steps_per_second(ours, seconds), lambda: steps_per_second(theirs, seconds), pairs)
    ours.close()
    theirs.close()
    return {"breakout 10": result}


def measure_start(pairs: int) -> dict[str, Any]:
    """Seconds from the constructor's call until 50 environments can be reset."""

    def start(make: Callable[[], Any]) -> float:
        started = time.perf_counter()
        vec = make()
        elapsed = time.perf_counter() - started
        vec.close()
        return elapsed

    return {
        "start 50": in_pairs(
            lambda: start(lambda: AgentVectorEnv.from_env("noop:Noop", num_envs=50)),
            lambda: start(lambda: gymnasium.vector.AsyncVectorEnv([Noop] * 50, shared_memory=True)),
            pairs,
        )
    }


def measure_memory() -> dict[str, Any]:
    """Unshared memory of each process of a sandbox, MB, median of ten, after 200 steps."""
    vec = AgentVectorEnv.from_env("noop:Noop", num_envs=10)
    vec.reset(seed=0)
    steps_per_second(vec, 0.2)
    each = sorted(sum(_private_kb(pid) for pid in _tree(sandbox.pid)) / 1024 for sandbox in vec.sandboxes)
    vec.close()
    return {"unshared MB per environment": round(statistics.median(each), 2)}


def measure_many() -> dict[str, Any]:
    """200 environments started, stepped and closed under the soft limit of descriptors as it is."""
    import resource

    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    started = time.perf_counter()
    vec = AgentVectorEnv.from_env("noop:Noop", num_envs=200)
    vec.reset(seed=0)
    up = time.perf_counter() - started
    rate = steps_per_second(vec, 1.0)
    vec.close()
    return {"200 environments": {"ulimit -n": soft, "start s": round(up, 2), "steps/s": round(rate)}}


def _tree(pid: int) -> list[int]:
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [pid, *[below for child in children for below in _tree(int(child))]]


def _private_kb(pid: int) -> int:
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith("Private_"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=["floor", "steps", "breakout", "start", "memory", "many"])
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=0.7)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    parts = {
        "floor": lambda: measure_floor(options.seconds),
        "steps": lambda: measure_steps(options.pairs, options.seconds),
        "breakout": lambda: measure_breakout(options.pairs, options.seconds),
        "start": lambda: measure_start(options.pairs),
        "memory": measure_memory,
        "many": measure_many,
    }
    results: dict[str, Any] = {
        "machine": f"{os.cpu_count()} cores, {platform.processor() or platform.machine()}, Linux {platform.release()}",
        "python": platform.python_version(),
        "gymnasium": gymnasium.__version__,
        "numpy": np.__version__,
        "load before": os.getloadavg()[0],
    }
    for name, part in parts.items():
        if options.only in (None, name):
            for label, value in part().items():
                results[label] = value
                target = f"  (aim {AIMS[label]})" if label in AIMS else ""
                shown = {k: v for k, v in value.items() if k != "pairs"} if isinstance(value, dict) else value
                print(f"{label:>32}: {shown}{target}", flush=True)
    if options.json:
        options.json.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
