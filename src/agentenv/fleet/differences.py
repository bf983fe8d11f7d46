"""Where two runs part, and in what: a pure comparison of what was recorded.

Two episodes are the same where their digests are; only where they are not are their rows looked at. Runs are compared
environment by environment and episode by episode, so that neither the runtime nor the order in which environments
answered matters.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from agentenv.errors import counted
from agentenv.fleet.digests import INFO, StepDigest
from agentenv.wire.slot import Flag


@dataclass(frozen=True, slots=True)
class Difference:
    """The first place where two episodes, or two runs, are not the same.

    Attributes:
        env_id: The environment.
        episode: The episode; None where the environments themselves differ.
        step: 0 for the reset, n for step n; None where no step can be named.
        what: What differs: parts of the observation, reward, terminated, truncated, info, action, or something of the
            episode as a whole.
        detail: In a sentence.
    """

    env_id: str
    episode: int | None
    step: int | None
    what: tuple[str, ...]
    detail: str


class Recorded(Protocol):
    """The rows of an episode; see ``agentenv.fleet.tracefile.Rows``."""

    def __len__(self) -> int: ...
    def action(self, row: int) -> tuple[bytes, bytes]:
        """The action that led to a row."""
        ...

    def step(self, row: int) -> StepDigest:
        """The answer in a row."""
        ...


@dataclass(frozen=True, slots=True)
class EpisodeRecord:
    """One finished episode of a run.

    Attributes:
        digest: In hex; empty where the run recorded none.
        seed, length, return_, outcome: As in ``episodes.jsonl``.
    """

    digest: str
    seed: int
    length: int
    return_: float
    outcome: str


def unlike(names: Sequence[str], first: StepDigest, second: StepDigest) -> tuple[str, ...]:
    """What differs between two answers; empty where nothing does.

    Args:
        names: Of the parts of the observation.
        first, second: The answers.
    """
    if first.digest == second.digest:
        return ()
    found = [name for name, a, b in zip(names, first.parts, second.parts, strict=False) if a != b]
    if len(first.parts) != len(second.parts):
        found.append("observation")
    if first.reward != second.reward and not (first.reward != first.reward and second.reward != second.reward):
        found.append("reward")
    for flag in (Flag.TERMINATED, Flag.TRUNCATED):
        if (first.flags ^ second.flags) & flag:
            found.append(str(flag.name).lower())
    if first.info != second.info:
        found.append(INFO)
    # A checksum of four bytes may miss what the digest of eight sees.
    return tuple(found) or ("observation",)


def describe(what: Sequence[str], first: StepDigest, second: StepDigest) -> str:
    """The values of what differs, where they are known, such as ``reward: 1.0 against 0.5``."""
    texts = []
    for name in what:
        if name == "reward":
            texts.append(f"reward: {first.reward!r} against {second.reward!r}")
        elif name in ("terminated", "truncated"):
            flag = Flag[name.upper()]
            texts.append(f"{name}: {bool(first.flags & flag)} against {bool(second.flags & flag)}")
        else:
            texts.append(name)
    return ", ".join(texts)


def compare_rows(
    env_id: str, episode: int, names: Sequence[str], first: Recorded, second: Recorded, *, with_info: bool = True
) -> Difference | None:
    """The first row in which two recordings of an episode differ, or None.

    Args:
        env_id, episode: Which one.
        names: Of the parts of the observation.
        first, second: Its rows in either run.
        with_info: Whether a difference in the info alone counts.
    """
    for row in range(min(len(first), len(second))):
        if first.action(row) != second.action(row):
            return Difference(env_id, episode, row, ("action",), "another action was taken")
        one, other = first.step(row), second.step(row)
        what = unlike(names, one, other)
        if what and (with_info or what != (INFO,)):
            return Difference(env_id, episode, row, what, describe(what, one, other))
    if len(first) != len(second):
        row = min(len(first), len(second))
        text = f"{counted(len(first) - 1, 'step')} against {counted(len(second) - 1, 'step')} recorded"
        return Difference(env_id, episode, row, ("length",), text)
    return None


def compare_episodes(
    env_id: str, first: Mapping[int, EpisodeRecord], second: Mapping[int, EpisodeRecord]
) -> Difference | None:
    """The first episode in which an environment's finished episodes differ, or None; no step is named.

    Args:
        env_id: The environment.
        first, second: Its finished episodes by number.
    """
    for episode in sorted(first.keys() | second.keys()):
        one, other = first.get(episode), second.get(episode)
        if one is None or other is None:
            which = "second" if other is None else "first"
            return Difference(env_id, episode, None, ("episode",), f"the {which} run has not finished this episode")
        if one.digest and other.digest:
            if one.digest != other.digest:
                what = ("seed",) if one.seed != other.seed else ("episode",)
                return Difference(env_id, episode, None, what, _told(one, other))
        elif one != other:
            return Difference(env_id, episode, None, ("episode",), _told(one, other))
    return None


def compare_environments(first: Sequence[str], second: Sequence[str]) -> Difference | None:
    """An environment that only one of two runs has, or None."""
    for env_id in sorted({*first} ^ {*second}):
        which = "first" if env_id in first else "second"
        return Difference(env_id, None, None, ("environment",), f"only the {which} run has this environment")
    return None


def _told(one: EpisodeRecord, other: EpisodeRecord) -> str:
    texts = [
        f"{name} {a} against {b}"
        for name, a, b in (
            ("seed", one.seed, other.seed),
            ("length", one.length, other.length),
            ("return", one.return_, other.return_),
            ("outcome", one.outcome, other.outcome),
        )
        if a != b
    ]
    return ", ".join(texts) or "equal in seed, length and return, but not in its digest"
