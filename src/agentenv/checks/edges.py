"""Beyond the rules: actions outside the space, steps after the end. Which to try, and what the outcome means.

agentenv refuses such an action before it is sent (or clips it, with ``invalid_action = "clip"``); what the environment
itself does with one matters wherever else it is trained. Raising is the best answer and clipping a good one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from gymnasium import Space, spaces

from agentenv.checks.rows import Row, fail, ok, skip, warn

REFUSE = "check or clip the action at the beginning of step"


@dataclass(frozen=True, slots=True)
class Outside:
    """An action outside its space, and the nearest one inside.

    Attributes:
        label: What it is, in words.
        action: The action.
        legal: Where clipping leads.
    """

    label: str
    action: Any
    legal: Any


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of an action outside the space and of its neighbour inside, from the same state.

    Attributes:
        label: Which action.
        error: The three texts of what was raised; empty where nothing was.
        same: Whether both led to the same.
        harm: What is wrong with what came, and was not with the legal action's; empty where nothing is.
        death: Why the sandbox ended or was ended, or empty.
    """

    label: str
    error: Sequence[str] = ()
    same: bool = False
    harm: str = ""
    death: str = ""


def outside(space: Space[Any], legal: Any) -> Iterator[Outside]:
    """Actions outside a space: for a Dict or Tuple, with one part outside.

    Args:
        space: The action space.
        legal: A member of it, from which the other parts are taken.
    """
    if isinstance(space, spaces.Box):
        yield from _outside_box(space, legal)
    elif isinstance(space, spaces.Discrete):
        first, last = int(space.start), int(space.start + space.n) - 1
        yield Outside(str(last + 1), np.int64(last + 1), np.int64(last))
        yield Outside(str(first - 1), np.int64(first - 1), np.int64(first))
    elif isinstance(space, spaces.MultiDiscrete):
        yield Outside("one above the highest everywhere", space.start + space.nvec, space.start + space.nvec - 1)
    elif isinstance(space, spaces.MultiBinary):
        yield Outside("2 everywhere", np.full(space.shape, 2, np.int8), np.ones(space.shape, np.int8))
    elif isinstance(space, spaces.Dict):
        for key, part in space.spaces.items():
            for one in outside(part, legal[key]):
                yield Outside(f"{key!r}: {one.label}", {**legal, key: one.action}, {**legal, key: one.legal})
    elif isinstance(space, spaces.Tuple):
        for index, part in enumerate(space.spaces):
            for one in outside(part, legal[index]):
                before, after = legal[:index], legal[index + 1 :]
                label = f"[{index}]: {one.label}"
                yield Outside(label, (*before, one.action, *after), (*before, one.legal, *after))


def _outside_box(space: spaces.Box, legal: Any) -> Iterator[Outside]:
    bounded = space.bounded_below & space.bounded_above
    if space.dtype is None or not bounded.any():
        return
    kind: np.dtype[Any] = np.dtype(space.dtype)
    low, high = space.low.astype(np.float64), space.high.astype(np.float64)
    with np.errstate(all="ignore"):
        span = np.where(bounded, np.maximum(high - low, 1.0), 0.0)
        for label, bound, away in (("above the bounds", high, high + span), ("below the bounds", low, low - span)):
            if kind.kind in "iub":
                limits = None if kind.kind == "b" else np.iinfo(kind.name)
                if limits is None or (away[bounded] > limits.max).any() or (away[bounded] < limits.min).any():
                    continue
            base = np.asarray(legal, kind)
            action, clipped = np.where(bounded, away, base).astype(kind), np.where(bounded, bound, base).astype(kind)
            if np.isfinite(action.astype(np.float64)).all():
                yield Outside(label, action, clipped)


def judge_actions(outcomes: Sequence[Outcome]) -> Row:
    """The row ``action_range``."""
    name = "action_range"
    if not outcomes:
        return skip(name, "not judged: the action space has no outside that its dtype can hold")
    described = [{"action": o.label, "did": _did(o), "error": list(o.error[:2])} for o in outcomes]
    for outcome in outcomes:
        if outcome.death:
            return fail(name, f"action {outcome.label}: {outcome.death}", REFUSE, outcomes=described)
    for outcome in outcomes:
        if outcome.harm:
            return fail(name, f"action {outcome.label}: taken, and {outcome.harm}", REFUSE, outcomes=described)
    taken = [outcome for outcome in outcomes if not outcome.error and not outcome.same]
    if taken:
        labels = ", ".join(outcome.label for outcome in taken[:4])
        remedy = f'{REFUSE}; agentenv refuses it before it is sent, or clips it (invalid_action = "clip")'
        return warn(name, f"taken as it is, neither refused nor clipped: {labels}", remedy, outcomes=described)
    refused = next((outcome for outcome in outcomes if outcome.error), None)
    how = (
        f"refused with {refused.error[0].rpartition('.')[2]}" if refused else "led where the nearest legal action leads"
    )
    return ok(name, how, outcomes=described)


def _did(outcome: Outcome) -> str:
    if outcome.death:
        return "ended"
    if outcome.error:
        return "raised"
    return "harmed" if outcome.harm else "clipped" if outcome.same else "taken"


def judge_outcome(label: str, bad: Mapping[str, Any], good: Mapping[str, Any]) -> Outcome:
    """From what ``attempt`` said of an action outside and of its neighbour inside."""
    if bad["error"]:
        return Outcome(label, error=tuple(bad["error"]))
    harm = ""
    if not good["error"]:
        if good["finite"] and not bad["finite"]:
            harm = "the reward was not a finite number"
        elif bad["faults"] and not good["faults"]:
            harm = f"the observation left its space: {bad['faults'][0]}"
    return Outcome(label, same=not good["error"] and bad["state"] == good["state"], harm=harm)


def judge_after_end(
    attempts: Sequence[Mapping[str, Any]], death: str, resets_alike: bool | None, first_error: str = ""
) -> Row:
    """The row ``after_end``.

    Args:
        attempts: What ``attempt`` said of the steps after the end.
        death: Why the sandbox ended in one of them, or empty.
        resets_alike: Whether the reset that followed gave what that seed gives; None where that cannot be told.
        first_error: What the reset that followed raised, or empty.
    """
    name = "after_end"
    if death:
        return fail(
            name, death, "raise an exception, or return the last state again, when step is called after the end"
        )
    if first_error:
        return fail(
            name, f"the reset after them raised {first_error}", "make reset independent of how an episode ended"
        )
    errors = [attempt["error"] for attempt in attempts if attempt["error"]]
    how = f"raises {errors[0][0].rpartition('.')[2]}" if errors else "goes on"
    if resets_alike is False:
        return fail(
            name,
            f"{how}, and the next reset(seed=) gives another state than before",
            "set everything that step changes anew in reset",
        )
    return ok(name, f"{how}, and reset puts it right", attempts=len(attempts), raised=len(errors))


def judge_state(pickled: Mapping[str, Any], forked: Mapping[str, Any], deaths: Mapping[str, str]) -> Row:
    """The row ``state``, from what ``agentenv.checks.keeping`` found and what the sandbox died of meanwhile."""
    evidence = {
        "pickled_by": pickled.get("by", ""),
        "pickle_same": bool(pickled.get("same")),
        "pickle_bytes": pickled.get("nbytes", 0),
        "pickle_error": ": ".join((pickled.get("error") or [])[:2]),
        "threads": forked.get("threads"),
        "fork_same": bool(forked.get("same")),
        "fork_error": forked.get("error", ""),
        "deaths": dict(deaths),
    }
    by_pickle = _pickle_text(pickled, deaths.get("pickled", ""))
    by_fork = _fork_text(forked, deaths.get("forked", ""))
    if pickled.get("same"):
        return ok("state", f"{by_pickle}; {by_fork}", **evidence)
    if forked.get("same"):
        return ok("state", f"{by_fork}; {by_pickle}, so that it is kept by forking or by replaying actions", **evidence)
    return fail(
        "state",
        f"{by_pickle}; {by_fork}",
        "leave locks, threads, files and connections out of __getstate__ and make them anew in __setstate__; start"
        " threads in reset and end them before it returns",
        **evidence,
    )


def _pickle_text(pickled: Mapping[str, Any], death: str) -> str:
    if death:
        return f"pickling: {death}"
    error = pickled["error"]
    if not pickled["by"]:
        return f"cannot be pickled: {error[0]}: {error[1]}"
    if error:
        return f"pickles, but the copy raises {error[0]}: {error[1]}"
    return f"goes on exactly after {pickled['by']}" if pickled["same"] else "a pickled copy goes on from another state"


def _fork_text(forked: Mapping[str, Any], death: str) -> str:
    if death:
        return f"forking: {death}"
    if forked["same"]:
        return "goes on exactly in a forked process"
    return f"cannot be forked: {forked['error']}" if forked["error"] else "goes on differently in a forked process"
