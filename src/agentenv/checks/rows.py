"""What a check says: rows with a verdict, the finding, what to do, and the evidence as plain data.

The records only; who decides a verdict is in the modules named after what they judge.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any


class Verdict(StrEnum):
    """How it looks, the least serious first."""

    OK = "ok"
    SKIP = "skip"
    WARN = "warn"
    FAIL = "fail"


ROWS = {
    "start": "it can be built, and its spaces can be carried out of a sandbox",
    "play": "random legal actions neither raise nor end it",
    "seed": "reset with one seed gives one state",
    "instances": "two instances agree",
    "random": "nothing follows the global generator of Python's random",
    "numpy_random": "nothing follows the global generator of numpy.random",
    "hash_seed": "nothing follows PYTHONHASHSEED",
    "clock": "nothing follows the clock",
    "observation_shape": "observations have the structure and shape of their space",
    "observation_dtype": "observations have the dtype of their space",
    "observation_range": "observations lie within their space",
    "reward": "rewards are finite, and in which range they are",
    "action_range": "an action outside the space is refused or clipped",
    "after_end": "steps after the end do no harm",
    "state": "its state can be kept by pickling or forking",
    "step_time": "how long steps take",
    "reset_time": "how long resets take",
    "memory": "memory does not grow with the steps",
}
"""Every row by its name, in order, with what it states."""


@dataclass(frozen=True, slots=True)
class Row:
    """One thing that was looked at.

    Attributes:
        name: A key of ``ROWS``.
        verdict: ok, skip (it could not be judged; ``found`` says why), warn or fail.
        found: What was found, in one sentence.
        remedy: What to do; empty where nothing is.
        evidence: Numbers and texts behind it, as JSON values.
    """

    name: str
    verdict: Verdict
    found: str
    remedy: str = ""
    evidence: Mapping[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """As JSON values, with what the row states."""
        return {
            "name": self.name,
            "states": ROWS[self.name],
            "verdict": self.verdict.value,
            "found": self.found,
            "remedy": self.remedy,
            "evidence": dict(self.evidence),
        }


@dataclass(frozen=True, slots=True)
class Examination:
    """All rows of one environment.

    Attributes:
        env_id: Its id in the configuration.
        env: Its name, as configured.
        runtime: The runtime that it was examined in.
        seed: Of the resets that were compared.
        same_as_this: Ids that differ in nothing that is looked at, and were not examined again.
        rows: One for each key of ``ROWS``, in that order.
        duration_s: Seconds it took.
    """

    env_id: str
    env: str
    runtime: str
    seed: int
    same_as_this: Sequence[str]
    rows: Sequence[Row]
    duration_s: float

    @property
    def verdict(self) -> Verdict:
        """The most serious of its rows; what was skipped does not count."""
        return worst(row.verdict for row in self.rows)

    def to_json(self) -> dict[str, Any]:
        """As JSON values."""
        return {
            "env_id": self.env_id,
            "env": self.env,
            "runtime": self.runtime,
            "seed": self.seed,
            "same_as_this": list(self.same_as_this),
            "verdict": self.verdict.value,
            "counts": count(self.rows),
            "duration_s": round(self.duration_s, 3),
            "rows": [row.to_json() for row in self.rows],
        }


def worst(verdicts: Iterable[Verdict]) -> Verdict:
    """The most serious verdict, where ``skip`` is as good as ``ok``."""
    found = set(verdicts)
    return next((verdict for verdict in (Verdict.FAIL, Verdict.WARN) if verdict in found), Verdict.OK)


def count(rows: Iterable[Row]) -> dict[str, int]:
    """How many rows have each verdict."""
    counted = Counter(row.verdict for row in rows)
    return {verdict.value: counted[verdict] for verdict in Verdict}


def ok(name: str, found: str, **evidence: Any) -> Row:
    """A row in good order."""
    return Row(name, Verdict.OK, found, "", evidence)


def skip(name: str, found: str, **evidence: Any) -> Row:
    """A row that could not be judged."""
    return Row(name, Verdict.SKIP, found, "", evidence)


def warn(name: str, found: str, remedy: str, **evidence: Any) -> Row:
    """A row somebody should know of."""
    return Row(name, Verdict.WARN, found, remedy, evidence)


def fail(name: str, found: str, remedy: str, **evidence: Any) -> Row:
    """A row that makes training fail, or makes it unrepeatable."""
    return Row(name, Verdict.FAIL, found, remedy, evidence)
