"""Verdicts over what random play showed: errors, observations, rewards, times."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from agentenv.checks.rows import Row, fail, ok, warn
from agentenv.errors import counted
from agentenv.telemetry.text import one_line

_LARGE_REWARD = 1e3
_SLOW_SHARE = 0.25


def judge_error(error: Sequence[str], steps: int, wanted: int) -> Row:
    """The row ``play``, from the three texts of what was raised; none of them where nothing was."""
    if error:
        last = error[2].strip().splitlines()
        place = next((line.strip() for line in reversed(last) if line.lstrip().startswith("File ")), "")
        return fail(
            "play",
            one_line(f"raised {error[0]}: {error[1]}") + f" after {counted(steps, 'legal step')}",
            "make every action of the action space possible in every state" + (f"; raised in {place}" if place else ""),
            steps=steps,
            type=error[0],
            message=error[1],
            traceback=error[2],
        )
    return ok("play", f"{steps:,} of {counted(wanted, 'random step')}", steps=steps, wanted=wanted)


def judge_observations(faults: Mapping[str, Sequence[Any]], steps: int) -> list[Row]:
    """The rows ``observation_shape``, ``observation_dtype`` and ``observation_range``."""
    rows = []
    for name, kind, remedy in (
        ("observation_shape", "shape", "return what observation_space declares, or declare what is returned"),
        ("observation_dtype", "dtype", "convert it: np.asarray(observation, self.observation_space.dtype)"),
        ("observation_range", "range", "widen the bounds of observation_space, or clip the observation into them"),
    ):
        found = faults.get(kind)
        if found and kind == "range" and found[2].endswith("got nan"):
            remedy = "look for a division by zero or a square root of less than nothing in the observation"
        if found:
            rows.append(fail(name, _fault(found, steps), remedy, **_evidence(found)))
        elif kind == "dtype" and "castable" in faults:
            cast = faults["castable"]
            rows.append(warn(name, f"{_fault(cast, steps)}; it is converted without loss", remedy, **_evidence(cast)))
        else:
            rows.append(ok(name, f"in {counted(steps, 'step')}"))
    return rows


def judge_rewards(faults: Mapping[str, Sequence[Any]], rewards: Sequence[float], steps: int) -> Row:
    """The row ``reward``."""
    summary = _summary(rewards)
    evidence: dict[str, Any] = {"steps": steps, "finite": len(rewards), **summary}
    for kind, remedy in (
        ("reward_type", "return a float"),
        ("reward_finite", "look for a division by zero or an overflow in the reward; no learner survives one of them"),
    ):
        if found := faults.get(kind):
            return fail("reward", _fault(found, steps), remedy, **evidence, **_evidence(found))
    if not rewards:
        return ok("reward", "none was given", **evidence)
    text = f"{summary['min']:g} to {summary['max']:g}, mean {summary['mean']:.4g}"
    if max(abs(summary["min"]), abs(summary["max"])) > _LARGE_REWARD:
        remedy = "scale them, or train with gymnasium.wrappers:NormalizeReward; losses grow with their square"
        return warn("reward", f"{text}: beyond {_LARGE_REWARD:g}", remedy, **evidence)
    return ok(
        "reward", text + (": random play earns none" if summary["min"] == summary["max"] == 0 else ""), **evidence
    )


def judge_times(name: str, seconds: Sequence[float], limit_s: float, limit_key: str) -> Row:
    """The row ``step_time`` or ``reset_time``; the limit is the configuration's own."""
    if not seconds:
        return ok(name, "none was measured")
    taken = np.asarray(seconds)
    median, p99, most = float(np.median(taken)), float(np.percentile(taken, 99)), float(taken.max())
    evidence = {"median_s": median, "p99_s": p99, "max_s": most, "count": len(seconds), "limit_s": limit_s}
    text = f"median {_ms(median)}, 99th percentile {_ms(p99)}, longest {_ms(most)}"
    if most > limit_s:
        return fail(
            name, f"{text}: more than {limit_key}", f"raise {limit_key}, or find out what it waits for", **evidence
        )
    if most > _SLOW_SHARE * limit_s:
        return warn(name, f"{text}: more than a quarter of {limit_key}", f"raise {limit_key}", **evidence)
    return ok(name, text, **evidence)


def _summary(rewards: Sequence[float]) -> dict[str, Any]:
    if not rewards:
        return {"min": None, "max": None, "mean": None}
    return {"min": min(rewards), "max": max(rewards), "mean": float(np.mean(rewards))}


def _fault(found: Sequence[Any], steps: int) -> str:
    number, step, text = found
    place = "the first reset" if step == 0 else f"step {step}"
    return f"{text} in {place}; {counted(number, 'time')} in {counted(steps, 'step')}"


def _evidence(found: Sequence[Any]) -> dict[str, Any]:
    return {"count": found[0], "first_step": found[1], "text": found[2]}


def _ms(seconds: float) -> str:
    return f"{seconds:.2f} s" if seconds >= 1 else f"{seconds * 1e3:.3g} ms"
