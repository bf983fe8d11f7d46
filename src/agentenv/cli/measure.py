"""Measuring one size of a configuration: start-up, steps, processor time and memory, ours and a peer's in turn."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import psutil

from agentenv.config import Config
from agentenv.errors import AgentEnvError, ConfigError, Problem
from agentenv.fleet.admission import count_cpus

_ROUNDS = 4
_PEER_START_S = 300.0


@dataclass(frozen=True, slots=True)
class Side:
    """One implementation at one size.

    Attributes:
        startup_s: Until all environments had been built.
        steps_per_s: Environment steps a second, all environments together.
        cpu_percent: Processor time used by stepping, host and environments, of all processors together.
        host_percent: Of one processor, what the stepping process itself used.
        memory_mb: Unshared memory of one environment, on average.
    """

    startup_s: float
    steps_per_s: float
    cpu_percent: float
    host_percent: float
    memory_mb: float


@dataclass(frozen=True, slots=True)
class Row:
    """One size.

    Attributes:
        envs: Environments.
        ours: With agentenv.
        peer: With gymnasium's AsyncVectorEnv, or None.
        available_percent: Memory of the machine that was still available, at the end.
        machine_percent: How busy all processors were, by whomever.
        cpus: Processors this process may use.
    """

    envs: int
    ours: Side
    peer: Side | None
    available_percent: float
    machine_percent: float
    cpus: int


@dataclass(slots=True)
class _Tally:
    steps: int = 0
    elapsed_s: float = 0.0
    cpu_s: float = 0.0
    host_s: float = 0.0


def measure(config: Config, *, seconds: float, peer: bool) -> Row:
    """Measure one size.

    Args:
        config: The configuration, scaled.
        seconds: Seconds of stepping for each side, in alternating rounds.
        peer: Whether gymnasium's AsyncVectorEnv is measured too.

    Raises:
        ConfigError: The environments cannot be stepped together.
        AgentEnvError: Ours or the peer cannot run it.
    """
    from agentenv import AgentVectorEnv

    started = time.monotonic()
    try:
        vec = AgentVectorEnv(config)
    except AgentEnvError:
        raise
    except ValueError as error:  # their spaces differ
        raise ConfigError([Problem(config.source, "environments", str(error))]) from error
    startup_s = time.monotonic() - started
    try:
        fleet = vec._fleet
        vec.reset(seed=0)
        vec.action_space.seed(0)
        ours, theirs = _Tally(), _Tally()
        requests = [request.to_json() for sandbox in fleet.sandboxes for request in sandbox.spec.envs]
        with _Peer(config, requests) if peer else _Nobody() as other:
            psutil.cpu_percent(None)
            for _ in range(_ROUNDS):
                _round(
                    lambda: vec.step(vec.action_space.sample()), vec.num_envs, seconds / _ROUNDS, ours, fleet_cpu(fleet)
                )
                if isinstance(other, _Peer):
                    other.round(seconds / _ROUNDS, theirs)
            machine_percent = psutil.cpu_percent(None)
            memory = [usage.memory_bytes for usage in fleet.usage() if usage is not None]
            side = _side(ours, startup_s, sum(memory) / 2**20 / vec.num_envs)
            peer_side = None
            if isinstance(other, _Peer):
                peer_side = _side(theirs, other.startup_s, other.memory_mb / vec.num_envs)
        memory_state = psutil.virtual_memory()
    finally:
        vec.close()
    available = 100 * memory_state.available / memory_state.total
    return Row(vec.num_envs, side, peer_side, available, machine_percent, count_cpus())


def fleet_cpu(fleet: Any) -> Callable[[], float]:
    """A function that says how many seconds of processor time the sandboxes have used."""
    return lambda: sum(usage.cpu_s for usage in fleet.usage() if usage is not None)


def _round(step: Callable[[], Any], envs: int, seconds: float, tally: _Tally, guests: Callable[[], float]) -> None:
    guest_s, host_s = guests(), time.process_time()
    began = time.perf_counter()
    ends = began + seconds
    count = 0
    while time.perf_counter() < ends:
        step()
        count += 1
    tally.elapsed_s += time.perf_counter() - began
    tally.steps += count * envs
    used = time.process_time() - host_s
    tally.host_s += used
    tally.cpu_s += used + guests() - guest_s


def _side(tally: _Tally, startup_s: float, memory_mb: float) -> Side:
    elapsed = tally.elapsed_s or 1.0
    return Side(
        startup_s=round(startup_s, 4),
        steps_per_s=round(tally.steps / elapsed, 1),
        cpu_percent=round(100 * tally.cpu_s / elapsed / count_cpus(), 1),
        host_percent=round(100 * tally.host_s / elapsed, 1),
        memory_mb=round(memory_mb, 2),
    )


class _Nobody:
    """No peer."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        return


class _Peer:
    """gymnasium's AsyncVectorEnv in an interpreter of its own: it forks, which a process with threads must not."""

    def __init__(self, config: Config, requests: list[dict[str, Any]]) -> None:
        paths = [str(config.base_dir), *sys.path]
        self._process = subprocess.Popen(
            [
                sys.executable,
                "-c",
                "import sys, json; sys.path[:] = json.loads(sys.argv[1]); from agentenv.cli.peer import main; main()",
                json.dumps(paths),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"},
        )
        answer = self._ask({"envs": requests})
        self.startup_s: float = answer["startup_s"]
        self.memory_mb = 0.0

    def round(self, seconds: float, tally: _Tally) -> None:
        """Have it step for a while."""
        answer = self._ask({"seconds": seconds})
        tally.steps += answer["steps"]
        tally.elapsed_s += answer["elapsed_s"]
        tally.cpu_s += answer["cpu_s"]
        tally.host_s += answer["host_s"]
        self.memory_mb = answer["memory_mb"]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None  # both are pipes
        self._process.stdin.close()
        try:
            self._process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()

    def _ask(self, question: dict[str, Any]) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None  # both are pipes
        self._process.stdin.write(json.dumps(question) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            self._process.kill()
            self._process.wait()
            raise AgentEnvError("gymnasium's AsyncVectorEnv cannot run this configuration; its message is above")
        answer: dict[str, Any] = json.loads(line)
        return answer
