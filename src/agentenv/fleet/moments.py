"""A moment in the life of an environment, to which it or another can be brought: what snapshots are made of.

A moment is kept in the best way there is, see ``How``. What is saved as bytes is made and read inside sandboxes only. A
moment that is a forked process lives in the sandbox it was taken in and can be used there alone; one that is a snapshot
of a whole machine lives as long as the run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, get_args

from agentenv.channel.contract import PeerLost
from agentenv.errors import AgentEnvError, EnvError, SnapshotError
from agentenv.fleet.journal import Past
from agentenv.fleet.rungs import copy_refusal
from agentenv.sandbox.contract import ParkedCopy, Sandbox
from agentenv.sandbox.workbench import Kept
from agentenv.wire.slot import Op
from agentenv.wire.values import encode

if TYPE_CHECKING:
    from agentenv.fleet.fleet import Fleet

How = Literal["state", "pickle", "fork", "machine", "replay"]
"""By the environment's own methods; by its attributes, pickled; as a forked process; as a snapshot of the whole
machine; by doing all again."""

_ATTEMPTS = 3


@dataclass(frozen=True, slots=True)
class Moment:
    """What one environment can be brought back to.

    Attributes:
        how: How it is kept.
        data: The state as bytes, for "state" and "pickle".
        parked: The forked process, for "fork"; the snapshot, for "machine".
        past: What to do again, for "replay".
        seed: Of the global generators when it was built, for "replay".
        reasons: Why each better way was not possible.
    """

    how: How
    data: bytes = b""
    parked: ParkedCopy | Kept | None = None
    past: Past | None = None
    seed: int | None = None
    reasons: tuple[str, ...] = ()


def take(fleet: Fleet, index: int, how: How | None = None, *, portable: bool = False) -> Moment:
    """Keep the present moment of one environment.

    Args:
        fleet: The environments.
        index: Which.
        how: The way to keep it; None takes the best that works.
        portable: Not as a forked process or machine, which are of use in their own run only.

    Raises:
        SnapshotError: It cannot be kept, or not so; says why.
        SandboxError: It died over it, and cannot be brought back.
        ValueError: There is no such way.
    """
    if how is not None and how not in get_args(How):
        raise ValueError(f"how: expected None or one of {', '.join(get_args(How))}, got {how!r}")
    refuse_quarantined(fleet, index)
    fleet.recovery.mend(fleet.channel.group_of(index))
    reasons: list[str] = []
    if how in (None, "state", "pickle"):
        try:
            answer = _ask_one(fleet, Op.CAPTURE, index, not fleet.recovery.bases.is_proven(index))
        except SnapshotError as error:
            if fleet.recovery.cut_of(fleet.channel.group_of(index)) or index in fleet.recovery.out.reasons:
                raise  # what was to be kept is gone
            answer = ["no", str(error)]
        except EnvError as error:
            answer = ["no", str(error).splitlines()[0]]
        match answer:
            case ["state" | "pickle" as found, bytes() as data, float()] if how in (None, found):
                fleet.recovery.bases.note_proven(index)
                return Moment(found, data)
            case ["no" | "not yet", str() as reason]:
                reasons.append(reason)
            case _:
                reasons.append("the environment offers another way")
    number = fleet.channel.group_of(index)
    whole = fleet.sandboxes[number].copying is None and fleet.sandboxes[number].workbench is not None
    if how == "fork" or (how is None and not portable and not whole):
        parked, reason = park(fleet, number)
        if parked is not None:
            return Moment("fork", parked=parked, reasons=tuple(reasons))
        reasons.append(reason)
    if how == "machine" or (how is None and not portable and whole):
        kept, reason = _keep(fleet, number)
        if kept is not None:
            return Moment("machine", parked=kept, reasons=tuple(reasons))
        reasons.append(reason)
    if how in (None, "replay"):
        birth = fleet.recovery.bases.births[index]
        if birth is not None:
            seed = built_with(fleet, index)
            return Moment("replay", past=fleet.journal.since(index, birth), seed=seed, reasons=tuple(reasons))
        reasons.append("what was done since it was built is not all known any more")
    raise SnapshotError(f"{fleet.members[index].id}: this moment cannot be kept: {'; '.join(reasons)}")


def branch(fleet: Fleet, sandbox_id: str, stem: ParkedCopy | Kept | None, turn: AbstractContextManager[Any]) -> Sandbox:
    """A sandbox that becomes a copy of the fleet's only one when it is attached, or is one already.

    Args:
        fleet: Whose environment is copied.
        sandbox_id: The copy's.
        stem: A parked copy, or a snapshot, to make it from; None has the environment copy itself.
        turn: Held while that is ordered, by whoever of several threads does.

    Raises:
        SnapshotError: When it is attached: the environment cannot be forked; says why.
    """
    source = fleet.sandboxes[0]
    if isinstance(stem, Kept):
        spec = replace(source.spec, id=sandbox_id, origin=stem.directory)
        (sandbox,) = fleet.context.runtime.create([spec], fleet.context.output)
        return sandbox
    copying = source.copying
    if copying is None:
        raise SnapshotError(f"{fleet.members[0].id}: cannot be forked: {fleet.context.no_copies}")

    def order(message: Mapping[str, Any], fds: Sequence[int]) -> None:
        with turn:
            try:
                if stem is not None:
                    stem.order(message, fds)
                    return
                copying.order_copy(message, fds)
            except OSError as error:
                raise SnapshotError(f"{fleet.members[0].id}: its process ended while it was copied") from error
            refusal = copy_refusal(_ask_one(fleet, Op.COPY, 0, None))
            if refusal is not None:
                raise SnapshotError(f"{fleet.members[0].id}: cannot be forked: {refusal}")

    return copying.branch(replace(source.spec, id=sandbox_id), order)


def inherit(child: Fleet, parent: Fleet, seed: int | None) -> None:
    """The only environment of a fleet is a copy of another's: it has the same past, and is brought back by it.

    Args:
        child: The copy's, of which nothing was asked yet.
        parent: The other's, of which nothing was asked since.
        seed: Of the new random streams the copy was given.
    """
    child.journal.inherit(parent.journal)
    if seed is not None:
        child.journal.note(Op.LOAD, None, [encode([None, b"", seed])])
        child.journal.commit(child.channel.outcomes)
    child.recovery.bases.inherit(parent.recovery.bases)


def _ask_one(fleet: Fleet, op: Op, index: int, request: Any) -> Any:
    member = fleet.members[index]
    payloads = [encode(request)]
    for _ in range(_ATTEMPTS):
        losses = fleet.ask(op, [index], payloads, member.reset_timeout_s)
        if not losses:
            try:
                return fleet.value(index)
            except PeerLost as lost:
                losses = {lost.group: lost}
        fleet.recovery.recover(losses, between=True)
        refuse_quarantined(fleet, index)
        if reason := fleet.recovery.cut_of(fleet.channel.group_of(index)):
            raise SnapshotError(f"{member.id}: it died, and there is no moment to keep until the next reset: {reason}")
        if op is Op.COPY:
            break  # the order went to the one that is gone
    raise SnapshotError(f"{member.id}: it died every time its state was asked for")


def park(fleet: Fleet, number: int) -> tuple[ParkedCopy | None, str]:
    """A parked copy of the process of a sandbox's only environment; or None, and why there is none."""
    copying = fleet.sandboxes[number].copying
    if len(fleet.groups[number]) > 1:
        return None, "it shares its sandbox with other environments"
    if copying is None:
        return None, fleet.context.no_copies
    try:
        parked = copying.order_park()
    except OSError as error:
        return None, f"its process is gone: {error}"
    try:
        reason = copy_refusal(_ask_one(fleet, Op.COPY, fleet.groups[number][0], None))
        if reason is None:
            copying.settle(parked)
            return parked, ""
    except (OSError, ValueError) as error:
        reason = str(error)
    except BaseException:
        parked.drop()
        raise
    parked.drop()
    return None, reason


def _keep(fleet: Fleet, number: int) -> tuple[Kept | None, str]:
    workbench = fleet.sandboxes[number].workbench
    if len(fleet.groups[number]) > 1:
        return None, "it shares its sandbox with other environments"
    if workbench is None:
        return None, f"runtime {fleet.context.runtime_name!r} makes no snapshots of whole sandboxes"
    try:
        return workbench.keep(), ""
    except (OSError, AgentEnvError) as error:
        return None, f"its machine cannot be kept: {error}"


def refuse_quarantined(fleet: Fleet, index: int) -> None:
    """Nothing is kept of, and nothing is put into, what is answered for by the host.

    Raises:
        SnapshotError: The environment is quarantined.
    """
    reason = fleet.recovery.out.reasons.get(index)
    if reason is not None:
        raise SnapshotError(
            f"{fleet.members[index].id}: is quarantined ({reason}), and has no moments any more: leave it out by a"
            " mask, or by None at its position; a new vector environment has it again"
        )


def built_with(fleet: Fleet, index: int) -> int | None:
    """The seed of the global generators an environment was built with."""
    number = fleet.channel.group_of(index)
    return fleet.sandboxes[number].spec.envs[fleet.groups[number].index(index)].global_seed


def positions(mask: Any, count: int) -> Sequence[int]:
    """The positions a bool mask of shape (n,) chooses; all for None.

    Raises:
        ValueError: It is not such a mask.
    """
    import numpy as np

    if mask is None:
        return range(count)
    array = np.asarray(mask)
    if array.dtype != np.bool_ or array.shape != (count,):
        raise ValueError(f"mask: expected a bool array of shape ({count},), got {array.dtype} of shape {array.shape}")
    return [int(index) for index in np.flatnonzero(array)]
