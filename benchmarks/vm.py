"""Machines, measured: booting against bringing back, many against one, and what the host does for each.

    agentenv kernel fetch; agentenv image build gymnasium --from debian:bookworm --pip gymnasium numpy
    python benchmarks/vm.py --json benchmarks/results/vm.json

Without KVM everything is emulated, and absolute times mean nothing; the ratios do. With KVM the same command gives
times that can be put beside what others state of theirs.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import tempfile
import time
from contextlib import closing
from pathlib import Path
from typing import Any

from agentenv import AgentVectorEnv
from agentenv.config import load_config
from agentenv.fleet.context import RunContext
from agentenv.sandbox.runtimes._vm.agent import greet
from agentenv.sandbox.runtimes._vm.files import copy_sparsely
from agentenv.sandbox.runtimes._vm.templates import SCRATCH

KEYS: dict[str, Any] = {"memory_mb": 256, "start_timeout_s": 300.0}


def config(runtime: str) -> Any:
    return load_config(
        {"global": {"runtime": runtime}, "environments": [{"id": "bench", "env": "CartPole-v1", **KEYS}]}
    )


def measure_bare(runtime: str, rounds: int) -> dict[str, list[float]]:
    """Seconds from the start of a monitor to the agent's answer: booted, and brought back, without anything of ours."""
    found = config(runtime)
    context = RunContext(found, found.expand(), record=False)
    booted, restored = [], []
    try:
        machines: Any = context.runtime
        spec, files, template = machines._plan(context.spec("bench", found.expand()))
        for number in range(rounds):
            for times, source in ((booted, files.scratch), (restored, template / SCRATCH)):
                with tempfile.TemporaryDirectory() as directory:
                    home = Path(directory)
                    copy_sparsely(source, home / SCRATCH)
                    began = time.perf_counter()
                    if times is booted:
                        machine = machines._hypervisor.boot(spec, home)
                    else:
                        machine = machines._hypervisor.restore(spec, home, template)
                        machine.resume()
                    try:
                        with machine.connect(120.0) as stream:
                            greet(stream, 60.0)
                        times.append(time.perf_counter() - began)
                    finally:
                        machine.close()
            print(f"round {number + 1} of {rounds}", end="\r", flush=True)
    finally:
        context.close()
    return {"booted": booted, "restored": restored}


def measure_whole(runtime: str, count: int) -> dict[str, float]:
    """Seconds until ``count`` environments have taken their first step, a step after that, and the host's share."""
    cpu = time.process_time()
    began = time.perf_counter()
    with closing(AgentVectorEnv.from_env("CartPole-v1", num_envs=count, runtime=runtime, **KEYS)) as vec:
        vec.reset(seed=1)
        vec.step(vec.action_space.sample())
        first = time.perf_counter() - began
        cpu = time.process_time() - cpu
        times = []
        for _ in range(100):
            actions = vec.action_space.sample()
            began = time.perf_counter()
            vec.step(actions)
            times.append(time.perf_counter() - began)
        homes = [sandbox.home for sandbox in vec._fleet.sandboxes]  # type: ignore[attr-defined]  # machines'
        disk = [sum(path.stat().st_blocks * 512 for path in home.rglob("*") if path.is_file()) for home in homes]
        memory = [usage.memory_bytes for usage in vec._fleet.usage() if usage is not None]
    return {
        "first step s": first,
        "step ms": 1000 * statistics.median(times),
        "host CPU ms for each": 1000 * cpu / count,
        "disk KB of each": statistics.median(disk) / 1024,
        "memory MB of each": statistics.median(memory) / 2**20,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runtime", choices=["qemu", "firecracker"], default="qemu")
    parser.add_argument("--rounds", type=int, default=5, help="boots, restores and starts (default 5)")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    bare = measure_bare(options.runtime, options.rounds)
    ones = [measure_whole(options.runtime, 1) for _ in range(options.rounds)]
    fours = [measure_whole(options.runtime, 4) for _ in range(options.rounds)]
    boot, restore = (statistics.median(bare[key]) for key in ("booted", "restored"))

    def middle(runs: list[dict[str, float]], key: str) -> float:
        return statistics.median(run[key] for run in runs)

    results: dict[str, Any] = {
        "machine": f"{os.cpu_count()} cores, {platform.machine()}, Linux {platform.release()}",
        "runtime": options.runtime,
        "load before": os.getloadavg()[0],
        "boot to the agent's answer, s": round(boot, 2),
        "restore to the agent's answer, s": round(restore, 3),
        "restore / boot": round(restore / boot, 3),
        "one: start to first step, s": round(middle(ones, "first step s"), 2),
        "one: start to first step / bare boot": round(middle(ones, "first step s") / boot, 3),
        "four: start to first step, s": round(middle(fours, "first step s"), 2),
        "four / one": round(middle(fours, "first step s") / middle(ones, "first step s"), 2),
        "step of one, ms": round(middle(ones, "step ms"), 2),
        "step of four, ms": round(middle(fours, "step ms"), 2),
        "host CPU for each of four, ms": round(middle(fours, "host CPU ms for each"), 1),
        "disk of each, KB": round(middle(fours, "disk KB of each")),
        "memory of each, MB": round(middle(fours, "memory MB of each")),
    }
    for label, value in results.items():
        print(f"{label:>40}: {value}")
    if options.json:
        options.json.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
