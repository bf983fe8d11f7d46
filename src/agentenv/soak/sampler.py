"""One look at everything that is watched, as a record: the host process, its files, each sandbox, the steps since.

A look costs the steps that are not made meanwhile, so the pause between two is twenty times as long as looks take, as
long as that leaves sixty of them. Nothing is remembered but what the next difference needs.
"""

from __future__ import annotations

import contextlib
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agentenv.fleet.output import SandboxOutput
from agentenv.fleet.rundir import RunDir
from agentenv.sandbox.contract import Sandbox
from agentenv.soak import counts
from agentenv.soak.driver import Driver

_SHARED_PLACES = (Path("/tmp"), Path("/dev/shm"), Path("/run"))
_COST = 20
_NEWEST = 0.2
_LOOKS, _FEWEST_LOOKS = 240, 60
_SHORTEST_S, _LONGEST_S = 0.2, 30.0


@dataclass(frozen=True, slots=True)
class Sample:
    """One look.

    Attributes:
        t: Seconds since the beginning.
        steps, kills, losses, failures: So far.
        host: Figures of the process, by the keys of ``series.RESOURCES``; None where one cannot be read.
        sandboxes: For each id: its first process, and its figures.
    """

    t: float
    steps: int
    kills: int
    losses: int
    failures: int
    host: dict[str, float | None]
    sandboxes: dict[str, dict[str, float | None]]

    def to_record(self) -> dict[str, Any]:
        """As plain data."""
        return {
            "t": round(self.t, 3),
            "steps": self.steps,
            "kills": self.kills,
            "losses": self.losses,
            "failures": self.failures,
            "host": {key: _rounded(value) for key, value in self.host.items()},
            "sandboxes": {
                name: {key: _rounded(value) for key, value in figures.items()}
                for name, figures in self.sandboxes.items()
            },
        }


def choose_interval(seconds: float) -> float:
    """Seconds between two looks of a run of this length."""
    return min(max(seconds / _LOOKS, _SHORTEST_S), _LONGEST_S)


class Sampler:
    """Looks at a driver and at the process it runs in.

    Attributes:
        interval_s: Seconds from one look to the next; longer where looking is dear.
    """

    def __init__(self, driver: Driver, run: RunDir, scratch: Path, seconds: float) -> None:
        """Find what belongs to the run.

        Args:
            driver: With everything started.
            run: The soak's folder.
            scratch: Where this process makes its temporary files.
            seconds: How long the run is to last.
        """
        self.interval_s = self._least_s = choose_interval(seconds)
        self._most_s = min(seconds / _FEWEST_LOOKS, _LONGEST_S)
        self._cost_s = 0.0
        self._driver = driver
        self._run = run
        self._scratch = scratch
        self._names = [vector.context.run_id for vector in driver.vectors]
        self._groups = counts.find_groups(self._names)
        # What the soak itself writes is not what the run leaves.
        self._own_files = {run.samples, run.path / "events.jsonl", scratch}
        self._outputs = [(vector, _Output(vector.context.output)) for vector in driver.vectors]
        self._steps, self._stepping_s = 0, 0.0

    def look(self, t: float, kills: int) -> Sample:
        """Measure now.

        Args:
            t: Seconds since the beginning.
            kills: Processes killed so far.
        """
        began = time.perf_counter()
        tally = self._driver.tally
        sample = Sample(
            t=t,
            steps=tally.steps,
            kills=kills,
            losses=tally.losses,
            failures=tally.failures,
            host={**self._held(), **self._speed()},
            sandboxes={one.spec.id: found for one in self._driver.sandboxes() if (found := _inside(one)) is not None},
        )
        # Averaged: one look that was interrupted says nothing about the next.
        self._cost_s += _NEWEST * (time.perf_counter() - began - self._cost_s)
        self.interval_s = max(self._least_s, min(_COST * self._cost_s, self._most_s))
        return sample

    def _held(self) -> dict[str, float | None]:
        named = counts.named_after(self._names, _SHARED_PLACES)
        return {
            "memory": counts.own_memory_mb(),
            "descriptors": counts.own_descriptors(),
            "threads": counts.own_threads(),
            "processes": counts.own_processes(),
            "cgroups": counts.count_groups(self._groups),
            "run_dir": counts.disk_bytes(self._run.path, self._own_files) / counts.MIB,
            "tmp": (counts.disk_bytes(self._scratch) + sum(map(counts.disk_bytes, named))) / counts.MIB,
            "output": sum(self._printed()) / counts.MIB,
        }

    def _printed(self) -> list[int]:
        return [output.received_bytes(one.spec.id for one in vector.sandboxes) for vector, output in self._outputs]

    def _speed(self) -> dict[str, float | None]:
        tally = self._driver.tally
        p50, p99 = tally.latencies.percentile(0.5), tally.latencies.percentile(0.99)
        steps, stepping_s = tally.steps - self._steps, tally.stepping_s - self._stepping_s
        self._steps, self._stepping_s = tally.steps, tally.stepping_s
        tally.latencies.clear()
        return {
            "p50": None if p50 is None else p50 / 1e6,
            "p99": None if p99 is None else p99 / 1e6,
            "rate": steps / stepping_s if steps else None,
        }


@contextmanager
def temporary_files_in(scratch: Path) -> Iterator[None]:
    """Have this process make its temporary files in a folder of its own, so that only its own are counted."""
    scratch.mkdir(exist_ok=True)
    previous = tempfile.tempdir
    tempfile.tempdir = str(scratch)
    try:
        yield
    finally:
        tempfile.tempdir = previous
        with contextlib.suppress(OSError):
            scratch.rmdir()  # what somebody left in it stays, to be looked at


class _Output:
    """How much the environments of a run wrote, over all their lives."""

    def __init__(self, output: SandboxOutput) -> None:
        self._output = output
        self._seen: dict[tuple[str, str], int] = {}
        self._total = 0

    def received_bytes(self, sandbox_ids: Iterable[str]) -> int:
        for key in ((name, stream) for name in sandbox_ids for stream in ("stdout", "stderr")):
            now, before = self._output.received(*key), self._seen.get(key, 0)
            # A new life counts from zero again.
            self._total += now - before if now >= before else now
            self._seen[key] = now
        return self._total


def _inside(sandbox: Sandbox) -> dict[str, float | None] | None:
    """The figures of one sandbox; None if it is gone."""
    usage = sandbox.usage() if sandbox.alive() else None
    if usage is None:
        return None
    return {
        "pid": sandbox.pid,
        "memory": usage.memory_bytes / counts.MIB,
        "processes": usage.processes,
        "descriptors": counts.descriptors_of(counts.tree(sandbox.pid)),
        "tmp": counts.scratch_mb_of(sandbox.pid),
    }


def _rounded(value: float | None) -> float | None:
    return value if value is None or isinstance(value, int) else round(value, 6)
