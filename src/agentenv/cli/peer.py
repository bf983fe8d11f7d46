"""The other side of the comparison, in a process of its own: gymnasium's AsyncVectorEnv over the same environments.

Questions come as JSON lines on stdin, answers go as JSON lines to stdout. Not a command.
"""

from __future__ import annotations

import json
import os
import sys
import time
from functools import partial
from typing import Any


def main() -> None:
    """Answer until stdin ends."""
    from gymnasium.vector import AsyncVectorEnv

    from agentenv.guest.maker import make_environment
    from agentenv.sandbox.runtimes._usage import descendants, read_usage

    # What an environment prints must not be taken for an answer.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    first = json.loads(sys.stdin.readline())
    started = time.monotonic()
    vec = AsyncVectorEnv([partial(make_environment, request) for request in first["envs"]], shared_memory=True)
    startup_s = time.monotonic() - started
    vec.reset(seed=0)
    vec.action_space.seed(0)
    workers = [process.pid for process in vec.processes if process.pid is not None]
    family = [pid for worker in workers for pid in (worker, *descendants(worker))]

    def used() -> float:
        return read_usage(family).cpu_s

    def answer(record: dict[str, Any]) -> None:
        answers.write(json.dumps(record) + "\n")
        answers.flush()

    answer({"startup_s": startup_s})
    for line in sys.stdin:
        seconds = json.loads(line)["seconds"]
        guests, host = used(), time.process_time()
        began = time.perf_counter()
        steps = 0
        while time.perf_counter() < began + seconds:
            vec.step(vec.action_space.sample())
            steps += vec.num_envs
        elapsed = time.perf_counter() - began
        host_s = time.process_time() - host
        answer(
            {
                "steps": steps,
                "elapsed_s": elapsed,
                "host_s": host_s,
                "cpu_s": host_s + used() - guests,
                "memory_mb": read_usage(family).memory_bytes / 2**20,
            }
        )
    vec.close()
