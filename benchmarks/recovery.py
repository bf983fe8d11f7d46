"""Recovery, measured: from kill -9 to the answer of the pending step, what is lost, what is left, what it costs.

    python benchmarks/recovery.py                    # everything, some minutes
    python benchmarks/recovery.py --only latency --kills 200 --json benchmarks/results/recovery.json

Every kill is SIGKILL from outside at a random moment while a step is pending or between two. Trajectories are hashed
step by step over observations, rewards, flags and infos, and compared with those of a run that nobody disturbed.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import os
import platform
import random
import signal
import statistics
import threading
import time
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np

from agentenv import AgentENV, AgentVectorEnv
from agentenv.fleet.pacing import Pace
from agentenv.testing import traces

ENVS = ("CartPole-v1", "agentenv.envs.gridworld:GridWorld", "HalfCheetah-v5")
KEYS: dict[str, Any] = {"max_restarts": 100_000, "restart_backoff_s": 0.0}


def percentile(values: list[float], share: float) -> float:
    """The value below which ``share`` of them lie."""
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]


def environment_process(sandbox: Any) -> int:
    """The process that serves, as the host numbers it."""
    return int(sandbox._worker.pid)


def kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def zygote_process(vec: Any) -> int:
    """The process that environments are forked from, which is the first one inside bubblewrap."""
    return int(Path(f"/proc/self/fdinfo/{vec._context.runtime._zygote._pidfd}").read_text().split("Pid:")[1].split()[0])


def children(pid: int) -> list[int]:
    try:
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except (OSError, ValueError):
        return []


def measure_latency(kills: int) -> dict[str, Any]:
    """Milliseconds from the kill to the return of the pending step, one environment, killed after a random while."""
    results = {}
    rng = random.Random(1)
    for name in ENVS:
        found = []
        with AgentENV.from_env(name, **KEYS) as env:
            env.reset(seed=1)
            env.action_space.seed(1)

            def run(seconds: float, env: AgentENV = env) -> None:
                ends = time.perf_counter() + seconds
                while time.perf_counter() < ends:
                    *_, terminated, truncated, _ = env.step(env.action_space.sample())
                    if terminated or truncated:
                        env.reset()

            run(1.0)
            for _ in range(kills):
                run(rng.uniform(0.05, 0.25))
                killed = time.perf_counter()
                kill(environment_process(env._fleet.sandboxes[0]))
                while env._fleet.recovery.recovered == len(found):
                    *_, terminated, truncated, _ = env.step(env.action_space.sample())
                    if terminated or truncated:
                        env.reset()
                found.append((time.perf_counter() - killed) * 1000)
            unfit = env._fleet.recovery.bases.unfit
        results[f"recovery {name}"] = {
            "p50 ms": round(percentile(found, 0.5), 1),
            "p99 ms": round(percentile(found, 0.99), 1),
            "kills": len(found),
            "kept as": "fork" if unfit else "state",
        }
    return results


def measure_outer(rounds: int) -> dict[str, Any]:
    """Seconds until 20 environments answer again after the process they were forked from was killed with them."""
    found = []
    vec = AgentVectorEnv.from_env("CartPole-v1", num_envs=20, **KEYS)
    vec.reset(seed=1)
    for _ in range(rounds):
        for _ in range(500):
            vec.step(vec.action_space.sample())
        began = time.perf_counter()
        before = vec._fleet.recovery.recovered
        kill(zygote_process(vec))
        while vec._fleet.recovery.recovered < before + 20:
            vec.step(vec.action_space.sample())
        found.append(time.perf_counter() - began)
    vec.close()
    return {"zygote of 20 killed": {"p50 s": round(statistics.median(found), 2), "max s": round(max(found), 2)}}


def fingerprint(env: str, steps: int, kills: int) -> tuple[list[str], float, tuple[int, int]]:
    """20 environments stepped ``steps`` times while another thread kills; hashes, median step, kills and recoveries."""
    vec = AgentVectorEnv.from_env(env, num_envs=20, seed=7, **KEYS)
    hashes = [hashlib.sha256() for _ in range(20)]
    stop = threading.Event()
    rng = random.Random(3)
    done = [0]

    def chaos() -> None:
        while not stop.is_set():
            if done[0] < kills * vec_steps[0] / steps:
                sandboxes = list(vec._fleet.sandboxes)
                cells = [sandbox.pid for sandbox in sandboxes]
                inside = [child for cell in cells for child in children(cell)]
                outer = vec._context.runtime._zygote.pid  # type: ignore[attr-defined]  # bubblewrap's
                try:
                    rare = [outer, *children(outer), zygote_process(vec)]
                except (OSError, IndexError):
                    continue  # it is being started again
                victims = inside if rng.random() < 0.9 else cells if rng.random() < 0.95 else rare
                if victims:
                    kill(rng.choice(victims))
                    done[0] += 1
            time.sleep(rng.uniform(0.0, 0.005))

    vec_steps = [0]
    times = []
    observations, _ = vec.reset()
    vec.action_space.seed(5)
    thread = threading.Thread(target=chaos)
    if kills:
        thread.start()
    try:
        for step in range(steps):
            vec_steps[0] = step + 1
            began = time.perf_counter()
            observations, rewards, terminated, truncated, infos = vec.step(vec.action_space.sample())
            times.append(time.perf_counter() - began)
            for index, digest in enumerate(hashes):
                digest.update(observations[index].tobytes() + rewards[index].tobytes())
                digest.update(bytes([bool(terminated[index]), bool(truncated[index])]))
            for key, values in sorted(infos.items()):
                for index, digest in enumerate(hashes):
                    digest.update(f"{key}={values[index]!r}".encode())
    finally:
        stop.set()
        if kills:
            thread.join()
        recovered = vec._fleet.recovery.recovered
        vec.close()
    return [digest.hexdigest() for digest in hashes], statistics.median(times), (done[0], recovered)


def measure_chaos(kills: int) -> dict[str, Any]:
    """Kills at random moments, of any process of ours, over 20 environments and 200 000 steps."""
    results = {}
    steps = 10_000
    for name in ENVS:
        before = traces.take()
        quiet, quiet_median, _ = fingerprint(name, steps, 0)
        disturbed, median, (done, recovered) = fingerprint(name, steps, kills)
        time.sleep(1.0)
        results[f"chaos {name}"] = {
            "kills": done,
            "deaths recovered": recovered,
            "environment steps": 20 * steps,
            "trajectories that differ": sum(a != b for a, b in zip(quiet, disturbed, strict=True)),
            "left behind": traces.take().left_since(before),
            "median step, disturbed / quiet": round(median / quiet_median, 2),
        }
    return results


def measure_siblings(pairs: int, kills_per_s: float = 2.0) -> dict[str, Any]:
    """The step of 20 environments while one of them is killed again and again, against quiet times, alternating."""
    results = {}
    for name in ENVS[:2]:
        with contextlib.closing(AgentVectorEnv.from_env(name, num_envs=20, seed=7, **KEYS)) as vec:
            vec.reset()
            vec.action_space.seed(5)
            _window(vec, 3.0, 0.0)
            ratios, noise, kills = [], [], 0
            for _ in range(pairs):
                windows = [_window(vec, 2.0, rate) for rate in (0.0, kills_per_s, 0.0)]
                (quiet, _), (disturbed, done), (again, _) = windows
                ratios.append(disturbed / statistics.mean((quiet, again)))
                noise.append(again / quiet)
                kills += done
        results[f"siblings {name}"] = {
            "kills": kills,
            "median step, disturbed / quiet": round(statistics.median(ratios), 3),
            "its range": [round(min(ratios), 3), round(max(ratios), 3)],
            "quiet / quiet, range": [round(min(noise), 3), round(max(noise), 3)],
        }
    return results


def _window(vec: Any, seconds: float, kills_per_s: float) -> tuple[float, int]:
    """The median step over some seconds, in which the first environment is killed between steps; and the kills."""
    times, kills, began = [], 0, time.perf_counter()
    while (now := time.perf_counter()) - began < seconds:
        if kills < (now - began) * kills_per_s:
            kill(environment_process(vec._fleet.sandboxes[0]))
            kills += 1
        actions = vec.action_space.sample()
        now = time.perf_counter()
        vec.step(actions)
        times.append(time.perf_counter() - now)
    return statistics.median(times), kills


def measure_forks(count: int) -> dict[str, Any]:
    """Forks a second, milliseconds from fork(1) to the child's first step, and what an idle child adds in memory."""
    results = {}
    for name in ENVS:
        with AgentENV.from_env(name, memory_mb=2048, pids=512) as env:
            env.reset(seed=1)
            action = env.action_space.sample()
            env.step(action)
            snaps, single = [], []
            for _ in range(20):
                began = time.perf_counter()
                kept = env.snapshot("fork")
                snaps.append((time.perf_counter() - began) * 1000)
                kept.close()
            for _ in range(count):
                began = time.perf_counter()
                (child,) = env.fork(1)
                child.step(action)
                single.append((time.perf_counter() - began) * 1000)
                child.close()
            began = time.perf_counter()
            many = env.fork(count)
            rate = count / (time.perf_counter() - began)
            private = [_private_mb(environment_process(child._fleet.sandboxes[0])) for child in many]
            for child in many:
                child.close()
        results[f"fork {name}"] = {
            "forks/s": round(rate),
            "to the first step, p50 ms": round(percentile(single, 0.5), 1),
            "snapshot as a fork, p50 ms": round(percentile(snaps, 0.5), 1),
            "unshared MB of an idle child": round(statistics.median(private), 2),
        }
    return results


def measure_cost(pairs: int) -> dict[str, Any]:
    """What saving states costs: counted, and as steps a second with recovery on against off.

    They alternate every quarter of a second, because the machine's own speed wanders by more than what is looked for,
    and are paced alike, because the choice of a pace is not what is measured. A second one with recovery off tells
    how far two that are alike differ. Counted are the seconds spent on
    saving, as share of those in which the host waited for environments. The first time is told by itself: it tries out
    which way of saving holds everything, and parks the copies.
    """
    results = {}
    for name, count in ((ENVS[0], 1), (ENVS[0], 10), (ENVS[1], 10), (ENVS[2], 4)):
        vectors = [
            AgentVectorEnv.from_env(name, num_envs=count, checkpoint_every=every)
            for every in ("auto", "never", "never")
        ]
        for vec in vectors:
            vec.reset(seed=1)
            vec._pacing = None
            if count > 1:
                vec._fleet.set_pace(Pace.PATIENT, 20.0)
        saving = vectors[0]._fleet
        bases = saving.recovery.bases
        while not bases.spent_s:
            _rate(vectors[0], 0.05)
        first_s, since_s = bases.spent_s, saving.busy_s
        for vec in vectors:
            _rate(vec, 1.0)
        rates = [[_rate(vec, 0.25) for vec in vectors] for _ in range(pairs)]
        assert not any(vec._fleet.recovery.bases.spent_s for vec in vectors[1:])
        share = (bases.spent_s - first_s) / (saving.busy_s - since_s)
        for vec in vectors:
            vec.close()
        results[f"saving states, {name} x {count}"] = {
            "share of the environments' time, %": round(100 * share, 2),
            "rate, auto / never": round(statistics.median(a / b for a, b, _ in rates), 3),
            "rate, never / never": round(statistics.median(c / b for _, b, c in rates), 3),
            "pairs": pairs,
            "first time, ms": round(1000 * first_s, 1),
        }
    return results


def _rate(vec: AgentVectorEnv, seconds: float) -> float:
    """Steps of the vector a second."""
    actions = vec.action_space.sample()
    began, steps = time.perf_counter(), 0
    while time.perf_counter() - began < seconds:
        for _ in range(10):
            vec.step(actions)
        steps += 10
    return steps / (time.perf_counter() - began)


def _private_mb(pid: int) -> float:
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith("Private_")) / 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=["latency", "outer", "siblings", "chaos", "forks", "cost"])
    parser.add_argument("--kills", type=int, default=100, help="kills for each environment (default 100)")
    parser.add_argument("--chaos", type=int, default=1000, help="kills of the chaos part (default 1000)")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    parts = {
        "latency": lambda: measure_latency(options.kills),
        "outer": lambda: measure_outer(5),
        "siblings": lambda: measure_siblings(6),
        "forks": lambda: measure_forks(50),
        "cost": lambda: measure_cost(40),
        "chaos": lambda: measure_chaos(options.chaos),
    }
    results: dict[str, Any] = {
        "machine": f"{os.cpu_count()} cores, {platform.machine()}, Linux {platform.release()}",
        "python": platform.python_version(),
        "gymnasium": gymnasium.__version__,
        "numpy": np.__version__,
        "load before": os.getloadavg()[0],
    }
    for name, part in parts.items():
        if options.only in (None, name):
            for label, value in part().items():
                results[label] = value
                print(f"{label:>45}: {value}", flush=True)
    if options.json:
        options.json.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
