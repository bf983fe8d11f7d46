"""What a run came to, as one record: shown, written to ``summary.json`` and printed by ``--json``."""

from __future__ import annotations

import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agentenv.fleet.progress import EnvState, Progress

EXIT_CODES = {"finished": 0, "failed": 1}
"""What ``agentenv run`` exits with, by the state of a run that has ended in its own time."""


@dataclass(frozen=True, slots=True)
class Summary:
    """A finished run.

    Attributes:
        run_id, name: Of the run.
        run_dir: Its directory.
        runtime, isolation: What it ran in.
        limits: What enforced each limit.
        seed: The root of all seeds.
        started_unix: When its process began, seconds since the epoch. Of a run that was resumed this, and the next two,
            are of the last process.
        startup_s: From the beginning until the first batch of environments was ready or had failed.
        duration_s: From beginning to end.
        signal: The signal that ended it, or None.
        environments: What became of each.
    """

    run_id: str
    name: str
    run_dir: Path
    runtime: str
    isolation: str
    limits: Mapping[str, str]
    seed: int
    started_unix: float
    startup_s: float
    duration_s: float
    signal: int | None
    environments: Sequence[Progress]

    @property
    def state(self) -> str:
        """finished, failed (an environment did) or interrupted."""
        if self.signal is not None:
            return "interrupted"
        return "failed" if any(e.state is not EnvState.DONE for e in self.environments) else "finished"

    @property
    def exit_code(self) -> int:
        """0, 1 when an environment failed, 128 plus the signal's number when one ended the run."""
        if self.signal is not None:
            return 128 + self.signal
        return EXIT_CODES[self.state]

    @property
    def episodes(self) -> int:
        """Finished episodes of all environments."""
        return sum(environment.episodes for environment in self.environments)

    @property
    def steps(self) -> int:
        """Steps of all environments."""
        return sum(environment.steps for environment in self.environments)

    @property
    def steps_per_s(self) -> float:
        """Steps that this process took, of all environments, for each second after its start-up."""
        played_s = self.duration_s - self.startup_s
        taken = sum(environment.steps - environment.earlier_steps for environment in self.environments)
        return taken / played_s if played_s > 0 else 0.0

    def to_json(self) -> dict[str, Any]:
        """As one JSON object."""
        states = [environment.state for environment in self.environments]
        return {
            "run_id": self.run_id,
            "name": self.name,
            "run_dir": str(self.run_dir),
            "state": self.state,
            "exit_code": self.exit_code,
            "signal": None if self.signal is None else signal.Signals(self.signal).name,
            "runtime": self.runtime,
            "isolation": self.isolation,
            "limits": dict(self.limits),
            "seed": self.seed,
            "started_unix": self.started_unix,
            "startup_s": round(self.startup_s, 3),
            "duration_s": round(self.duration_s, 3),
            "episodes": self.episodes,
            "steps": self.steps,
            "steps_per_s": round(self.steps_per_s, 1),
            "done": states.count(EnvState.DONE),
            "failed": states.count(EnvState.FAILED),
            "interrupted": states.count(EnvState.INTERRUPTED),
            "environments": [environment.to_json() for environment in self.environments],
        }
