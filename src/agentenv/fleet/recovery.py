"""Bringing back what died, so that nobody who steps the environments notices.

For every sandbox that is lost while a request runs: find the cause, ask the restart policy, put a process in its
place, take on the best base there is (``agentenv.fleet.bases``), repeat what the journal says has happened since,
compare every outcome with what was handed out, and ask again what was not answered. When an outcome differs the
environment is not deterministic: the episode is then ended as truncated, the reason in ``info["agentenv"]``.

The loop is here; what it decides by are pure functions elsewhere (``restarts``, ``sandbox.cause``, ``cadence``).
"""

from __future__ import annotations

import copy
import logging
import random
import time
import weakref
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from agentenv.channel.contract import PeerLost
from agentenv.errors import AgentEnvError, Cause, CauseKind, Owner, SandboxDied, SandboxError
from agentenv.fleet.bases import Bases
from agentenv.fleet.cadence import Cadence
from agentenv.fleet.crashes import CrashReport, How
from agentenv.fleet.journal import Past
from agentenv.fleet.postmortem import Victim, describe_recovery
from agentenv.fleet.repetition import difference, repeat
from agentenv.fleet.restarts import History, Quarantine, RestartPolicy, decide
from agentenv.wire.slot import Flag, Op
from agentenv.wire.values import encode

if TYPE_CHECKING:
    from agentenv.fleet.fleet import Fleet

logger = logging.getLogger("agentenv.fleet")

_POISONED = 2
"""So many deaths of its own at the very same request: it will not get past it."""
_HOW: dict[str, How] = {"copy": "snapshot", "state": "state", "replay": "replay"}
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
        reports: For each of its environments, what is to be written; only the first time it is lost.
    """

    number: int
    error: SandboxError
    began: float
    cut: str = ""
    how: str = ""
    replayed: int = 0
    base: int | None = None
    reports: list[CrashReport] = field(default_factory=list)

    @property
    def cause(self) -> Cause:
        """Why."""
        return self.error.cause


@dataclass(slots=True)
class _Account:
    """What is remembered of one sandbox's deaths."""

    history: History = field(default_factory=History)
    position: int = -1
    there: int = 0
    cuts: int = 0


class Recovery:
    """Recovers the environments of one fleet.

    Attributes:
        quarantined: Environments that are out for good: why.
        recovered: How many deaths were made up for.
    """

    def __init__(self, fleet: Fleet) -> None:
        """Take the rules from the members' configuration; nothing is saved yet."""
        self._fleet: Fleet = weakref.proxy(fleet)
        first = fleet.members[0]
        self._on_crash = first.on_crash
        recovers = self._on_crash == "recover"
        self.bases = Bases(fleet, Cadence.parse(first.checkpoint_every) if recovers else Cadence())
        self._accounts = [_Account() for _ in fleet.groups]
        self._given_up: set[int] = set()
        self._cut_later: dict[int, Death] = {}
        self._leaves: dict[int, list[object]] = {}
        self.quarantined: dict[int, str] = {}
        self.recovered = 0
        self.count_step = self.bases.count

    @property
    def due(self) -> bool:
        """Whether states are to be saved before the next request."""
        return self.bases.due

    def checkpoint(self) -> None:
        """Save the states of all environments.

        Raises:
            SandboxError: One died over it, and cannot be brought back.
        """
        live = [number for number in range(len(self._fleet.groups)) if self._is_live(number)]
        losses = self.bases.save(live)
        if losses:
            self.recover(losses, between=True)

    def recover(self, losses: dict[int, PeerLost], *, between: bool = False) -> None:
        """Bring lost sandboxes back and have them answer what was asked last.

        Args:
            losses: From the channel.
            between: Nothing has been asked: they died between two requests.

        Raises:
            SandboxError: For the first that cannot be brought back; everybody else has answered.
        """
        failure: SandboxError | None = None
        open_deaths: dict[int, Death] = {}
        while losses:
            deaths = []
            for number, lost in losses.items():
                death = self._examine(number, lost, open_deaths.get(number))
                open_deaths[number] = death
                refusal = self._refusal(death)
                if refusal is None:
                    deaths.append(death)
                    continue
                failure = failure or refusal
                del open_deaths[number]
            losses = self._bring_back(deaths, between)
        for death in open_deaths.values():
            if death.number not in self._cut_later and death.number not in self._retired():
                self.recovered += 1
                self._conclude(death, "truncated" if death.cut else _HOW[death.how])
        if failure is not None:
            raise failure

    @property
    def owes(self) -> bool:
        """Whether an episode was cut and nobody has been told."""
        return bool(self._cut_later)

    def settle(self) -> dict[int, PeerLost]:
        """After everybody has answered: have those whose episodes were cut before they were asked say so.

        Returns:
            The sandboxes that were lost over it.
        """
        due = list(self._cut_later.values())
        self._cut_later.clear()
        losses = self._cut(due)
        for death in due:
            if death.number not in losses:
                self._conclude(death, "truncated")
        return losses

    def start_anew(self) -> list[int]:
        """New sandboxes in place of those that were given up; their environments begin from nothing."""
        fleet = self._fleet
        numbers = [n for n in range(len(fleet.groups)) if self._must_start_anew(n)]
        failed = fleet.replace(numbers) if numbers else {}
        revived: list[int] = []
        for number in numbers:
            self.bases.forget(number)
            self._given_up.add(number)
            if number not in failed:
                self._given_up.discard(number)
                self._born(number)
                revived.extend(fleet.groups[number])
        if failed:
            raise next(iter(failed.values()))
        if revived:
            fleet.renewals += 1
        return revived

    def answer_for_quarantined(self, op: Op, members: Sequence[int] | None) -> None:
        """Have those that are out answer: a step is truncated with reward 0."""
        channel, variable = self._fleet.channel, self._fleet.observation_layout.variable
        for index, reason in self.quarantined.items():
            if members is not None and index not in members:
                continue
            info = {"agentenv": {"quarantined": True, "reason": reason}}
            flags = int(Flag.TRUNCATED) if op is Op.STEP else 0
            if variable:
                channel.put_answer(index, flags | Flag.RECORD, encode([info, self._leaves[index], None]))
            else:
                channel.put_answer(index, flags | Flag.INFO, encode(info))

    def refuse_quarantined(self, members: Sequence[int]) -> None:
        """Raise for one that is out and is asked for more than steps.

        Raises:
            SandboxDied: It is quarantined.
        """
        for index in members:
            if index in self.quarantined:
                cause = Cause(CauseKind.CLOSED, Owner.ENVIRONMENT, f"is quarantined: {self.quarantined[index]}")
                raise SandboxDied(cause.detail, env_id=self._fleet.members[index].id, cause=cause, index=index)

    def close(self) -> None:
        """End what is parked. Idempotent."""
        self.bases.close()

    # -- deciding

    def _is_live(self, number: int) -> bool:
        return number not in self._given_up and self._fleet.channel.groups[number] is not None

    def _must_start_anew(self, number: int) -> bool:
        if self._fleet.channel.groups[number] is None or self._fleet.sandboxes[number].alive():
            return False
        return number in self._given_up or self._on_crash == "raise"

    def _examine(self, number: int, lost: PeerLost, before: Death | None) -> Death:
        began = time.monotonic() if before is None else before.began
        held = self.bases.copies.get(number)
        error = self._fleet.why(lost, spare=held is not None and held.parked.alive())
        death = Death(number, error, began) if before is None else before
        death.error = error
        fleet = self._fleet
        victims = [Victim(fleet.members[index].id, index) for index in fleet.groups[number]]
        found = fleet.context.crashes.examine(victims, fleet.sandboxes[number], error, fleet.journal)
        if before is None:
            death.reports = found
        return death

    def _refusal(self, death: Death) -> SandboxError | None:
        """The error to raise where the death cannot be made up for; None where it can, or where the slot is retired."""
        member = self._fleet.members[self._fleet.groups[death.number][0]]
        if self._on_crash == "raise":
            return self._give_up(death)
        account = self._accounts[death.number]
        self._count_at_place(account, death)
        policy = RestartPolicy(member.restart, member.max_restarts, member.restart_window_s, member.restart_backoff_s)
        now = time.monotonic()
        verdict = decide(policy, account.history.of(death.cause), death.cause, now, random.random())
        if isinstance(verdict, Quarantine):
            return self._quarantine(death, verdict.reason)
        account.history = account.history.with_restart(death.cause, now, window_s=policy.restart_window_s)
        if verdict.delay_s:
            time.sleep(verdict.delay_s)
        if self._on_crash == "truncate":
            death.cut = f"it died ({death.cause.detail}), and on_crash is truncate"
        elif account.there >= _POISONED:
            death.cut = f"it died {account.there} times at this very request: {death.cause.detail}"
        return None

    def _count_at_place(self, account: _Account, death: Death) -> None:
        own = death.cause.owner is not Owner.INFRASTRUCTURE and death.cause.signal not in (9, 15)
        position = self._fleet.journal.position
        account.there = account.there + 1 if own and account.position == position else int(own)
        account.position = position

    def _give_up(self, death: Death) -> SandboxError:
        self._given_up.add(death.number)
        self.bases.forget(death.number)
        self._fleet.sandboxes[death.number].kill()
        self._conclude(death, "raised")
        return death.error

    def _quarantine(self, death: Death, reason: str) -> SandboxError | None:
        fleet, group = self._fleet, self._fleet.groups[death.number]
        member = fleet.members[group[0]]
        logger.error("%s: quarantined: %s", member.id, reason)
        if member.on_quarantine == "raise" or len(fleet.groups) == 1:
            error = self._give_up(death)
            error.add_note(f"not restarted: {reason}")
            return error
        fleet.context.watch.remove(fleet.sandboxes[death.number])
        self.bases.forget(death.number)
        fleet.sandboxes[death.number].destroy()
        fleet.channel.retire(death.number)
        self.quarantined.update(dict.fromkeys(group, reason))
        space = copy.deepcopy(fleet.single_observation_space)
        space.seed(0)
        self._leaves.update({index: fleet.put_observation(index, space.sample()) for index in group})
        self.answer_for_quarantined(fleet.current[0], fleet.current[1])
        self._conclude(death, "quarantined")
        return None

    # -- bringing back

    def _bring_back(self, deaths: list[Death], between: bool) -> dict[int, PeerLost]:
        """One attempt for all of them at once; returns those that were lost again."""
        fleet = self._fleet
        deaths = [death for death in deaths if fleet.channel.groups[death.number] is not None]
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
            self._cut_later.update({death.number: death for death in resumed if death.cut})
            return losses
        again = [i for death in resumed if not death.cut for i in fleet.groups[death.number]]
        losses |= fleet.ask_again(again)
        return losses | self._cut([death for death in resumed if death.cut])

    def _put_in_place(self, deaths: list[Death]) -> dict[int, PeerLost]:
        """A process for everybody: from the parked copy where only the process died, else a new sandbox."""
        fleet, fresh = self._fleet, []
        for death in deaths:
            held = self.bases.copies.get(death.number)
            if held is None or death.cut or not held.parked.alive() or not self._is_useful(death.number):
                fresh.append(death)
                continue
            try:
                fleet.resume_from(death.number, held.parked)
                death.how = "state" if self._has_states(death.number) else "copy"
            except (OSError, AgentEnvError) as error:
                logger.debug("the parked copy could not be copied: %s", error)
                fresh.append(death)
        losses = self._rebuild(fresh)
        fleet.renewals += 1
        return losses

    def _is_useful(self, number: int) -> bool:
        """Whether the parked copy leads anywhere: to a saved state, or from where it was made."""
        held = self.bases.copies[number]
        return self._has_states(number) or held.position >= self._fleet.journal.start

    def _has_states(self, number: int) -> bool:
        start = self._fleet.journal.start
        held = [self.bases.states[index] for index in self._fleet.groups[number]]
        return all(state is not None and state.position >= start for state in held)

    def _rebuild(self, deaths: list[Death]) -> dict[int, PeerLost]:
        """New sandboxes, all started at once."""
        if not deaths:
            return {}
        fleet = self._fleet
        for death in deaths:
            self.bases.drop_copy(death.number)
        failed = fleet.replace([death.number for death in deaths])
        for death in deaths:
            births = [self.bases.births[index] for index in fleet.groups[death.number]]
            if death.cut:
                death.how = "truncated"
            elif self._has_states(death.number):
                death.how = "state"
            elif all(birth is not None for birth in births):
                death.how = "replay"
            else:
                death.how, death.cut = "truncated", "too much has happened since it was built to be done again"
        for number, error in failed.items():
            fleet.channel.interrupt(number)
            logger.warning("%s: could not be started again: %s", fleet.members[fleet.groups[number][0]].id, error)
        return {number: PeerLost(number) for number in failed}

    def _load(self, deaths: list[Death]) -> dict[int, PeerLost]:
        fleet = self._fleet
        members = [index for death in deaths for index in fleet.groups[death.number]]
        states = [self.bases.states[index] for index in members]
        payloads = [encode([state.how, state.data, None]) for state in states if state is not None]
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
        state, birth = self.bases.states[index], self.bases.births[index]
        if death.how == "state" and state is not None:
            return state.position
        if death.how == "copy":
            return self.bases.copies[death.number].position
        assert birth is not None  # or it would have been cut
        return birth

    def _retired(self) -> list[int]:
        return [number for number, group in enumerate(self._fleet.channel.groups) if group is None]

    def _cut(self, deaths: list[Death]) -> dict[int, PeerLost]:
        """Have environments that begin anew answer what was asked: a step as one that truncates the episode."""
        fleet = self._fleet
        op, asked = fleet.current
        losses: dict[int, PeerLost] = {}
        for death in deaths:
            group = [index for index in fleet.groups[death.number] if asked is None or index in asked]
            account = self._accounts[death.number]
            account.cuts += 1
            self.bases.forget(death.number)
            if op is Op.RESET:
                losses |= fleet.ask_again(group)
            elif op is Op.STEP:
                info = {"agentenv": {"truncated": death.cut, "cause": str(death.cause.kind)}}
                payloads = [encode([self._restart_seed(index, account.cuts), info]) for index in group]
                losses |= fleet.ask(Op.CUT, group, payloads, self._timeout_s(group))
            elif op in (Op.EAGER, Op.PATIENT):
                losses |= fleet.ask_again(group)
            else:
                # It has no state that could be asked for anything: the next reset gives it one.
                self._give_up(death)
                raise death.error
            self.bases.want()
        return losses

    def _restart_seed(self, index: int, cuts: int) -> int:
        member = self._fleet.members[index]
        return self._fleet.context.seeds.environment(member.id, seed=member.seed, episode=_RESTART_EPISODE + cuts)

    def _born(self, number: int) -> None:
        for index in self._fleet.groups[number]:
            self.bases.births[index] = self._fleet.journal.position

    def _conclude(self, death: Death, how: How) -> None:
        fleet = self._fleet
        env_ids = [fleet.members[index].id for index in fleet.groups[death.number]]
        recovery = describe_recovery(how, replayed=death.replayed, began=death.began, reason=death.cut, base=death.base)
        fleet.context.crashes.conclude(env_ids, death.reports, recovery)

    def _timeout_s(self, members: Sequence[int]) -> float:
        chosen = [self._fleet.members[index] for index in members]
        return max((member.reset_timeout_s + member.step_timeout_s for member in chosen), default=60.0)
