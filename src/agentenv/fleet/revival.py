"""Putting what died back to where it was: a process in its place, a base, everything since done again.

Works on any number of deaths at once and makes one attempt; who is lost over it is told, and tried again by others
(``agentenv.fleet.recovery``), who also decide whether.
"""

from __future__ import annotations

import logging
import weakref
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from agentenv.channel.contract import PeerLost
from agentenv.errors import AgentEnvError, Cause, ProtocolError, SandboxError
from agentenv.fleet.bases import Bases
from agentenv.fleet.crashes import CrashReport
from agentenv.fleet.journal import Past
from agentenv.fleet.repetition import difference, repeat
from agentenv.fleet.restoring import reseed
from agentenv.fleet.rungs import Copy
from agentenv.sandbox.workbench import Kept
from agentenv.wire.slot import PACES, Flag, Op
from agentenv.wire.values import encode

if TYPE_CHECKING:
    from agentenv.fleet.fleet import Fleet

logger = logging.getLogger("agentenv.fleet")

_RESTART_EPISODE = 1 << 31
"""Seeds of episodes that begin because one was cut are drawn from here on, apart from all ordinary ones."""


@dataclass(slots=True)
class Death:
    """One sandbox that was lost, and how far it has been brought back.

    Attributes:
        number: Which.
        error: Why, as it would be raised.
        began: When it was noticed, ``time.monotonic()``.
        cut: Why the episode cannot go on; "" while it may.
        how: "copy", "state", "replay" or "truncated".
        replayed: Steps and requests repeated.
        base: Position in the journal of what it was brought back from.
        untold: Of its environments, those that have begun anew and nobody was told so.
        last: The observations they had given last, uint8 of shape (k, bytes of the fixed leaves).
        reports: For each of its environments, what is to be written; only the first time it is lost.
    """

    number: int
    error: SandboxError
    began: float
    cut: str = ""
    how: str = ""
    replayed: int = 0
    base: int | None = None
    untold: set[int] = field(default_factory=set)
    last: NDArray[np.uint8] | None = None
    reports: list[CrashReport] = field(default_factory=list)

    @property
    def cause(self) -> Cause:
        """Why."""
        return self.error.cause


class Revival:
    """Brings back the environments of one fleet.

    Attributes:
        cut_later: Episodes that were cut while nobody had asked for what can say so, by sandbox.
        unborn: What could not be started in place of one that died, or was lost on its way to another moment: why.
    """

    def __init__(self, fleet: Fleet, bases: Bases) -> None:
        """Work with what ``bases`` holds."""
        self._fleet: Fleet = weakref.proxy(fleet)
        self._bases = bases
        self._cuts: dict[int, int] = {}
        self.cut_later: dict[int, Death] = {}
        self.unborn: dict[int, SandboxError] = {}

    def bring_back(self, deaths: list[Death], between: bool) -> dict[int, PeerLost]:
        """One attempt for all of them at once; returns those that were lost again."""
        fleet = self._fleet
        deaths = [death for death in deaths if fleet.channel.groups[death.number] is not None]
        for death in deaths:
            death.untold = set(fleet.groups[death.number])
            if death.last is None:  # before it has other memory
                death.last = fleet.observation_bytes[list(fleet.groups[death.number])]
        losses = self._put_in_place(deaths)
        going = [death for death in deaths if death.number not in losses]
        losses |= self._load([death for death in going if death.how == "state"])
        losses |= self._replay([death for death in going if not death.cut and death.number not in losses])
        diverged = [death for death in going if death.cut and death.how != "truncated" and death.number not in losses]
        if diverged:
            losses |= self._rebuild(diverged)
        resumed = [death for death in going if death.number not in losses]
        if between:
            # Nobody is there yet to be told that an episode was cut.
            self.cut_later.update({death.number: death for death in resumed if death.cut})
            return losses
        again = [i for death in resumed if not death.cut for i in fleet.groups[death.number]]
        losses |= fleet.ask_again(again)
        return losses | self.cut([death for death in resumed if death.cut])

    def _put_in_place(self, deaths: list[Death]) -> dict[int, PeerLost]:
        """A process for everybody: from the parked copy where only the process died, else a new sandbox."""
        fleet, fresh = self._fleet, []
        for death in deaths:
            fleet.context.crashes.mark(fleet.sandboxes[death.number], death.cause)
            held = self._bases.copies.get(death.number)
            if held is None or death.cut or not held.parked.alive() or not self._is_useful(death.number):
                fresh.append(death)
                continue
            try:
                _resume(fleet, death.number, held)
                death.how = "state" if self._states_are_later(death.number) else "copy"
            except (OSError, AgentEnvError) as error:
                logger.debug("the parked copy could not be copied: %s", error)
                fresh.append(death)
        losses = self._rebuild(fresh)
        fleet.renewals += 1
        return losses

    def _is_useful(self, number: int) -> bool:
        """Whether the parked copy leads anywhere: to a saved state, or from where it was made."""
        held = self._bases.copies[number]
        return self._has_states(number) or held.position >= self._fleet.journal.start

    def _states_are_later(self, number: int) -> bool:
        copied = self._bases.copies[number].position
        held = [self._bases.states[index] for index in self._fleet.groups[number]]
        late = all(state is not None and state.position >= copied for state in held)
        return self._has_states(number) and (late or copied < self._fleet.journal.start)

    def _has_states(self, number: int) -> bool:
        start = self._fleet.journal.start
        held = [self._bases.states[index] for index in self._fleet.groups[number]]
        return all(state is not None and state.position >= start for state in held)

    def _rebuild(self, deaths: list[Death]) -> dict[int, PeerLost]:
        """New sandboxes, all started at once."""
        if not deaths:
            return {}
        fleet = self._fleet
        for death in deaths:
            self._bases.drop_copy(death.number)
        failed = fleet.replace([death.number for death in deaths])
        for death in deaths:
            births = [self._bases.births[index] for index in fleet.groups[death.number]]
            if death.cut:
                death.how = "truncated"
            elif self._has_states(death.number):
                death.how = "state"
            elif all(birth is not None for birth in births):
                death.how = "replay"
            else:
                death.how, death.cut = "truncated", "too much has happened since it was built to be done again"
        for number, error in failed.items():
            self.note_unborn(number, error)
            logger.warning("%s: could not be started again: %s", fleet.members[fleet.groups[number][0]].id, error)
        return {number: PeerLost(number) for number in failed}

    def note_unborn(self, number: int, error: SandboxError) -> None:
        """Nothing serves in place of a sandbox, and nobody watches it: whoever asks it is told at once."""
        self._fleet.channel.interrupt(number)
        self._fleet.channel.abandon(number)
        self.unborn[number] = error

    def _load(self, deaths: list[Death]) -> dict[int, PeerLost]:
        fleet = self._fleet
        members = [index for death in deaths for index in fleet.groups[death.number]]
        states = [self._bases.states[index] for index in members]
        payloads = [encode([state.how, state.data, state.seed]) for state in states if state is not None]
        losses = fleet.ask(Op.LOAD, members, payloads, self._timeout_s(members))
        for death in deaths:
            if death.number not in losses:
                for index in fleet.groups[death.number]:
                    try:
                        fleet.value(index)
                    except PeerLost as lost:
                        losses[death.number] = lost
                    except SandboxError as error:
                        death.cut = f"its saved state cannot be taken on again: {str(error).splitlines()[0]}"
        return losses

    def _replay(self, deaths: list[Death]) -> dict[int, PeerLost]:
        fleet, journal = self._fleet, self._fleet.journal
        pasts: dict[int, Past] = {}
        for death in deaths:
            for index in fleet.groups[death.number]:
                death.base = self._position(death, index)
                held = journal.since(index, death.base)
                if len(held.outcomes):
                    pasts[index] = held
        answers, losses = repeat(fleet, pasts, self._timeout_s(list(pasts)) + 2 * fleet.busy_s)
        for death in deaths:
            if death.number in losses:
                continue
            for index in fleet.groups[death.number]:
                past, answer = pasts.get(index), answers.get(index)
                if past is None or death.cut:
                    continue
                if isinstance(answer, SandboxError):
                    death.cut = f"what it did cannot be done again: {str(answer).splitlines()[0]}"
                else:
                    death.cut = difference(past.outcomes, past.binding, answer)
                    death.replayed += len(past.outcomes)
        return losses

    def _position(self, death: Death, index: int) -> int:
        state, birth = self._bases.states[index], self._bases.births[index]
        if death.how == "state" and state is not None:
            return state.position
        if death.how == "copy":
            return self._bases.copies[death.number].position
        assert birth is not None  # or it would have been cut
        return birth

    def reaches(self, death: Death) -> bool:
        """Whether what was asked last concerns an environment of which nobody was told that its episode was cut."""
        op, asked = self._fleet.current
        return op not in PACES and (asked is None or not death.untold.isdisjoint(asked))

    def cut(self, deaths: list[Death], *, answered: bool = False) -> dict[int, PeerLost]:
        """Have environments that begin anew answer what was asked: a step as one that truncates the episode.

        Who was not asked, or not for what can say so, is told later.

        Args:
            deaths: Theirs.
            answered: They have answered what was asked, as if nothing had happened.
        """
        fleet = self._fleet
        op, asked = fleet.current
        losses: dict[int, PeerLost] = {}
        for death in deaths:
            group = [index for index in sorted(death.untold) if asked is None or index in asked]
            self._bases.forget(death.number)
            if op is Op.STEP:
                losses |= self._read_off(group) if answered else {}
                self._cuts[death.number] = cuts = self._cuts.get(death.number, 0) + 1
                info = {"agentenv": {"truncated": death.cut, "cause": str(death.cause.kind)}}
                group = [index for index in group if fleet.channel.group_of(index) not in losses]
                payloads = [encode([self._restart_seed(index, cuts), info]) for index in group]
                losses |= fleet.ask(Op.CUT, group, payloads, self._timeout_s(group))
                self._show_last(death, group)
            elif op is Op.RESET or op in PACES:
                losses |= {} if answered else fleet.ask_again(group)
            elif group:
                # It has no state that could be asked for anything: the next reset gives it one.
                fleet.sandboxes[death.number].kill()
                raise death.error
            if op not in PACES:
                death.untold -= set(group)
            if death.untold and death.number not in losses:
                self.cut_later[death.number] = death
            self._bases.want()
        return losses

    def _show_last(self, death: Death, members: Sequence[int]) -> None:
        """The observation an episode ends with is the last one known of it, not the first of another one."""
        fleet = self._fleet
        if fleet.observation_layout.variable or death.last is None:
            return  # some of it is not in the slot, and halves of two would be worse
        shown = fleet.final_bytes if fleet.autoreset == "SameStep" else fleet.observation_bytes
        for index in members:
            shown[index] = death.last[fleet.groups[death.number].index(index)]

    def _read_off(self, members: Sequence[int]) -> dict[int, PeerLost]:
        """What they answered is of no interest, but left in their sockets it would be taken for the next answer."""
        channel, losses = self._fleet.channel, {}
        for index in members:
            if int(channel.status[index]) & Flag.SPILLED:
                number = channel.group_of(index)
                try:
                    channel.payload(index)
                except PeerLost as lost:
                    losses[number] = lost
                except ProtocolError as error:
                    losses[number] = PeerLost(number, broken=str(error))
        return losses

    def _restart_seed(self, index: int, cuts: int) -> int:
        member = self._fleet.members[index]
        return self._fleet.context.seeds.environment(member.id, seed=member.seed, episode=_RESTART_EPISODE + cuts)

    def _timeout_s(self, members: Sequence[int]) -> float:
        chosen = [self._fleet.members[index] for index in members]
        return max((member.reset_timeout_s + member.step_timeout_s for member in chosen), default=60.0)


def _resume(fleet: Fleet, number: int, held: Copy) -> None:
    if not isinstance(held.parked, Kept):
        fleet.resume_from(number, held.parked, held.seed)
        return
    fleet.resume_from(number, held.parked)
    if held.seed is not None:
        reseed(fleet, fleet.groups[number][0], held.seed)
