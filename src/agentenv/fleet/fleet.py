"""Asking environments and having answers, come what may: what the Gymnasium faces are built on.

Every request is noted before it is sent and its outcome when it is answered, so that an environment that dies can be
brought back to where it was (``agentenv.fleet.recovery``) and the request answered as if nothing had happened. It knows
nothing of Gymnasium's conventions for seeds, infos or autoreset; the faces do.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from functools import partial
from time import monotonic, perf_counter
from typing import Any

from agentenv.channel.contract import PeerLost
from agentenv.config import EnvironmentConfig
from agentenv.errors import ClosedError, ProtocolError, SandboxError
from agentenv.fleet.answers import Answer, as_error_texts, read_answer
from agentenv.fleet.context import RunContext
from agentenv.fleet.crew import Crew
from agentenv.fleet.journal import Journal
from agentenv.fleet.pacing import Pace
from agentenv.fleet.recovery import Recovery
from agentenv.sandbox.contract import Sandbox
from agentenv.wire.sending import encode_request
from agentenv.wire.slot import PAYLOAD, Flag, Op
from agentenv.wire.values import decode

# All that runs code of the environment, which may draw random numbers or change something over it.
_JOURNALED = frozenset((Op.STEP, Op.RESET, Op.CALL, Op.SET, Op.RENDER, Op.LOOK))


class Fleet(Crew):
    """A fixed number of environments that are asked and answer; see ``Crew`` for how they are made.

    Attributes:
        journal: What was asked and came back.
        recovery: Brings back what dies, as far as the configuration wants it.
        renewals: How many times processes were replaced.
        busy_s: Seconds spent waiting for answers.
        is_pending: Whether something was asked and not seen to its end.
    """

    def __init__(
        self,
        context: RunContext,
        members: Sequence[EnvironmentConfig],
        *,
        autoreset: str = "Disabled",
        envs_per_sandbox: int = 1,
        in_vector: bool = False,
        sandboxes: Sequence[Sandbox] | None = None,
        reseed: int | None = None,
    ) -> None:
        """Start everything; see ``Crew``."""
        super().__init__(
            context,
            members,
            autoreset=autoreset,
            envs_per_sandbox=envs_per_sandbox,
            in_vector=in_vector,
            sandboxes=sandboxes,
            reseed=reseed,
        )
        self.journal = Journal(self.count, self.action_bytes.shape[1])
        self.recovery = Recovery(self)
        self.renewals = 0
        self.busy_s = 0.0
        self._began = 0.0
        self._is_noted = False  # whether the last entry of the journal is what was asked last
        self._current: tuple[Op, Sequence[int] | None, Sequence[bytes] | None, float] = (Op.STEP, None, None, 0.0)
        self.is_pending = False
        self._losses: dict[int, PeerLost] = {}  # who was lost over it and is not brought back yet

    def post(
        self,
        op: Op,
        members: Sequence[int] | None = None,
        payloads: Sequence[bytes] | None = None,
        *,
        timeout_s: float,
    ) -> None:
        """Ask environments; ``wait`` must follow. The actions of a step lie in ``action_bytes`` already.

        Before they are put there, see to the end of what is still pending with ``finish``: it may be a step.

        Args:
            op: What is asked.
            members: Positions asked; None asks all.
            payloads: One for each of them, or None.
            timeout_s: Until when they must have answered, from now.
        """
        if self.is_pending:
            self.finish()
        try:
            self._note(op, members, payloads)
            self._current = (op, members, payloads, timeout_s)
            if self.recovery.bases.due:
                before = self.renewals
                with suppress(SandboxError):  # who is given up says so where it is waited for: the others are asked
                    self.recovery.checkpoint()
                if self.renewals != before and op is Op.STEP:
                    self._write_actions(range(self.count))  # they lay in memory that was replaced
        except BaseException:
            self.journal.drop()  # nothing of it was asked
            raise
        self._began = perf_counter()
        self.is_pending = True
        self.channel.post(op, members, payloads, timeout_s=timeout_s)
        if self.recovery.out.reasons:
            self.recovery.out.answer(op, members)

    def _note(self, op: Op, members: Sequence[int] | None, payloads: Sequence[bytes] | None) -> None:
        if op is Op.STEP and payloads is None:
            self.journal.note_step(self.action_bytes)
        elif op in _JOURNALED:
            self.journal.note(op, members, payloads or (), self.action_bytes if op is Op.STEP else None)

    def wait(self) -> None:
        """Wait for what was posted.

        Raises:
            SandboxDied, StepTimeout: For the first that is gone and cannot be brought back; all others have answered.
        """
        try:
            self.channel.wait()
        except PeerLost as lost:
            if self._closed:
                raise ClosedError("closed by another thread while this one waited for an answer") from None
            self._wait_for_the_rest(lost, self._losses)
        if self._losses:
            self._recover()
        while self.recovery.owed and self.recovery.reaches_owed():
            try:
                self._losses = self.recovery.settle()
            except SandboxError:
                self._commit()
                raise
            if self._losses:
                self._recover()
        self.busy_s += perf_counter() - self._began
        self._commit()
        self.recovery.count_step()

    def _wait_for_the_rest(self, lost: PeerLost, losses: dict[int, PeerLost]) -> None:
        """Let everybody else finish, so that no answer of this request is read as one of the next; adds who is lost."""
        losses[lost.group] = lost
        while True:
            self.channel.abandon(lost.group)
            try:
                self.channel.wait()
            except PeerLost as another:
                lost = another
                losses[lost.group] = lost
                continue
            return

    def finish(self) -> None:
        """See to its end what was asked last, where an exception out of a wait came between.

        The environments have done it, or will: it is a part of their past, though nobody was told what came of it.
        """
        self.channel.refuse_others()
        self._began = perf_counter()
        self.channel.deadline = monotonic() + self._current[3]
        with suppress(SandboxError):  # who is given up says so again
            self.wait()

    def exchange(
        self,
        op: Op,
        timeout_s: float,
        members: Sequence[int] | None = None,
        payloads: Sequence[bytes] | None = None,
    ) -> None:
        """Ask environments and wait for all answers; see ``post`` and ``wait``."""
        self.post(op, members, payloads, timeout_s=timeout_s)
        self.wait()

    def set_pace(self, pace: Pace, timeout_s: float) -> None:
        """Have all be scheduled and wait so; a process that is replaced afterwards does not know of it.

        One that is given up over it says so when it is asked next.
        """
        with suppress(SandboxError):
            self.exchange(pace.value, timeout_s)
        self.channel.be_quiet(pace is Pace.STAND_BY)
        self.context.runtime.weigh(modestly=pace is Pace.STAND_BY)

    def answer(self, index: int) -> Answer:
        """Decode what one environment sent beside the fixed fields.

        Call only when its status has one of the flags of ``PAYLOAD``; see ``answers``.
        """
        return self.answers([index]).get(index, Answer({}))

    def answers(self, members: Sequence[int]) -> dict[int, Answer]:
        """Decode what environments sent beside the fixed fields.

        All are read, whatever one of them says: what was left unread would be taken for a part of the next answer. One
        that died between its answer and the rest of it is brought back first, and has then answered again, with all it
        shares a sandbox with; so look at ``status`` and rewards after this.

        Args:
            members: Positions, those of one sandbox together; each with one of the flags of ``PAYLOAD``.

        Returns:
            The answers of these and of whoever had to answer again, as far as they have a payload by now.

        Raises:
            EnvError: An environment raised; the first that did.
            SandboxDied: One broke the protocol, and was ended for that, or cannot be brought back.
        """
        found: dict[int, Answer] = {}
        failure: SandboxError | None = None
        again: set[int] = set()
        unread = list(members)
        try:
            while unread:
                index = unread[0]
                if index not in again:
                    try:
                        found[index] = self._answer(index)
                    except PeerLost as lost:
                        group = self.groups[lost.group]
                        again.update(group)
                        found = {each: answer for each, answer in found.items() if each not in group}
                        try:
                            self._have_answered_again(lost)
                            found |= self.answers([each for each in group if int(self.channel.status[each]) & PAYLOAD])
                        except SandboxError as error:
                            failure = failure or error
                    except SandboxError as error:
                        failure = failure or error
                del unread[0]
        except BaseException:
            self._leave_unread(unread)
            raise
        if failure is not None:
            raise failure
        return found

    def call(self, op: Op, arguments: Any, members: Sequence[int], timeout_s: float) -> list[Any]:
        """Ask each of some environments the same thing and return their values.

        Raises:
            EnvError, SandboxDied, StepTimeout: The first failure; the others have answered.
            TypeError, ValueError: The arguments are not plain data.
        """
        payload = encode_request(op, arguments)
        self.recovery.out.refuse(members)
        self.exchange(op, timeout_s, members, [payload] * len(members))
        answers = self.answers(list(members))
        return [answers[index].value for index in members]

    def given_up(self) -> list[int]:
        """Positions of environments that are gone and will not be brought back before they are begun anew."""
        return [index for index in self.dead() if self.recovery.is_given_up(self.channel.group_of(index))]

    def revive(self) -> list[int]:
        """Start new sandboxes in place of dead ones that were given up; returns the positions of their environments."""
        return self.recovery.start_anew()

    def close(self) -> None:
        """Let the environments close, for a moment, then end the sandboxes. Idempotent."""
        if not self._closed:
            self.recovery.close()
        super().close()

    # -- for the recovery

    def ask(
        self, op: Op, members: Sequence[int], payloads: Sequence[bytes] | None, timeout_s: float
    ) -> dict[int, PeerLost]:
        """Ask without noting it; returns the groups that were lost over it."""
        if not members:
            return {}
        self.channel.post(op, members, payloads, timeout_s=timeout_s)
        try:
            self.channel.wait()
        except PeerLost as lost:
            losses: dict[int, PeerLost] = {}
            self._wait_for_the_rest(lost, losses)
            return losses
        return {}

    def ask_again(self, members: Sequence[int]) -> dict[int, PeerLost]:
        """Ask these environments once more what all were asked last, as far as they were; see ``ask``."""
        op, asked, payloads, timeout_s = self._current
        chosen = [index for index in members if asked is None or index in asked]
        again: list[bytes] | None = None
        if payloads is not None:
            again = [payloads[index if asked is None else list(asked).index(index)] for index in chosen]
        if op is Op.STEP:
            self._write_actions(chosen)
        return self.ask(op, chosen, again, timeout_s)

    @property
    def current(self) -> tuple[Op, Sequence[int] | None]:
        """What was asked last, and of whom (None: of all)."""
        return self._current[:2]

    def value(self, index: int) -> Any:
        """The value one environment answered to ``ask``.

        Raises:
            PeerLost: It is gone.
            SandboxError: It raised, or broke the protocol.
        """
        return self._answer(index).value

    def let_go(self, numbers: Iterable[int]) -> None:
        """End sandboxes that are not where they should be, or sent what nobody read: they are to be brought back."""
        for number in numbers:
            self.sandboxes[number].kill()
            self.channel.interrupt(number)
            self.channel.abandon(number)

    def _commit(self) -> None:
        self._is_noted = self.journal.commit(self.channel.outcomes)
        self.is_pending = False

    def _write_actions(self, members: Sequence[int]) -> None:
        for index in members:
            action = self.journal.action(index)
            if action is not None:
                self.action_bytes[index] = action

    def _recover(self) -> None:
        """Bring back whoever was lost over what was asked last."""
        try:
            self.recovery.recover(self._losses)
        except SandboxError:
            # Everybody else has answered. Who is given up begins anew, without this or any other past.
            self._losses = {}
            self._commit()
            raise
        except BaseException:
            self._losses = {**self._losses, **self.recovery.unfinished}
            raise
        self._losses = {}

    def _have_answered_again(self, lost: PeerLost) -> None:
        self.channel.abandon(lost.group)
        if self._is_noted:
            self.journal.reopen()
            self._is_noted = False
        self.is_pending, self._losses = True, {lost.group: lost}
        self._recover()
        self._commit()

    def _leave_unread(self, members: Sequence[int]) -> None:
        """An exception came while answers were read: what lies in sockets belongs to them."""
        spilled = [index for index in members if int(self.channel.status[index]) & Flag.SPILLED]
        self.let_go(dict.fromkeys(self.channel.group_of(index) for index in spilled))

    def _answer(self, index: int) -> Answer:
        flags = int(self.channel.status[index])
        try:
            value = decode(self.channel.payload(index), max_bytes=self._max_bytes)
            if flags & Flag.ERROR:
                raise self._env_error(index, as_error_texts(value))
            found = read_answer(flags, value, self.observation_layout, partial(self.finals.read, index))
            if found is not None:
                return found
        except ProtocolError as error:
            raise self.reject(index, str(error)) from error
        raise self.reject(index, f"an answer with flags {flags:#x}")
