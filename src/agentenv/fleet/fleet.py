"""Environments with equal spaces, in sandboxes, behind one channel: what the Gymnasium faces are built on.

Turns what a channel and a sandbox report into the errors a caller can act on. It knows nothing of Gymnasium's
conventions for seeds, infos or autoreset; the faces do.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from functools import partial
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
    ClosedError,
    EnvError,
    Owner,
    ProtocolError,
    SandboxDied,
    SandboxError,
    StepTimeout,
)
from agentenv.fleet.answers import Answer, as_error_texts, read_answer
from agentenv.fleet.context import RunContext
from agentenv.fleet.finals import Finals
from agentenv.fleet.introduction import Introduction, read_introduction
from agentenv.fleet.reported import readable
from agentenv.sandbox.contract import Sandbox, SandboxSpec, Usage
from agentenv.wire.batch import BatchView
from agentenv.wire.layout import plan
from agentenv.wire.slot import Flag, Op, plan_slot
from agentenv.wire.spaces import first_difference
from agentenv.wire.spin import SPIN_US
from agentenv.wire.values import decode, encode

_CLOSE_TIMEOUT_S = 2.0
_DYING_S = 1.0


class Fleet:
    """A fixed number of environments behind one channel.

    Attributes:
        members: Their configurations, in order.
        single_observation_space, single_action_space: Rebuilt on the host from the environments' description.
        channel: The step path.
        observations: View over all slots' observations.
        finals: Final observations and infos of all slots.
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
        sandboxes: Sequence[Sandbox] | None = None,
    ) -> None:
        """Start everything; on failure nothing is left.

        Args:
            context: What the run shares.
            members: The environments.
            autoreset: Name of the autoreset mode, done beside the environment.
            envs_per_sandbox: How many share a sandbox.
            in_vector: Whether errors name the position.
            sandboxes: Sandboxes made from the same members beforehand, which are owned from here on; None makes them.

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
        self.sandboxes: list[Sandbox] = self._create(specs) if sandboxes is None else list(sandboxes)
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
        self.channel.post(op, members, payloads, timeout_s=timeout_s)
        self.wait()

    def wait(self) -> None:
        """Wait for what was posted; see ``exchange``."""
        try:
            self.channel.wait()
        except PeerLost as lost:
            if self._closed:
                raise ClosedError("closed by another thread while this one waited for an answer") from None
            self._wait_for_the_rest(lost)

    def answer(self, index: int) -> Answer:
        """Decode what one environment sent beside the fixed fields.

        Call only when its status has one of the flags of ``PAYLOAD``.

        Raises:
            EnvError: The environment raised.
            SandboxDied: It broke the protocol, and was ended for that.
        """
        flags = int(self.channel.status[index])
        try:
            value = decode(self.channel.payload(index), max_bytes=self._max_bytes)
            if flags & Flag.ERROR:
                raise self._env_error(index, as_error_texts(value))
            found = read_answer(flags, value, self._observation_layout, partial(self.finals.read, index))
            if found is not None:
                return found
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
            self.sandboxes[number] = self._create([old.spec])[0]
            try:
                self._check_introduction(number)
                self._attach(number)
            except BaseException:
                # Alive but not attached, it would count as well and be stepped over in silence.
                self.context.watch.remove(self.sandboxes[number])
                self.sandboxes[number].destroy()
                raise
            revived.extend(group)
        return revived

    def close(self) -> None:
        """Let the environments close, for a moment, then end the sandboxes. Idempotent."""
        if self._closed:
            return
        self._closed = True
        try:
            alive = [i for g, group in enumerate(self._groups) if self.sandboxes[g].alive() for i in group]
            self.channel.post(Op.CLOSE, alive, timeout_s=_CLOSE_TIMEOUT_S)
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
        first = self._introduction(0, 0)
        self.single_observation_space: Space[Any] = first.observation_space
        self.single_action_space: Space[Any] = first.action_space
        self.introduction = first
        self.metadata, self.render_mode = first.metadata, first.render_mode
        for number in range(len(self.sandboxes)):
            self._check_introduction(number)

    def _check_introduction(self, number: int) -> None:
        for position, index in enumerate(self._groups[number]):
            introduction = self._introduction(number, position)
            for kind, mine, theirs in (
                ("observation_space", self.single_observation_space, introduction.observation_space),
                ("action_space", self.single_action_space, introduction.action_space),
            ):
                if theirs != mine:
                    raise ValueError(
                        f"environments {self.members[0].id!r} and {self.members[index].id!r} cannot be stepped"
                        f" together: their {kind}s differ ({first_difference(mine, theirs)}); give them a vector"
                        " environment each"
                    )

    def _introduction(self, number: int, position: int) -> Introduction:
        """What one environment of a sandbox said of itself, once it has been judged."""
        index = self._groups[number][position]
        try:
            return read_introduction(
                self.sandboxes[number].introductions[position], max_bytes=self.members[index].memory_mb << 20
            )
        except ProtocolError as error:
            cause = Cause(CauseKind.PROTOCOL, Owner.ENVIRONMENT, f"described itself wrongly: {error}")
            self.sandboxes[number].kill(cause)
            raise self._died(index, cause) from error

    def _create(self, specs: Sequence[SandboxSpec]) -> list[Sandbox]:
        try:
            return self.context.runtime.create(specs, self.context.output)
        except EnvError as error:
            raise readable(error) from None

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
        finals = column(self.slot.final, np.uint8, (observations.nbytes,))
        self.finals = Finals(observations, finals, max_bytes=self._max_bytes)
        self.action_bytes = column(self.slot.action, np.uint8, (actions.nbytes,))

    def _attach(self, number: int) -> None:
        sandbox = self.sandboxes[number]
        memory, wake, done = self.channel.attach(number, sandbox.control)
        try:
            message = {
                "layout": self.slot.to_json(),
                "autoreset": self._autoreset,
                "batched": self._in_vector,
                "max_bytes": self._max_bytes,
                "spin_us": self._spin_us,
            }
            sandbox.attach(message, [memory, wake, done])
        finally:
            os.close(memory)
        self.channel.attached(number)
        self.context.watch.add(sandbox, self.channel, number)

    # -- failures

    def _wait_for_the_rest(self, lost: PeerLost) -> None:
        """Let everybody else finish, so that no answer of this request is read as one of the next."""
        first = lost
        while True:
            self.channel.abandon(lost.group)
            try:
                self.channel.wait()
            except PeerLost as another:
                lost = another
                continue
            break
        raise self._lost(first) from first

    def _lost(self, lost: PeerLost) -> SandboxError:
        sandbox = self.sandboxes[lost.group]
        if not (lost.timed_out or lost.broken):
            # Its descriptors close a moment before its end can be seen. What then still lives has let go by itself.
            _wait_for_end(sandbox.pidfd, time.monotonic() + _DYING_S)
        sandbox.kill(
            Cause(
                CauseKind.PROTOCOL,
                Owner.ENVIRONMENT,
                f"broke the protocol: it {lost.broken or 'stopped serving and lives on'}",
            )
        )
        self.channel.abandon(lost.group)
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
        return self._died(index, cause)

    def _died(self, index: int, cause: Cause) -> SandboxDied:
        sandbox = next(self.sandboxes[number] for number, group in enumerate(self._groups) if index in group)
        return SandboxDied(
            cause.detail,
            env_id=self.members[index].id,
            cause=cause,
            output=self.context.output.tail(sandbox.spec.id),
            index=index if self._in_vector else None,
        )

    def _env_error(self, index: int, texts: tuple[str, str, str]) -> EnvError:
        name, message, trace = texts
        sandbox_id = self.sandboxes[self.channel.group_of(index)].spec.id
        self.context.output.drain(sandbox_id)
        return readable(
            EnvError(
                env_id=self.members[index].id,
                cause=Cause(CauseKind.EXCEPTION, Owner.ENVIRONMENT, f"its code raised {name}"),
                type_name=name,
                message=message,
                traceback_text=trace,
                output=self.context.output.tail(sandbox_id),
                index=index if self._in_vector else None,
            )
        )


def _wait_for_end(pidfd: int, ends: float) -> None:
    import select

    poller = select.poll()
    poller.register(pidfd, select.POLLIN)
    poller.poll(max(0, int((ends - time.monotonic()) * 1000)))
