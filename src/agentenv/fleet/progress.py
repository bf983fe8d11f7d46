"""What is known of each environment of a run while it goes on, and what became of it.

Written by the one thread that plays, read by whoever shows it. Numbers only; it decides and formats nothing.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any

from agentenv.errors import Cause
from agentenv.sandbox.contract import Usage


class EnvState(StrEnum):
    """Where an environment stands. The last three are final."""

    QUEUED = "queued"
    STARTING = "starting"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    INTERRUPTED = "interrupted"


FINAL = frozenset({EnvState.DONE, EnvState.FAILED, EnvState.INTERRUPTED})


class Outcome(StrEnum):
    """How an episode ended."""

    TERMINATED = "terminated"
    TRUNCATED = "truncated"
    FAILED = "failed"
    INTERRUPTED = "interrupted"


@dataclass(slots=True)
class Progress:
    """One environment.

    Attributes:
        env_id: Its id.
        wanted: Episodes to play; 0 for a command.
        state: Where it stands.
        episodes: Episodes played to their end (terminated or truncated).
        steps: Steps taken, those of unfinished episodes included.
        earlier_steps: Those of them that an earlier process of the run took.
        restarts: Times its process died and was made up for.
        returns: Return of each finished episode.
        lengths: Sum of the finished episodes' lengths, steps.
        active_s: Seconds since it started in this process, or that it took.
        memory_bytes: Memory it shared with nobody when last looked at.
        memory_peak_bytes: The most of that seen; looked at once a second.
        cause: Why it failed or was ended.
        exit_code: Exit status of a command, where it exited.
        out: Where a command's files are, relative to the run's directory.
    """

    env_id: str
    wanted: int
    state: EnvState = EnvState.QUEUED
    episodes: int = 0
    steps: int = 0
    earlier_steps: int = 0
    restarts: int = 0
    returns: list[float] = field(default_factory=list)
    lengths: int = 0
    active_s: float = 0.0
    memory_bytes: int = 0
    memory_peak_bytes: int = 0
    cause: Cause | None = None
    exit_code: int | None = None
    out: str | None = None

    @property
    def finished(self) -> bool:
        """Whether nothing more will happen to it."""
        return self.state in FINAL

    @property
    def mean_return(self) -> float | None:
        """Of the finished episodes, or None when there is none."""
        return sum(self.returns) / len(self.returns) if self.returns else None

    @property
    def steps_per_s(self) -> float:
        """Steps taken in this process for each second it was active."""
        return (self.steps - self.earlier_steps) / self.active_s if self.active_s > 0 else 0.0

    def observe(self, usage: Usage | None) -> None:
        """Take in what its sandbox uses now; None when that is gone."""
        if usage is not None:
            self.memory_bytes = usage.memory_bytes
            self.memory_peak_bytes = max(self.memory_peak_bytes, usage.memory_bytes)

    def to_json(self) -> dict[str, Any]:
        """As it stands in ``summary.json``."""
        record: dict[str, Any] = {
            "id": self.env_id,
            "state": self.state.value,
            "duration_s": round(self.active_s, 6),
            "memory_peak_mb": round(self.memory_peak_bytes / 2**20, 2),
        }
        if self.wanted:
            count = len(self.returns)
            record |= {
                "episodes": self.episodes,
                "steps": self.steps,
                "steps_per_s": round(self.steps_per_s, 1),
                "return_mean": self.mean_return,
                "return_min": min(self.returns) if count else None,
                "return_max": max(self.returns) if count else None,
                "length_mean": self.lengths / count if count else None,
                "restarts": self.restarts,
            }
        else:
            record |= {"exit_code": self.exit_code, "out": self.out}
        record["cause"] = None if self.cause is None else asdict(self.cause)
        return record
