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
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

from bare_firecracker import BareFirecracker

from agentenv import AgentENV, AgentVectorEnv
from agentenv.config import load_config
from agentenv.fleet.context import RunContext
from agentenv.sandbox.runtimes._vm.agent import greet
from agentenv.sandbox.runtimes._vm.files import copy_sparsely
from agentenv.sandbox.runtimes._vm.templates import SCRATCH
from agentenv.wire.frames import HELLO, NONCE_BYTES

KEYS: dict[str, Any] = {"memory_mb": 256, "start_timeout_s": 300.0}


def config(runtime: str) -> Any:
    return load_config(
        {"global": {"runtime": runtime}, "environments": [{"id": "bench", "env": "CartPole-v1", **KEYS}]}
    )


def seconds(action: Callable[[], Any]) -> float:
    began = time.perf_counter()
    action()
    return time.perf_counter() - began


class Ground:
    """One run whose machines are measured."""

    def __init__(self, runtime: str) -> None:
        found = config(runtime)
        self.context = RunContext(found, found.expand(), record=False)
        self.machines: Any = self.context.runtime
        self.spec = self.context.spec("bench", found.expand())
        self.idle = replace(self.spec, envs=(), command=())
        self.machine, self.files, self.template, _ = self.machines._planner.plan([self.idle])[self.idle.id]

    def close(self) -> None:
        self.context.close()


def boot_and_restore(ground: Ground) -> tuple[float, float]:
    """Seconds from the start of a monitor to the agent's answer, by the driver: booted, and brought back."""
    times = []
    for restored in (False, True):
        source = ground.template / SCRATCH if restored else ground.files.scratch
        with tempfile.TemporaryDirectory() as directory:
            home = Path(directory)
            copy_sparsely(source, home / SCRATCH)
            began = time.perf_counter()
            if restored:
                machine = ground.machines._hypervisor.restore(ground.machine, home, ground.template)
                machine.resume()
            else:
                machine = ground.machines._hypervisor.boot(ground.machine, home)
            try:
                with machine.connect(120.0) as stream:
                    greet(stream, 60.0)
                times.append(time.perf_counter() - began)
            finally:
                machine.close()
    return times[0], times[1]


def by_hand(ground: Ground) -> tuple[float, float]:
    """The same by a script that drives Firecracker's API: booted, and brought back."""
    binary = ground.machines._hypervisor._binary
    word = HELLO + os.urandom(NONCE_BYTES)
    with tempfile.TemporaryDirectory() as first, tempfile.TemporaryDirectory() as second:
        scratch = Path(first) / SCRATCH
        copy_sparsely(ground.files.scratch, scratch)
        drives = [(str(ground.files.root), True), (str(ground.files.tools), True), (str(scratch), False)]
        if ground.files.project is not None:
            drives.append((str(ground.files.project), True))
        began = time.perf_counter()
        machine = BareFirecracker(binary, Path(first))
        try:
            machine.boot(ground.files.kernel, ground.files.initramfs, drives, KEYS["memory_mb"])
            machine.round_trip(word)
            booted = time.perf_counter() - began
            machine.save()
        finally:
            machine.close()
        began = time.perf_counter()
        machine = BareFirecracker(binary, Path(second))
        try:
            machine.load(Path(first))
            machine.round_trip(word)
            return booted, time.perf_counter() - began
        finally:
            machine.close()


def to_first_step(runtime: str, rounds: int) -> dict[str, list[float]]:
    """An environment's machine brought back, in place and as forks, until its next step was answered."""
    found: dict[str, list[float]] = {"restore": [], "fork 1": [], "fork 4": []}
    with AgentENV.from_env("CartPole-v1", runtime=runtime, **KEYS) as env:
        env.reset(seed=1)
        env.step(0)
        snapshot = env.snapshot("machine")
        for _ in range(rounds):

            def again() -> None:
                env.restore(snapshot)
                env.step(0)

            found["restore"].append(seconds(again))
            for count in (1, 4):
                children: list[AgentENV] = []

                def fork(count: int = count, children: list[AgentENV] = children) -> None:
                    children += env.fork(count)
                    for child in children:
                        child.step(0)

                found[f"fork {count}"].append(seconds(fork))
                for child in children:
                    child.close()
    return found


def host_cpu(ground: Ground, rounds: int) -> dict[str, float]:
    """Milliseconds of processor time of the host's process for each: making a machine, pausing it, letting it go on."""
    found: dict[str, list[float]] = {"create": [], "pause": [], "resume": []}

    def counted(name: str, action: Callable[[], Any]) -> Any:
        began = time.process_time()
        result = action()
        found[name].append(1000 * (time.process_time() - began))
        return result

    for number in range(rounds + 1):  # the first one looks for files and loads modules
        spec = replace(ground.idle, id=f"cpu-{number}")
        (sandbox,) = counted("create", lambda spec=spec: ground.machines.create([spec], ground.context.output))
        for _ in range(3):
            counted("pause", sandbox.workbench.pause)
            counted("resume", sandbox.workbench.resume)
        sandbox.destroy()
    return {name: statistics.median(times[1:] if name == "create" else times) for name, times in found.items()}


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
        # Links lead to what all of them share.
        own = [[path for path in home.rglob("*") if path.is_file() and not path.is_symlink()] for home in homes]
        disk = [sum(path.stat().st_blocks * 512 for path in paths) for paths in own]
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
    load = os.getloadavg()[0]
    ground = Ground(options.runtime)
    try:
        driven = [boot_and_restore(ground) for _ in range(options.rounds)]
        bare = [by_hand(ground) for _ in range(options.rounds)] if options.runtime == "firecracker" else []
        cpu = host_cpu(ground, options.rounds)
    finally:
        ground.close()
    steps = to_first_step(options.runtime, options.rounds)
    ones = [measure_whole(options.runtime, 1) for _ in range(options.rounds)]
    fours = [measure_whole(options.runtime, 4) for _ in range(options.rounds)]

    def middle(runs: list[dict[str, float]], key: str) -> float:
        return statistics.median(run[key] for run in runs)

    boot, restore = (statistics.median(one[part] for one in driven) for part in (0, 1))
    back, fork_1, fork_4 = (statistics.median(steps[key]) for key in ("restore", "fork 1", "fork 4"))
    results: dict[str, Any] = {
        "machine": f"{os.cpu_count()} cores, {platform.machine()}, Linux {platform.release()}",
        "runtime": options.runtime,
        "load before": load,
        "boot to the agent's answer, s": round(boot, 2),
        "restore to the agent's answer, s": round(restore, 3),
        "restore / boot": round(restore / boot, 3),
        "an environment's machine, restore to first step, s": round(back, 3),
        "restore to first step / boot": round(back / boot, 3),
        "fork of one to first step, s": round(fork_1, 3),
        "fork of four to first steps, s": round(fork_4, 3),
        "fork of four / restore of one": round(fork_4 / back, 2),
        "new: start to first step, s": round(middle(ones, "first step s"), 2),
        "four new: start to first steps, s": round(middle(fours, "first step s"), 2),
        "step of one, ms": round(middle(ones, "step ms"), 2),
        "step of four, ms": round(middle(fours, "step ms"), 2),
        "host CPU, create, ms": round(cpu["create"], 1),
        "host CPU, pause, ms": round(cpu["pause"], 1),
        "host CPU, resume, ms": round(cpu["resume"], 1),
        "host CPU for each of four with all of their start, ms": round(middle(fours, "host CPU ms for each"), 1),
        "disk of each, KB": round(middle(fours, "disk KB of each")),
        "memory of each, MB": round(middle(fours, "memory MB of each")),
    }
    if bare:
        by_hand_boot, by_hand_restore = (statistics.median(one[part] for one in bare) for part in (0, 1))
        results |= {
            "by hand: boot to the agent's answer, s": round(by_hand_boot, 2),
            "by hand: load and a round trip, s": round(by_hand_restore, 3),
            "boot / by hand": round(boot / by_hand_boot, 2),
            "restore to first step / by hand": round(back / by_hand_restore, 2),
        }
    for label, value in results.items():
        print(f"{label:>55}: {value}")
    if options.json:
        options.json.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
