"""Bringing back what died, so that nobody who steps the environments notices.

For every sandbox that is lost while a request runs: find the cause, ask the restart policy, put a process in its
place, take on the best base there is (``agentenv.fleet.bases``), repeat what the journal says has happened since,
compare every outcome with what was handed out, and ask again what was not answered. When an outcome differs the
environment is not deterministic: the episode is then ended as truncated, the reason in ``info["agentenv"]``.

The loop is here; what it decides by are pure functions elsewhere (``restarts``, ``sandbox.cause``, ``cadence``).
"""

from __future__ import annotations

import logging
import random
import time
import weakref
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from agentenv.channel.contract import PeerLost
from agentenv.errors import Cause, CauseKind, Owner, SandboxDied, SandboxError
from agentenv.fleet.bases import Bases
from agentenv.fleet.cadence import Cadence
from agentenv.fleet.crashes import How
from agentenv.fleet.legible import legible_action
from agentenv.fleet.postmortem import Victim, describe_recovery
from agentenv.fleet.quarantine import Quarantined
from agentenv.fleet.restarts import History, Quarantine, RestartPolicy, decide
from agentenv.fleet.revival import Death, Revival
from agentenv.wire.slot import PACES, Op

if TYPE_CHECKING:
    from agentenv.fleet.fleet import Fleet

logger = logging.getLogger("agentenv.fleet")

_POISONED = 2
"""So many deaths of its own at the very same request: it will not get past it."""
_HOPELESS = 2 * _POISONED
"""So many, though it was begun anew over it: nor will another episode."""
_HOW: dict[str, How] = {"copy": "snapshot", "state": "state", "replay": "replay"}


@dataclass(slots=True)
class _Account:
    """What is remembered of one sandbox's deaths."""

    history: History = field(default_factory=History)
    position: int = -1
    there: int = 0


class Recovery:
    """Recovers the environments of one fleet.

    Attributes:
        bases: What environments can be brought back from.
        out: Those that are quarantined.
        recovered: How many deaths were made up for.
        owed: Episodes that were cut and nobody has been told of, by sandbox.
        unfinished: Who was not brought back because an exception came between, by sandbox.
    """

    def __init__(self, fleet: Fleet) -> None:
        """Take the rules from the members' configuration; nothing is saved yet."""
        self._fleet: Fleet = weakref.proxy(fleet)
        first = fleet.members[0]
        self._on_crash = first.on_crash
        recovers = self._on_crash == "recover"
        self.bases = Bases(fleet, Cadence.parse(first.checkpoint_every) if recovers else None)
        self._accounts = [_Account() for _ in fleet.groups]
        self._given_up: dict[int, SandboxError] = {}
        self._revival = Revival(fleet, self.bases)
        self.owed = self._revival.cut_later
        self.out = Quarantined(fleet)
        self.recovered = 0
        self.unfinished: dict[int, PeerLost] = {}
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
        try:
            losses = self.bases.save(live)
        except BaseException:  # such as of a signal's handler; what lies in sockets unread belongs to their states
            self._fleet.let_go(live)
            raise
        if losses:
            self.recover(losses, between=True)

    def recover(self, losses: dict[int, PeerLost], *, between: bool = False) -> None:
        """Bring lost sandboxes back and have them answer what was asked last.

        Args:
            losses: From the channel.
            between: Nothing has been asked: they died between two requests.

        Raises:
            SandboxError: For the first that cannot be brought back; everybody else has answered. For one that was given
                up already, what was raised then.
        """
        failure = next((self._given_up[number] for number in losses if number in self._given_up), None)
        losses = {number: lost for number, lost in losses.items() if number not in self._given_up}
        open_deaths: dict[int, Death] = {}
        self.unfinished = dict(losses)
        try:
            while losses:
                deaths = []
                for number, lost in losses.items():
                    death = self._examine(number, lost, open_deaths.get(number))
                    open_deaths[number] = death
                    refusal = self._refusal(death, between)
                    if refusal is None:
                        deaths.append(death)
                        continue
                    failure = failure or refusal
                    del open_deaths[number]
                    self.unfinished.pop(number, None)
                losses = self._revival.bring_back(deaths, between)
        except BaseException:
            # Some may be anywhere between their beginning and where they were.
            self._fleet.let_go(self.unfinished)
            raise
        self.unfinished = {}
        for death in open_deaths.values():
            if death.number not in self._revival.cut_later and death.number not in self._retired():
                self.recovered += 1
                self._conclude(death, "truncated" if death.cut else _HOW[death.how])
        if failure is not None:
            raise failure

    def settle(self) -> dict[int, PeerLost]:
        """After everybody has answered: have those whose episodes were cut before they were asked say so.

        Returns:
            The sandboxes that were lost over it.
        """
        due = [death for death in self.owed.values() if self._revival.reaches(death)]
        for death in due:
            del self.owed[death.number]
        losses = self._revival.cut(due, answered=True)
        for death in due:
            if death.number not in losses and death.number not in self.owed:
                self._conclude(death, "truncated")
        return losses

    def reaches_owed(self) -> bool:
        """Whether what was asked last tells anybody that an episode was cut."""
        return any(self._revival.reaches(death) for death in self.owed.values())

    def start_anew(self) -> list[int]:
        """New sandboxes in place of those that were given up; their environments begin from nothing."""
        fleet = self._fleet
        numbers = [n for n in range(len(fleet.groups)) if self._must_start_anew(n)]
        failed = fleet.replace(numbers) if numbers else {}
        revived: list[int] = []
        for number in numbers:
            self.bases.forget(number)
            self.forgive(number)
            self._revival.unborn.pop(number, None)
            if number in failed:
                self._given_up[number] = failed[number]
                fleet.channel.interrupt(number)  # nobody watches it, and it may not have been seen to be lost
                fleet.channel.abandon(number)
            else:
                self._given_up.pop(number, None)
                self._born(number)
                revived.extend(fleet.groups[number])
        if failed:
            raise next(iter(failed.values()))
        if revived:
            fleet.renewals += 1
        return revived

    def cut_of(self, number: int) -> str:
        """Why the episode in a sandbox was cut, where nobody has been told yet; else ""."""
        death = self._revival.cut_later.get(number)
        return "" if death is None else death.cut

    def forgive(self, number: int) -> None:
        """A sandbox was brought to another moment: what became of it before is of no interest any more."""
        self._given_up.pop(number, None)
        self._revival.unborn.pop(number, None)
        death = self._revival.cut_later.pop(number, None)
        if death is not None:
            self._conclude(death, "truncated")

    def lose(self, number: int, why: str) -> None:
        """A sandbox is not what it should be, and serves no more: it is brought back when it is asked next.

        Args:
            number: Which; it may be gone already, or not be watched any more.
            why: What became of it.
        """
        fleet, index = self._fleet, self._fleet.groups[number][0]
        cause = Cause(CauseKind.SANDBOX_LOST, Owner.INFRASTRUCTURE, why)
        lost = SandboxDied(why, env_id=fleet.members[index].id, cause=cause, index=index if fleet.count > 1 else None)
        self._revival.note_unborn(number, lost)
        held = self.bases.copies.get(number)
        if held is None or not held.parked.alive():  # else that is what it is brought back from, and dies with it
            fleet.context.watch.remove(fleet.sandboxes[number])
            fleet.sandboxes[number].destroy()  # forks live on

    def mend(self, number: int) -> None:
        """Bring back a sandbox that was lost so, where no request is about to do it.

        Raises:
            SandboxError: It cannot be brought back.
        """
        if number in self._revival.unborn:
            self.recover({number: PeerLost(number)}, between=True)

    def close(self) -> None:
        """End what is parked. Idempotent."""
        self.bases.close()

    # -- deciding

    def _is_live(self, number: int) -> bool:
        return number not in self._given_up and self._fleet.channel.groups[number] is not None

    def is_given_up(self, number: int) -> bool:
        """Whether nothing but ``start_anew`` will bring a sandbox back that is gone, or does so already."""
        return number in self._given_up or self._on_crash == "raise"

    def _must_start_anew(self, number: int) -> bool:
        if self._fleet.channel.groups[number] is None or self._fleet.sandboxes[number].alive():
            return False
        return self.is_given_up(number)

    def _examine(self, number: int, lost: PeerLost, before: Death | None) -> Death:
        began = time.monotonic() if before is None else before.began
        held = self.bases.copies.get(number)
        error = self._revival.unborn.pop(number, None)
        if error is None:
            error = self._fleet.why(lost, spare=held is not None and held.parked.alive())
        death = Death(number, error, began) if before is None else before
        death.error = error
        if (owed := self.owed.pop(number, None)) is not None and owed is not death:
            death.cut, death.last = death.cut or owed.cut, owed.last  # it began anew, and nobody was told
            self._conclude(owed, "truncated")
        fleet = self._fleet
        victims = [Victim(fleet.members[index].id, index) for index in fleet.groups[number]]
        found = fleet.context.crashes.examine(
            victims,
            fleet.sandboxes[number],
            error,
            fleet.journal,
            partial(legible_action, fleet.single_action_space),
        )
        if before is None:
            death.reports = found
        return death

    def _refusal(self, death: Death, between: bool) -> SandboxError | None:
        """The error to raise where the death cannot be made up for; None where it can, or where the slot is retired."""
        member = self._fleet.members[self._fleet.groups[death.number][0]]
        if self._on_crash == "raise":
            return self._give_up(death)
        account = self._accounts[death.number]
        if not between:
            self._count_at_place(account, death)
        elif _is_own(death.cause):
            self.bases.note_death(death.number)
        policy = RestartPolicy(member.restart, member.max_restarts, member.restart_window_s, member.restart_backoff_s)
        now = time.monotonic()
        verdict = decide(policy, account.history.of(death.cause), death.cause, now, random.random())
        if isinstance(verdict, Quarantine):
            return self._quarantine(death, verdict.reason)
        account.history = account.history.with_restart(death.cause, now, window_s=policy.restart_window_s)
        if not between and self._is_hopeless(account, death.cause):
            return self._quarantine(death, f"it died {account.there} times at this very request: {death.cause.detail}")
        if verdict.delay_s:
            time.sleep(verdict.delay_s)
        if self._on_crash == "truncate":
            death.cut = f"it died ({death.cause.detail}), and on_crash is truncate"
        elif account.there >= _POISONED:
            death.cut = f"it died {account.there} times at this very request: {death.cause.detail}"
        return None

    def _is_hopeless(self, account: _Account, cause: Cause) -> bool:
        """Whether it dies whatever is done; who takes too long for a reset does so for minutes each time."""
        is_slow_to_begin = cause.kind is CauseKind.TIMEOUT and self._fleet.current[0] is Op.RESET
        return account.there >= (_POISONED if is_slow_to_begin else _HOPELESS)

    def _count_at_place(self, account: _Account, death: Death) -> None:
        own = _is_own(death.cause)
        position = self._fleet.journal.position
        account.there = account.there + 1 if own and account.position == position else int(own)
        account.position = position

    def _give_up(self, death: Death) -> SandboxError:
        self._given_up[death.number] = death.error
        self.bases.forget(death.number)
        self._fleet.sandboxes[death.number].kill()
        self._conclude(death, "raised")
        return death.error

    def _quarantine(self, death: Death, reason: str) -> SandboxError | None:
        fleet = self._fleet
        member = fleet.members[fleet.groups[death.number][0]]
        logger.error("%s: quarantined: %s", member.id, reason)
        if member.on_quarantine == "raise" or len(fleet.groups) == 1:
            error = self._give_up(death)
            error.add_note(f"not restarted: {reason}")
            return error
        self.bases.forget(death.number)
        self.out.retire(death.number, reason)
        self._conclude(death, "quarantined")
        # A step or reset is answered in its place; what else was asked nobody can answer.
        return None if fleet.current[0] in (Op.STEP, Op.RESET, *PACES) else death.error

    def _born(self, number: int) -> None:
        for index in self._fleet.groups[number]:
            self.bases.births[index] = self._fleet.journal.position

    def _retired(self) -> list[int]:
        return [number for number, group in enumerate(self._fleet.channel.groups) if group is None]

    def _conclude(self, death: Death, how: How) -> None:
        fleet = self._fleet
        env_ids = [fleet.members[index].id for index in fleet.groups[death.number]]
        recovery = describe_recovery(how, replayed=death.replayed, began=death.began, reason=death.cut, base=death.base)
        fleet.context.crashes.conclude(env_ids, death.reports, recovery)


def _is_own(cause: Cause) -> bool:
    """Whether it died of what it did, not of a kill from outside."""
    killed = cause.signal in (9, 15) and cause.kind is not CauseKind.OUT_OF_MEMORY
    return cause.owner is not Owner.INFRASTRUCTURE and not killed
