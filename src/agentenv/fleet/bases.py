"""What environments can be brought back from: the rungs of the ladder, and the saving of states.

    copy     a fork of the environment's process, parked in its sandbox: quick, exact, dies with the sandbox; where
             processes are not copied but whole sandboxes are, a snapshot of that, which does not
    state    bytes that were made, and are read, only inside sandboxes: by the environment's own methods, or pickled
    birth    nothing but the description: build it again and repeat everything since

One copy is parked for every sandbox even where states can be saved: it spares the building. Where states cannot be
saved, a new copy is parked every time instead; where saving them takes longer than forking, as well, and they are
saved as much less often. What either takes is measured.
"""

from __future__ import annotations

import logging
import math
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import replace
from time import monotonic, perf_counter
from typing import TYPE_CHECKING, Any

from agentenv.channel.contract import PeerLost
from agentenv.errors import RuntimeUnavailable, SandboxError
from agentenv.fleet.cadence import Cadence
from agentenv.fleet.repetition import collect
from agentenv.fleet.rungs import Copy, State, copy_refusal
from agentenv.sandbox.contract import ParkedCopy
from agentenv.sandbox.workbench import Kept, Workbench
from agentenv.wire.slot import Op
from agentenv.wire.values import encode

if TYPE_CHECKING:
    from agentenv.fleet.fleet import Fleet

logger = logging.getLogger("agentenv.fleet")

_MOST_JOURNAL_BYTES, _LEAST_JOURNAL_BYTES = 256 << 20, 1 << 20
"""What the journals of all environments of a run may take of the host's memory, and each may in any case."""
_MOST_OF_LIMIT = 0.4
_DEATHS_SAVING = 2
_SAVING_S = 10.0
"""What takes longer hangs: the other side gives up long before."""


class Bases:
    """The bases of all environments of a fleet.

    Attributes:
        states: The last saved state of each environment.
        copies: The parked copy of each sandbox.
        births: For each environment the position at which it was built, or None when not all since is known.
        unfit: Why the state of an environment of a sandbox cannot be saved, by number of the sandbox.
        cost_s: What saving took the last time; None before the first.
        spent_s: Seconds that saving has taken so far, in all.
        due: Whether it is time to save.
    """

    def __init__(self, fleet: Fleet, cadence: Cadence | None) -> None:
        """Save nothing yet.

        Args:
            fleet: The environments.
            cadence: When to save; None where nobody who died is brought back. Then little is kept of the steps, for
                reports of crashes, and for snapshots that can only repeat them.
        """
        self._fleet: Fleet = weakref.proxy(fleet)
        self._cadence = cadence or Cadence()
        self._recovers = cadence is not None
        most = 0 if cadence is None else _MOST_JOURNAL_BYTES
        share = most * fleet.count // max(fleet.count, fleet.context.most_environments)
        self._most_bytes = max(share, _LEAST_JOURNAL_BYTES, 3 * fleet.journal.block_bytes)
        self._uncopied: dict[int, str] = {}
        self._proven: set[int] = set()
        self._state_s: dict[int, float] = {}
        self._copy_s: dict[int, float] = {}
        self._turn = 0
        self._died_saving: dict[int, int] = {}
        self.states: list[State | None] = [None] * fleet.count
        self.copies: dict[int, Copy] = {}
        self.births: list[int | None] = [0] * fleet.count
        self.unfit: dict[int, str] = {}
        self.cost_s: float | None = None
        self.spent_s = 0.0
        self.due = False
        self._next_busy_s = self._cadence.next_busy_s(0.0, None)
        self._next_position = self._cadence.steps or None
        self._next_time = None if self._cadence.seconds is None else monotonic() + self._cadence.seconds

    def count(self) -> None:
        """An entry was answered: look whether it is time."""
        fleet = self._fleet
        if fleet.journal.nbytes > self._most_bytes:
            self._make_room()
        elif fleet.busy_s >= self._next_busy_s:
            self.due = True
        elif self._next_position is not None:
            self.due = fleet.journal.position >= self._next_position
        elif self._next_time is not None:
            self.due = monotonic() >= self._next_time

    def is_proven(self, index: int) -> bool:
        """Whether a saved state of this environment was once tried out."""
        return index in self._proven

    def note_proven(self, index: int) -> None:
        """A saved state of this environment was tried out."""
        self._proven.add(index)

    def want(self) -> None:
        """Save as soon as possible: somebody has nothing to be brought back from."""
        self.due = self._cadence != Cadence()

    def save(self, live: Sequence[int]) -> dict[int, PeerLost]:
        """Save the states of all environments of the sandboxes ``live``.

        Returns:
            The sandboxes that were lost over it.
        """
        began = perf_counter()
        self.due = False
        first = [number for number in live if number not in self.unfit and not self._was_saved(number)]
        self._turn += 1
        costly = {number: spacing for number in live if (spacing := self._spacing(number)) > 1}
        later = [
            number
            for number in live
            if number not in self.unfit and number not in first and self._turn % costly.get(number, 1) == 0
        ]
        for number in first:
            self._look_for_room(number)
        first = [number for number in first if number not in self.unfit]
        losses = self._prove(first)
        proving_s = perf_counter() - began
        losses |= self._capture(later, False)
        every_time = [number for number in live if number in self.unfit or number in costly]
        held = {number for number, copy in self.copies.items() if not copy.borrowed}
        stale = [number for number in live if number in every_time or number not in held]
        parking = perf_counter()
        losses |= self._park([n for n in stale if n not in losses and n not in self._uncopied])
        stem_s = 0.0 if every_time else perf_counter() - parking
        spent = perf_counter() - began - (proving_s if first else 0.0) - stem_s
        # The first time includes what comes only once; taken for what saving costs, it puts off the second.
        self.cost_s = max(spent, 1e-4) if later or every_time else proving_s / 4
        self._plan()
        self._trim()
        self.spent_s += perf_counter() - began
        return losses

    def note_death(self, number: int) -> None:
        """A sandbox died while states were saved, and nobody killed it: not tried a third time."""
        self._died_saving[number] = self._died_saving.get(number, 0) + 1
        if self._died_saving[number] >= _DEATHS_SAVING:
            self._refuse(number, "it died while that was tried")

    def forget(self, number: int, *, copy: bool = True) -> None:
        """The environments of a sandbox are others now: nothing that was saved belongs to them."""
        for index in self._fleet.groups[number]:
            self.states[index] = None
            self.births[index] = None
        if copy:
            self.drop_copy(number)

    def drop_copy(self, number: int) -> None:
        """End the parked copy of a sandbox, if there is one."""
        held = self.copies.pop(number, None)
        if held is not None and not held.borrowed:
            held.parked.drop()

    def borrow(self, number: int, parked: ParkedCopy | Kept, seed: int | None) -> None:
        """A sandbox was brought back to what somebody else has kept: its base until it has one of its own."""
        if self._recovers:
            self.copies[number] = Copy(self._fleet.journal.position, parked, seed, borrowed=True)
        self.want()

    def inherit(self, other: Bases) -> None:
        """Begin with what the original of a copy, whose journal was taken over, is brought back from."""
        self.states, self.births = list(other.states), list(other.births)
        if self._recovers:
            self.copies = {number: replace(copy, borrowed=True) for number, copy in other.copies.items()}
        self._plan()
        if any(state is None and birth is None for state, birth in zip(self.states, self.births, strict=True)):
            self.want()

    def close(self) -> None:
        """End the parked copies. Idempotent."""
        for number in list(self.copies):
            self.drop_copy(number)

    def _spacing(self, number: int) -> int:
        """Every how many times the states of a sandbox are saved; the other times it is only forked."""
        state_s, copy_s = self._state_s.get(number, 0.0), self._copy_s.get(number)
        if number in self.unfit or copy_s is None or state_s < 2 * copy_s:
            return 1
        return min(100, math.ceil(state_s / copy_s))

    def _look_for_room(self, number: int) -> None:
        """Saving a state needs as much memory again, for a moment; where the limit leaves less, that would kill."""
        sandbox = self._fleet.sandboxes[number]
        used = sandbox.usage()
        if used is not None and used.memory_bytes > _MOST_OF_LIMIT * sandbox.spec.memory_mb * (1 << 20):
            self._refuse(
                number,
                f"it uses {used.memory_bytes >> 20} MB of the {sandbox.spec.memory_mb} MB it may, which leaves no room"
                " for a copy; raise memory_mb",
            )

    def _was_saved(self, number: int) -> bool:
        return all(index in self._proven for index in self._fleet.groups[number])

    def _prove(self, numbers: Sequence[int]) -> dict[int, PeerLost]:
        """Save states for the first time: one of each kind is tried out, the others go by what was found."""
        alike: dict[str, list[int]] = {}
        for number in numbers:
            members = [self._fleet.members[index] for index in self._fleet.groups[number]]
            kind = repr([(m.env, m.env_kwargs, m.wrappers, m.max_episode_steps) for m in members])
            alike.setdefault(kind, []).append(number)
        losses = self._capture([one for one, *_ in alike.values()], True)
        for one, *others in alike.values():
            if one in self.unfit:
                for number in others:
                    self._refuse(number, self.unfit[one])
            elif one not in losses and others and self._was_saved(one):
                ways = [state.how for index in self._fleet.groups[one] if (state := self.states[index]) is not None]
                losses |= self._capture(others, *ways)
        return losses

    def _capture(self, numbers: Sequence[int], *request: bool | str) -> dict[int, PeerLost]:
        """Save the states of sandboxes; the request is one for all, or one for each environment of a sandbox."""
        fleet, position = self._fleet, self._fleet.journal.position
        members = [index for number in numbers for index in fleet.groups[number]]
        payloads = [encode(part) for part in request] * (len(numbers) if len(request) > 1 else len(members))
        losses = fleet.ask(Op.CAPTURE, members, payloads, _timeout_s(fleet, members))
        answers, lost = collect(fleet, [index for index in members if fleet.channel.group_of(index) not in losses])
        losses |= lost
        for number in numbers:
            if number not in losses:
                self._keep(number, position, {index: answers[index] for index in fleet.groups[number]})
        return losses

    def _keep(self, number: int, position: int, answers: Mapping[int, Any]) -> None:
        """The states of one sandbox's environments: all of them or none, for they share what is beside them."""
        states: dict[int, State] = {}
        for index, value in answers.items():
            match value:
                case ["state" | "pickle" as how, bytes() as data, float() as seconds]:
                    states[index] = State(position, how, data)
                    self._state_s[number] = seconds
                    self._proven.add(index)
                case ["no", str() as reason]:
                    self._refuse(number, reason)
                case ["not yet", str()]:
                    pass  # it is tried again the next time
                case SandboxError():
                    self._refuse(number, str(value).splitlines()[0])
                case _:
                    self._refuse(number, "it answered something that is not the protocol")
        if len(states) == len(answers):
            for index, state in states.items():
                self.states[index] = state

    def _refuse(self, number: int, reason: str) -> None:
        """The states of this sandbox's environments cannot be saved; what was saved before stays good."""
        if number not in self.unfit:
            self.unfit[number] = reason
            members = ", ".join(self._fleet.members[index].id for index in self._fleet.groups[number])
            logger.info("%s: the state is kept as a forked process, since it cannot be saved: %s", members, reason)

    def _park(self, numbers: Sequence[int]) -> dict[int, PeerLost]:
        fleet, position = self._fleet, self._fleet.journal.position
        ordered: dict[int, ParkedCopy] = {}
        losses: dict[int, PeerLost] = {}
        for number in numbers:
            copying, workbench = fleet.sandboxes[number].copying, fleet.sandboxes[number].workbench
            if copying is None:
                if workbench is None:
                    self._note_uncopied(number, fleet.context.no_copies)
                elif number in self.unfit:
                    losses |= self._keep_whole(number, workbench)
                continue
            try:
                ordered[number] = copying.order_park()
            except (OSError, SandboxError):
                losses[number] = PeerLost(number)
        firsts = {number: fleet.groups[number][0] for number in ordered}
        losses |= fleet.ask(
            Op.COPY, list(firsts.values()), [encode(None)] * len(firsts), _timeout_s(fleet, firsts.values())
        )
        for number, parked in ordered.items():
            reason: str | None = "its process ended"
            try:
                if number not in losses:
                    answer = fleet.value(firsts[number])
                    reason = copy_refusal(answer)
                    if reason is None:
                        self._copy_s[number] = answer[1]
                        fleet.copying(number).settle(parked)
            except PeerLost as lost:
                losses[number] = lost
            except (OSError, SandboxError, ValueError) as error:
                reason = str(error)
            if reason is None:
                self.drop_copy(number)
                self.copies[number] = Copy(position, parked)
                continue
            parked.drop()
            if number not in losses:
                self._note_uncopied(number, reason)
        return losses

    def _keep_whole(self, number: int, workbench: Workbench) -> dict[int, PeerLost]:
        try:
            kept = workbench.keep()
        except SandboxError:
            return {number: PeerLost(number)}
        except (OSError, RuntimeUnavailable) as error:
            self._note_uncopied(number, str(error))
            return {}
        self.drop_copy(number)
        self.copies[number] = Copy(self._fleet.journal.position, kept)
        return {}

    def _note_uncopied(self, number: int, reason: str) -> None:
        if number not in self._uncopied:
            logger.info("%s: cannot be forked: %s", self._fleet.members[self._fleet.groups[number][0]].id, reason)
        self._uncopied[number] = reason

    def _plan(self) -> None:
        self._next_busy_s = self._cadence.next_busy_s(self._fleet.busy_s, self.cost_s)
        if self._cadence.steps is not None:
            self._next_position = self._fleet.journal.position + self._cadence.steps
        if self._cadence.seconds is not None:
            self._next_time = monotonic() + self._cadence.seconds

    def _make_room(self) -> None:
        """The journal takes too much: save earlier than planned, or do without what goes back too far."""
        if self._cadence == Cadence():
            self._trim()
        else:
            self.due = True

    def _trim(self) -> None:
        """Forget the part of the journal that nobody will be brought back from."""
        journal = self._fleet.journal
        is_full = journal.nbytes > self._most_bytes
        needed = []
        for number, group in enumerate(self._fleet.groups):
            copy = self.copies.get(number)
            for index in group:
                state, birth = self.states[index], self.births[index]
                durable = state.position if state is not None else birth
                if durable is None or (is_full and durable < journal.position):
                    self.states[index] = state = durable = self.births[index] = None
                # A copy is worth keeping the journal for only where there is nothing better.
                at = [durable] if durable is not None else []
                is_worth = copy is not None and not (is_full and copy.position < journal.position)
                at += [copy.position] if copy is not None and is_worth and (state is None or durable is None) else []
                needed.append(min(at, default=journal.position))
        journal.trim(min(needed, default=journal.position))
        for index, birth in enumerate(self.births):
            if birth is not None and birth < journal.start:
                self.births[index] = None


def _timeout_s(fleet: Fleet, members: Any) -> float:
    return min(_SAVING_S, max((fleet.members[index].reset_timeout_s for index in members), default=60.0))
