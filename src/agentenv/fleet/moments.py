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
from agentenv.errors import AgentEnvError, SandboxError, SnapshotError
from agentenv.fleet.bases import State, copy_refusal
from agentenv.fleet.journal import Past
from agentenv.fleet.repetition import difference, repeat
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
    reasons: list[str] = []
    if how in (None, "state", "pickle"):
        try:
            answer = _ask_one(fleet, Op.CAPTURE, index, not fleet.recovery.bases.is_proven(index))
        except SnapshotError as error:
            if fleet.recovery.cut_of(fleet.channel.group_of(index)):
                raise  # what was to be kept is gone
            answer = ["no", str(error)]
        match answer:
            case ["state" | "pickle" as found, bytes() as data, float()] if how in (None, found):
                fleet.recovery.bases.note_proven(index)
                return Moment(found, data)
            case ["no", str() as reason]:
                reasons.append(reason)
            case _:
                reasons.append("the environment offers another way")
    number = fleet.channel.group_of(index)
    whole = fleet.sandboxes[number].copying is None and fleet.sandboxes[number].workbench is not None
    if how == "fork" or (how is None and not portable and not whole):
        parked, reason = _park(fleet, number)
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
            seed = _built_with(fleet, index)
            return Moment("replay", past=fleet.journal.since(index, birth), seed=seed, reasons=tuple(reasons))
        reasons.append("what was done since it was built is not all known any more")
    raise SnapshotError(f"{fleet.members[index].id}: this moment cannot be kept: {'; '.join(reasons)}")


def put(fleet: Fleet, moments: Mapping[int, Moment], reseed: Mapping[int, int] | None = None) -> None:
    """Bring environments to moments.

    Args:
        fleet: The environments.
        moments: For each position, the moment it is brought to.
        reseed: Seeds of new random streams, for those that are not to go on with the moment's.

    Raises:
        SnapshotError: A moment cannot be gone back to; says why. What was brought back before stays so.
        SandboxError: One died over it, and cannot be brought back.
    """
    seeds = dict(reseed or {})
    saved = {index: moment for index, moment in moments.items() if moment.how in ("state", "pickle")}
    _load(fleet, saved, seeds)
    for index, moment in moments.items():
        number = fleet.channel.group_of(index)
        if moment.how in ("fork", "machine", "replay") and len(fleet.groups[number]) > 1:
            raise SnapshotError(
                f"{fleet.members[index].id}: shares its sandbox with others, which would be taken along; use"
                " envs_per_sandbox = 1"
            )
        if moment.how == "fork":
            _resume(fleet, number, moment, seeds.get(index))
        elif moment.how == "machine":
            _bring_back(fleet, index, number, moment, seeds.get(index))
        elif moment.how == "replay":
            _repeat(fleet, index, number, moment, seeds.get(index))
    _settle(fleet, moments, seeds)


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
        if reason := fleet.recovery.cut_of(fleet.channel.group_of(index)):
            raise SnapshotError(f"{member.id}: it died, and there is no moment to keep until the next reset: {reason}")
        if op is Op.COPY:
            break  # the order went to the one that is gone
    raise SnapshotError(f"{member.id}: it died every time its state was asked for")


def _park(fleet: Fleet, number: int) -> tuple[ParkedCopy | None, str]:
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


def _bring_back(fleet: Fleet, index: int, number: int, moment: Moment, seed: int | None) -> None:
    kept = moment.parked
    if not isinstance(kept, Kept) or not kept.alive():
        raise SnapshotError("the snapshot is a machine of a run that has ended, and went with it")
    try:
        fleet.resume_from(number, kept)
    except (OSError, AgentEnvError) as error:
        raise SnapshotError(f"{fleet.members[index].id}: its machine cannot be brought back: {error}") from error
    fleet.renewals += 1
    if seed is not None:
        reseed(fleet, index, seed)


def reseed(fleet: Fleet, index: int, seed: int) -> None:
    """Give an environment new random streams, and leave it as it is otherwise.

    Raises:
        SnapshotError: It died over it.
    """
    losses = fleet.ask(Op.LOAD, [index], [encode([None, b"", seed])], fleet.members[index].reset_timeout_s)
    if losses:
        raise SnapshotError(f"{fleet.members[index].id}: it died when it was given new random streams")
    fleet.value(index)


def _load(fleet: Fleet, moments: Mapping[int, Moment], seeds: Mapping[int, int]) -> None:
    members = list(moments)
    for _ in range(_ATTEMPTS):
        payloads = [encode([moments[i].how, moments[i].data, seeds.get(i)]) for i in members]
        timeout_s = max((fleet.members[index].reset_timeout_s for index in members), default=60.0)
        losses = fleet.ask(Op.LOAD, members, payloads, timeout_s)
        if not losses:
            break
        fleet.recovery.recover(losses, between=True)
    else:
        raise SnapshotError("environments died every time they were to take on a saved state")
    for index in members:
        try:
            fleet.value(index)
        except SandboxError as error:
            raise SnapshotError(
                f"{fleet.members[index].id}: the saved state cannot be taken on: {str(error).splitlines()[0]}"
            ) from error


def _resume(fleet: Fleet, number: int, moment: Moment, seed: int | None) -> None:
    parked = moment.parked
    if parked is None or isinstance(parked, Kept) or not parked.alive():
        raise SnapshotError("the snapshot is a forked process, and that has ended, perhaps with its sandbox")
    if not fleet.copying(number).shelters(parked):
        raise SnapshotError("the snapshot is a forked process in another sandbox, and can be gone back to only there")
    try:
        fleet.resume_from(number, parked, seed)
    except (OSError, AgentEnvError) as error:
        raise SnapshotError(f"the forked process cannot be copied: {error}") from error
    fleet.renewals += 1


def _built_with(fleet: Fleet, index: int) -> int | None:
    number = fleet.channel.group_of(index)
    return fleet.sandboxes[number].spec.envs[fleet.groups[number].index(index)].global_seed


def _repeat(fleet: Fleet, index: int, number: int, moment: Moment, seed: int | None) -> None:
    past = moment.past
    assert past is not None  # what a replay consists of
    if moment.seed != _built_with(fleet, index):
        sandbox = fleet.sandboxes[number]
        sandbox.spec = replace(sandbox.spec, envs=(replace(sandbox.spec.envs[0], global_seed=moment.seed),))
    failed = fleet.replace([number])
    fleet.renewals += 1
    if failed:
        raise failed[number]
    member = fleet.members[index]
    answers, losses = repeat(fleet, {index: past}, member.reset_timeout_s + 2 * fleet.busy_s)
    answer = answers.get(index)
    if isinstance(answer, SandboxError):
        raise answer
    wrong = "it died" if losses else difference(past.outcomes, past.binding, answer)
    if wrong:
        raise SnapshotError(f"{member.id}: doing again what led to the snapshot does not lead there: {wrong}")
    if seed is None:
        return
    if fleet.sandboxes[number].copying is None:
        reseed(fleet, index, seed)
        return
    parked, reason = _park(fleet, number)  # a copy is what can be given new random streams
    if parked is None:
        raise SnapshotError(f"{member.id}: it cannot be given new random streams: {reason}")
    try:
        _resume(fleet, number, Moment("fork", parked=parked), seed)
    finally:
        parked.drop()


def _settle(fleet: Fleet, moments: Mapping[int, Moment], seeds: Mapping[int, int]) -> None:
    """From here on the journal belongs to what was gone back to."""
    bases = fleet.recovery.bases
    for number in sorted({fleet.channel.group_of(index) for index in moments}):
        states = {
            index: State(fleet.journal.position, moment.how, moment.data, seeds.get(index))
            for index, moment in moments.items()
            if index in fleet.groups[number] and moment.how in ("state", "pickle")
        }
        # A parked copy spares the building where a state is taken on after it; by itself it leads to what was before.
        is_whole = len(states) == len(fleet.groups[number])
        bases.forget(number, copy=not is_whole)
        fleet.recovery.forgive(number)
        if is_whole:
            for index, state in states.items():
                bases.states[index] = state
        else:
            bases.want()


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
