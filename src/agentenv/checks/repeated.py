"""Whether what should be equal is, and what a difference follows: pure decisions over digests of states.

The method is to change one thing at a time. Three rollouts with the same seed and actions in one world - the first and
the second of one instance, and the first of another instance at a later time - must agree. Where the two instances do
not, the clock and the system's entropy are held still, one by one: what makes them agree is what they followed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from agentenv.checks.held import CLOCK, ENTROPY
from agentenv.checks.rows import Row, fail, ok, skip
from agentenv.errors import counted

HOLDS: tuple[tuple[str, ...], ...] = ((), (CLOCK,), (ENTROPY,), (CLOCK, ENTROPY))
"""What is held, in the order in which it is tried."""

USE_NP_RANDOM = "draw from self.np_random, which super().reset(seed=seed) seeds"


@dataclass(frozen=True, slots=True)
class Rollout:
    """A seed, some actions, and what came of them.

    Attributes:
        states: Digests: of the first reset, then of every step and of every further reset.
        infos: Digests of the infos, by key, in the same order.
        error: What ended it early, or empty.
    """

    states: Sequence[bytes]
    infos: Sequence[Mapping[str, bytes]] = ()
    error: str = ""


@dataclass(frozen=True, slots=True)
class Trial:
    """Rollouts that should be equal.

    Attributes:
        first: Of a new instance.
        again: The second of that instance.
        other: Of another new instance, later.
    """

    first: Rollout
    again: Rollout
    other: Rollout


def difference(one: Rollout, two: Rollout) -> int | None:
    """The first state in which they differ, 0 being the reset; None where they are equal."""
    for index, (mine, theirs) in enumerate(zip(one.states, two.states, strict=False)):
        if mine != theirs:
            return index
    if len(one.states) != len(two.states) or one.error != two.error:
        return min(len(one.states), len(two.states))
    return None


def info_keys(one: Rollout, two: Rollout) -> list[str]:
    """Keys of infos whose values differ."""
    found: dict[str, None] = {}
    for mine, theirs in zip(one.infos, two.infos, strict=False):
        found.update(dict.fromkeys(key for key in {*mine, *theirs} if mine.get(key) != theirs.get(key)))
    return sorted(found)


def settled(trials: Mapping[tuple[str, ...], Trial]) -> tuple[str, ...] | None:
    """What must be held for two instances to agree, of what was tried; None where nothing helps."""
    for held in HOLDS:
        if held in trials and difference(trials[held].first, trials[held].other) is None:
            return held
    return None


def judge_repeats(trials: Mapping[tuple[str, ...], Trial], places: Mapping[str, Any], later_s: float) -> list[Row]:
    """The rows ``seed``, ``instances`` and ``clock``.

    Args:
        trials: By what was held; at least for nothing held.
        places: Where what was held was asked for, by what.
        later_s: How much later the other instance played.
    """
    held = settled(trials)
    plain = trials[()]
    if held is None:
        return _unsettled(trials)
    trial = trials[held]
    rows = [_seed_row(plain, trial, held, places), _instances_row(plain, trial, held, places)]
    if CLOCK in held:
        rows.append(
            fail(
                "clock",
                f"{_at(difference(plain.first, plain.other))} differs at another time; with the clock held still it"
                f" does not{_where(places.get(CLOCK))}",
                "count steps instead of reading the time, or take a time as an argument",
                first_difference=difference(plain.first, plain.other),
                read_at=dict(places.get(CLOCK) or {}),
            )
        )
    else:
        rows.append(ok("clock", f"the same {later_s:.1f} s later", later_s=round(later_s, 3)))
    return rows


def _seed_row(plain: Trial, trial: Trial, held: tuple[str, ...], places: Mapping[str, Any]) -> Row:
    by_itself = difference(trial.first, trial.again)
    unseeded = ENTROPY in held and difference(plain.first, plain.again) is not None
    if unseeded:
        return fail(
            "seed",
            f"the same seed and actions again: {_at(difference(plain.first, plain.again))} differs; it draws from a"
            f" generator that reset(seed=) does not seed{_where(places.get(ENTROPY))}",
            USE_NP_RANDOM,
            first_difference=difference(plain.first, plain.again),
            drawn_at=dict(places.get(ENTROPY) or {}),
        )
    if by_itself is not None:
        return fail(
            "seed",
            f"the same seed and actions again in the same instance: {_at(by_itself)} differs, though a new instance"
            " repeats it; something of earlier episodes survives reset",
            "set everything that an episode changes anew in reset, and its generators from the seed",
            first_difference=by_itself,
        )
    keys = info_keys(plain.first, plain.again)
    return ok("seed", _steps(trial.first) + " repeated exactly" + _infos(keys), **_key_evidence(trial.first, keys))


def _instances_row(plain: Trial, trial: Trial, held: tuple[str, ...], places: Mapping[str, Any]) -> Row:
    if ENTROPY in held and difference(plain.first, plain.again) is None:
        return fail(
            "instances",
            f"{_at(difference(plain.first, plain.other))} differs in another instance: something drawn from an unseeded"
            f" generator when it is built outlives reset(seed=){_where(places.get(ENTROPY))}",
            "draw it in reset from self.np_random, or give the constructor a seed and use that",
            first_difference=difference(plain.first, plain.other),
            drawn_at=dict(places.get(ENTROPY) or {}),
        )
    keys = info_keys(plain.first, plain.other)
    note = f", {' and '.join(held)} held still" if held else ""
    return ok(
        "instances", f"{_steps(trial.first)} equal in two{note}{_infos(keys)}", **_key_evidence(trial.first, keys)
    )


def _unsettled(trials: Mapping[tuple[str, ...], Trial]) -> list[Row]:
    plain = trials[()]
    again, other = difference(plain.first, plain.again), difference(plain.first, plain.other)
    not_by = "neither the global generators nor the hash seed, the clock or an unseeded Python or numpy generator"
    remedy = "look for threads, object addresses used as values, files, native generators, and seed or remove them"
    unjudged = "not judged: the environment does not repeat itself for a reason that was not found"
    if again is not None:
        seed = fail(
            "seed",
            f"the same seed and actions again: {_at(again)} differs; {not_by} explains it",
            remedy,
            first_difference=again,
        )
        return [seed, skip("instances", "not judged: one instance does not repeat itself"), skip("clock", unjudged)]
    instances = fail(
        "instances",
        f"{_at(other)} differs in another instance; {not_by} explains it",
        remedy,
        first_difference=other,
    )
    return [ok("seed", f"{_steps(plain.first)} repeated exactly"), instances, skip("clock", unjudged)]


def judge_variation(name: str, what: str, remedy: str, base: Rollout, others: Sequence[Rollout], *, drawn: bool) -> Row:
    """A row of one thing that was changed and nothing else.

    Args:
        name: Of the row.
        what: What was changed, in words.
        remedy: What to do where the states follow it.
        base: The rollout of a new instance.
        others: Those of new instances in which it was changed.
        drawn: Whether the environment was seen to draw from it.
    """
    differences = [found for found in (difference(base, other) for other in others) if found is not None]
    if differences:
        return fail(
            name, f"{_at(min(differences))} follows {what}", remedy, first_difference=min(differences), drawn=drawn
        )
    keys = sorted({key for other in others for key in info_keys(base, other)})
    note = ", though it draws from it" if drawn else ""
    return ok(name, f"nothing follows {what}{note}{_infos(keys)}", drawn=drawn, infos_differ=keys)


def _at(index: int | None) -> str:
    return "the first state" if index == 0 else f"state {index}"


def _steps(rollout: Rollout) -> str:
    return counted(len(rollout.states), "state")


def _infos(keys: Sequence[str]) -> str:
    return f"; infos differ in {', '.join(keys[:5])}" if keys else ""


def _key_evidence(rollout: Rollout, keys: Sequence[str]) -> dict[str, Any]:
    return {"states": len(rollout.states), "infos_differ": list(keys)}


def _where(places: Mapping[str, int] | None) -> str:
    return f" ({next(iter(places))})" if places else ""
