"""Bringing environments to moments.

All that can be seen to be impossible is refused before anything is changed. One that fails on its way serves no more,
and is brought back to where it was before, when it is asked next (``agentenv.fleet.recovery``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from agentenv.channel.contract import PeerLost
from agentenv.errors import AgentEnvError, SandboxError, SnapshotError
from agentenv.fleet.moments import Moment, built_with, park, refuse_quarantined
from agentenv.fleet.repetition import collect, difference, repeat
from agentenv.fleet.rungs import State
from agentenv.sandbox.workbench import Kept
from agentenv.wire.slot import Op
from agentenv.wire.values import encode

if TYPE_CHECKING:
    from agentenv.fleet.fleet import Fleet

_ATTEMPTS = 3


def put(
    fleet: Fleet,
    moments: Mapping[int, Moment],
    reseed: Mapping[int, int] | None = None,
    arrived: Callable[[int], None] = lambda index: None,
) -> None:
    """Bring environments to moments.

    Args:
        fleet: The environments.
        moments: For each position, the moment it is brought to.
        reseed: Seeds of new random streams, for those that are not to go on with the moment's.
        arrived: Is told of each that is there, also where another fails.

    Raises:
        SnapshotError: A moment cannot be gone back to; says why. What was brought back before stays so, and one that
            did not get there is brought back to where it was, when it is asked next.
        SandboxError: One died over it, and cannot be brought back.
    """
    seeds = dict(reseed or {})
    for index, moment in moments.items():
        _check(fleet, index, moment)
    saved = {index: moment for index, moment in moments.items() if moment.how in ("state", "pickle")}
    _load(fleet, saved, seeds, arrived)
    for index, moment in moments.items():
        if index not in saved:
            _enter(fleet, index, moment, seeds.get(index))
            _settle(fleet, {index: moment}, seeds, arrived)


def _check(fleet: Fleet, index: int, moment: Moment) -> None:
    """Refuse what can be seen to be impossible, before anything is changed.

    Raises:
        SnapshotError: It is.
    """
    number, parked = fleet.channel.group_of(index), moment.parked
    refuse_quarantined(fleet, index)
    if moment.how in ("state", "pickle"):
        return
    if len(fleet.groups[number]) > 1:
        raise SnapshotError(
            f"{fleet.members[index].id}: shares its sandbox with others, which would be taken along; use"
            " envs_per_sandbox = 1"
        )
    if moment.how == "fork":
        fleet.recovery.mend(number)
        if parked is None or isinstance(parked, Kept) or not parked.alive():
            raise SnapshotError("the snapshot is a forked process, and that has ended, perhaps with its sandbox")
        copying = fleet.sandboxes[number].copying
        if copying is None or not copying.shelters(parked):
            raise SnapshotError(
                "the snapshot is a forked process in another sandbox, and can be gone back to only there"
            )
    elif moment.how == "machine" and (not isinstance(parked, Kept) or not parked.alive()):
        raise SnapshotError("the snapshot is a machine of a run that has ended, and went with it")


def _enter(fleet: Fleet, index: int, moment: Moment, seed: int | None) -> None:
    """Bring one that is alone in its sandbox to a moment that is more than a state."""
    number, built = fleet.channel.group_of(index), built_with(fleet, index)
    try:
        if moment.how == "fork":
            _resume(fleet, number, moment, seed)
        elif moment.how == "machine":
            _bring_back(fleet, index, number, moment, seed)
        else:
            _repeat(fleet, index, number, moment, seed)
    except BaseException as error:
        _build_with(fleet, number, built)
        fleet.recovery.lose(number, f"it could not be brought to a snapshot: {(str(error).splitlines() or [''])[0]}")
        raise


def _bring_back(fleet: Fleet, index: int, number: int, moment: Moment, seed: int | None) -> None:
    kept = moment.parked
    assert isinstance(kept, Kept)  # it was checked
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
        SnapshotError: It died over it, or cannot be given any.
    """
    losses = fleet.ask(Op.LOAD, [index], [encode([None, b"", seed])], fleet.members[index].reset_timeout_s)
    if losses:
        raise SnapshotError(f"{fleet.members[index].id}: it died when it was given new random streams")
    try:
        fleet.value(index)
    except (PeerLost, SandboxError) as error:
        what = str(error).splitlines()[0]
        raise SnapshotError(f"{fleet.members[index].id}: it cannot be given new random streams: {what}") from error


def _load(
    fleet: Fleet, moments: Mapping[int, Moment], seeds: Mapping[int, int], arrived: Callable[[int], None]
) -> None:
    """Have environments take on states; each that did is settled before anything is raised for another."""
    pending, failure = list(moments), None
    for _ in range(_ATTEMPTS):
        payloads = [encode([moments[i].how, moments[i].data, seeds.get(i)]) for i in pending]
        timeout_s = max((fleet.members[index].reset_timeout_s for index in pending), default=60.0)
        losses = fleet.ask(Op.LOAD, pending, payloads, timeout_s)
        answers, lost = collect(fleet, [index for index in pending if fleet.channel.group_of(index) not in losses])
        losses |= lost
        there = [index for index in pending if fleet.channel.group_of(index) not in losses]
        for index in there:
            if isinstance(error := answers[index], SandboxError) and failure is None:
                what = str(error).splitlines()[0]
                failure = SnapshotError(f"{fleet.members[index].id}: the saved state cannot be taken on: {what}")
                failure.__cause__ = error
        loaded = [index for index in there if not isinstance(answers[index], SandboxError)]
        _settle(fleet, {index: moments[index] for index in loaded}, seeds, arrived)
        pending = [index for index in pending if index not in there]
        if not losses:
            break
        fleet.recovery.recover(losses, between=True)
        for index in pending:
            refuse_quarantined(fleet, index)
    else:
        raise SnapshotError("environments died every time they were to take on a saved state")
    if failure is not None:
        raise failure


def _resume(fleet: Fleet, number: int, moment: Moment, seed: int | None) -> None:
    assert moment.parked is not None  # it was checked
    try:
        fleet.resume_from(number, moment.parked, seed)
    except (OSError, AgentEnvError) as error:
        raise SnapshotError(f"the forked process cannot be copied: {error}") from error
    fleet.renewals += 1


def _build_with(fleet: Fleet, number: int, seed: int | None) -> None:
    """Have the only environment of a sandbox be built with this seed of the global generators, when it is next."""
    sandbox = fleet.sandboxes[number]
    if sandbox.spec.envs[0].global_seed != seed:
        sandbox.spec = replace(sandbox.spec, envs=(replace(sandbox.spec.envs[0], global_seed=seed),))


def _repeat(fleet: Fleet, index: int, number: int, moment: Moment, seed: int | None) -> None:
    past, member = moment.past, fleet.members[index]
    assert past is not None  # what a replay consists of
    _build_with(fleet, number, moment.seed)
    failed = fleet.replace([number])
    fleet.renewals += 1
    if failed:
        raise failed[number]
    answers, losses = repeat(fleet, {index: past}, member.reset_timeout_s + 2 * fleet.busy_s)
    answer = answers.get(index)
    if isinstance(answer, SandboxError):
        wrong = str(answer).splitlines()[0]
    else:
        wrong = "it died" if losses else difference(past.outcomes, past.binding, answer)
    if wrong:
        raise SnapshotError(f"{member.id}: doing again what led to the snapshot does not lead there: {wrong}")
    if seed is None:
        return
    if fleet.sandboxes[number].copying is None:
        reseed(fleet, index, seed)
        return
    parked, reason = park(fleet, number)  # a copy is what can be given new random streams
    if parked is None:
        raise SnapshotError(f"{member.id}: it cannot be given new random streams: {reason}")
    try:
        _resume(fleet, number, Moment("fork", parked=parked), seed)
    finally:
        parked.drop()


def _settle(
    fleet: Fleet, moments: Mapping[int, Moment], seeds: Mapping[int, int], arrived: Callable[[int], None]
) -> None:
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
        elif len(fleet.groups[number]) == 1 and (parked := moments[fleet.groups[number][0]].parked) is not None:
            bases.borrow(number, parked, seeds.get(fleet.groups[number][0]))
        else:
            bases.want()
    for index in moments:
        arrived(index)
