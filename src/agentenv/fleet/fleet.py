"""Environments with equal spaces, in sandboxes, behind one channel: what the Gymnasium faces are built on.

Turns what a channel and a sandbox report into the errors a caller can act on. It knows nothing of Gymnasium's
conventions for seeds, infos or autoreset; the faces do.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from gymnasium import Space

from agentenv.channel.contract import PeerLost
from agentenv.channel.shm import ShmChannel
from agentenv.config import EnvironmentConfig
from agentenv.errors import (
    AgentEnvError,
    Cause,
    CauseKind,
    EnvError,
    Owner,
    ProtocolError,
    SandboxDied,
    SandboxError,
    StepTimeout,
)
from agentenv.fleet.context import RunContext
from agentenv.sandbox.contract import Sandbox, Usage
from agentenv.wire.batch import BatchView
from agentenv.wire.layout import check_variables, plan
from agentenv.wire.slot import Flag, Op, plan_slot
from agentenv.wire.spaces import first_difference, rebuild
from agentenv.wire.spin import SPIN_US
from agentenv.wire.values import decode, encode

_CLOSE_TIMEOUT_S = 2.0


@dataclass(frozen=True, slots=True)
class Answer:
    """What an environment sent beside the fixed fields.

    Attributes:
        info: The info of the step or reset.
        observation: Variable-size leaves of the observation.
        final_info: Info of the step that ended the episode, when the answer is of the next one; else None.
        final_observation: Variable-size leaves of its observation.
        value: Result of a render or call.
    """

    info: dict[str, Any]
    observation: Sequence[object] = ()
    final_info: dict[str, Any] | None = None
    final_observation: Sequence[object] = ()
    value: Any = None


class Fleet:
    """A fixed number of environments behind one channel.

    Attributes:
        members: Their configurations, in order.
        single_observation_space, single_action_space: Rebuilt on the host from the environments' description.
        channel: The step path.
        observations, finals: Views over all slots' observations and final observations.
        metadata: Of the first environment.
    """

    def __init__(
        self,
        context: RunContext,
        members: Sequence[EnvironmentConfig],
        *,
        autoreset: str = "Disabled",
        envs_per_sandbox: int = 1,
        in_vector: bool = False,
    ) -> None:
        """Start everything; on failure nothing is left.

        Raises:
            EnvError, SandboxDied, StepTimeout: An environment could not be built.
            RuntimeUnavailable: The machine refuses.
            ValueError: Two environments have different spaces.
        """
        self.context = context
        self.members = list(members)
        self._autoreset = autoreset
        self._in_vector = in_vector
        self._closed = False
        size = envs_per_sandbox
        self._groups = [list(range(i, min(i + size, len(members)))) for i in range(0, len(members), size)]
        specs = [context.spec(self._sandbox_id(group), [self.members[i] for i in group]) for group in self._groups]
        self.sandboxes: list[Sandbox] = context.runtime.create(specs, context.output)
        try:
            self._agree_on_spaces()
            self._open_channel()
        except BaseException:
            for sandbox in self.sandboxes:
                sandbox.destroy()
            raise

    @property
    def count(self) -> int:
        """Number of environments."""
        return len(self.members)

    def exchange(
        self,
        op: Op,
        timeout_s: float,
        members: Sequence[int] | None = None,
        payloads: Sequence[bytes] | None = None,
    ) -> None:
        """Ask environments and wait for all answers.

        Raises:
            SandboxDied, StepTimeout: For the first that is gone or late; all others have answered by then.
        """
        self.channel.post(op, members, payloads)
        self.wait(timeout_s)

    def wait(self, timeout_s: float) -> None:
        """Wait for what was posted; see ``exchange``."""
        try:
            self.channel.wait(timeout_s)
        except PeerLost as lost:
            self._wait_for_the_rest(lost, timeout_s)

    def answer(self, index: int) -> Answer:
        """Decode what one environment sent beside the fixed fields; call only when its status has one of the flags of PAYLOAD.

        Raises:
            EnvError: The environment raised.
            SandboxDied: It broke the protocol, and was ended for that.
        """
        flags = int(self.channel.status[index])
        try:
            value = decode(self.channel.payload(index), max_bytes=self._max_bytes)
            if flags & Flag.ERROR:
                raise self._env_error(index, value)
            if flags & Flag.VALUE:
                return Answer({}, value=value)
            if flags & Flag.INFO:
                return Answer(_as_info(value))
            if flags & Flag.RECORD:
                return self._as_record(value, final=bool(flags & Flag.FINAL))
        except ProtocolError as error:
            raise self._broken(index, str(error)) from error
        except PeerLost as lost:
            raise self._lost(lost) from lost
        raise self._broken(index, f"an answer with flags {flags:#x}")

    def call(self, op: Op, arguments: Any, members: Sequence[int], timeout_s: float) -> list[Any]:
        """Ask each of some environments the same thing and return their values.

        Raises:
            EnvError, SandboxDied, StepTimeout: The first failure; the others have answered.
            ValueError: The arguments are not plain data.
        """
        payload = encode(arguments)
        self.exchange(op, timeout_s, members, [payload] * len(members))
        values, failure = [], None
        for index in members:
            try:
                values.append(self.answer(index).value)
            except SandboxError as error:
                failure = failure or error
        if failure is not None:
            raise failure
        return values

    def usage(self) -> list[Usage | None]:
        """What each sandbox uses now, in order of sandboxes."""
        return [sandbox.usage() for sandbox in self.sandboxes]

    def dead(self) -> list[int]:
        """Positions of environments whose sandbox is gone."""
        return [i for g, group in enumerate(self._groups) for i in group if not self.sandboxes[g].alive()]

    def revive(self) -> list[int]:
        """Start new sandboxes in place of dead ones; returns the positions of their environments."""
        revived: list[int] = []
        for number, group in enumerate(self._groups):
            old = self.sandboxes[number]
            if old.alive():
                continue
            self.context.watch.remove(old)
            old.destroy()
            new = self.context.runtime.create([old.spec], self.context.output)[0]
            self.sandboxes[number] = new
            self._check_introduction(number)
            self._attach(number)
            revived.extend(group)
        return revived

    def close(self) -> None:
        """Let the environments close, for a moment, then end the sandboxes. Idempotent."""
        if self._closed:
            return
        self._closed = True
        try:
            alive = [i for g, group in enumerate(self._groups) if self.sandboxes[g].alive() for i in group]
            self.channel.post(Op.CLOSE, alive)
            ends = time.monotonic() + _CLOSE_TIMEOUT_S
            for number, sandbox in enumerate(self.sandboxes):
                if sandbox.pidfd >= 0:
                    _wait_for_end(sandbox.pidfd, ends)
                self.context.watch.remove(self.sandboxes[number])
        except (AgentEnvError, OSError):
            pass
        finally:
            for sandbox in self.sandboxes:
                self.context.watch.remove(sandbox)
                sandbox.destroy()
            self.channel.close()

    # -- building

    def _sandbox_id(self, group: Sequence[int]) -> str:
        first = self.members[group[0]].id
        return first if len(group) == 1 else f"{first[:48]}.and-{len(group) - 1}"

    def _agree_on_spaces(self) -> None:
        first = self.sandboxes[0].introductions[0]
        self.single_observation_space: Space[Any] = rebuild(first.get("observation_space"))
        self.single_action_space: Space[Any] = rebuild(first.get("action_space"))
        metadata = first.get("metadata")
        self.metadata: dict[str, Any] = dict(metadata) if isinstance(metadata, dict) else {}
        self.render_mode: str | None = first.get("render_mode")
        self.spec_id: str | None = first.get("spec_id")
        for number in range(len(self.sandboxes)):
            self._check_introduction(number)

    def _check_introduction(self, number: int) -> None:
        for index, introduction in zip(self._groups[number], self.sandboxes[number].introductions, strict=True):
            for kind, mine in (
                ("observation_space", self.single_observation_space),
                ("action_space", self.single_action_space),
            ):
                theirs = rebuild(introduction.get(kind))
                if theirs != mine:
                    raise ValueError(
                        f"environments {self.members[0].id!r} and {self.members[index].id!r} cannot be stepped"
                        f" together: their {kind}s differ ({first_difference(mine, theirs)}); give them a vector"
                        " environment each"
                    )

    def _open_channel(self) -> None:
        observations, actions = plan(self.single_observation_space), plan(self.single_action_space)
        self._observation_layout = observations
        self._max_bytes = max(member.max_message_mb for member in self.members) << 20
        self.slot = plan_slot(
            actions.nbytes,
            observations.nbytes,
            final=self._autoreset == "SameStep",
            variable=observations.variable or actions.variable,
        )
        self._spin_us = SPIN_US if self.context.spare_cores else 0
        self.channel = ShmChannel(
            [len(group) for group in self._groups], self.slot, max_bytes=self._max_bytes, spin_us=self._spin_us
        )
        try:
            for number in range(len(self._groups)):
                self._attach(number)
        except BaseException:
            self.channel.close()
            raise
        column = self.channel.arena.column
        self.observations = BatchView(observations, column(self.slot.observation, np.uint8, (observations.nbytes,)))
        self.finals = BatchView(observations, column(self.slot.final, np.uint8, (observations.nbytes,)))
        self.action_bytes = column(self.slot.action, np.uint8, (actions.nbytes,))

    def _attach(self, number: int) -> None:
        sandbox = self.sandboxes[number]
        memory, wake, done = self.channel.attach(number, sandbox.control)
        try:
            message = {
                "layout": self.slot.to_json(),
                "autoreset": self._autoreset,
                "max_bytes": self._max_bytes,
                "spin_us": self._spin_us,
            }
            sandbox.attach(message, [memory, wake, done])
        finally:
            os.close(memory)
        self.channel.attached(number)
        self.context.watch.add(sandbox, self.channel, number)

    # -- failures

    def _wait_for_the_rest(self, lost: PeerLost, timeout_s: float) -> None:
        """Let everybody else finish, so that no answer of this request is read as one of the next."""
        first = lost
        while True:
            self.channel.abandon(lost.group)
            try:
                self.channel.wait(timeout_s)
            except PeerLost as another:
                lost = another
                continue
            break
        raise self._lost(first) from first

    def _lost(self, lost: PeerLost) -> SandboxError:
        sandbox = self.sandboxes[lost.group]
        sandbox.kill()
        cause = sandbox.cause()
        index = self._groups[lost.group][0]
        kind: type[SandboxError] = StepTimeout if cause.kind is CauseKind.TIMEOUT else SandboxDied
        return kind(
            cause.detail,
            env_id=self.members[index].id,
            cause=cause,
            output=self.context.output.tail(sandbox.spec.id),
            index=index if self._in_vector else None,
        )

    def _broken(self, index: int, what: str) -> SandboxDied:
        number = self.channel.group_of(index)
        cause = Cause(CauseKind.PROTOCOL, Owner.ENVIRONMENT, f"broke the protocol: {what}")
        self.sandboxes[number].kill(cause)
        self.channel.interrupt(number)
        self.channel.abandon(number)
        return SandboxDied(
            cause.detail,
            env_id=self.members[index].id,
            cause=cause,
            output=self.context.output.tail(self.sandboxes[number].spec.id),
            index=index if self._in_vector else None,
        )

    def _env_error(self, index: int, value: Any) -> EnvError:
        if not (isinstance(value, list) and len(value) == 3 and all(isinstance(part, str) for part in value)):
            raise ProtocolError("an error report that is not three texts")
        name, message, trace = value
        sandbox_id = self.sandboxes[self.channel.group_of(index)].spec.id
        self.context.output.drain(sandbox_id)
        return EnvError(
            env_id=self.members[index].id,
            cause=Cause(CauseKind.EXCEPTION, Owner.ENVIRONMENT, f"its code raised {name}"),
            type_name=name,
            message=message,
            traceback_text=trace,
            output=self.context.output.tail(sandbox_id),
            index=index if self._in_vector else None,
        )

    def _as_record(self, value: Any, *, final: bool) -> Answer:
        if not (isinstance(value, list) and len(value) == 4):
            raise ProtocolError("a record that is not four parts")
        info, variable, final_info, final_variable = value
        layout = self._observation_layout
        check_variables(layout, variable)
        if final:
            check_variables(layout, final_variable)
            return Answer(_as_info(info), variable, _as_info(final_info), final_variable)
        return Answer(_as_info(info), variable)


def _as_info(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict) or not all(isinstance(key, str) for key in value):
        raise ProtocolError(f"an info that is not a dict with text keys but {type(value).__name__}")
    return value


def _wait_for_end(pidfd: int, ends: float) -> None:
    import select

    poller = select.poll()
    poller.register(pidfd, select.POLLIN)
    poller.poll(max(0, int((ends - time.monotonic()) * 1000)))
