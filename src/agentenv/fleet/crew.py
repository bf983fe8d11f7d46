"""Environments with equal spaces, in sandboxes, behind one channel: how they come to be, and how they end.

Turns what a sandbox and a channel report into the errors a caller can act on. It asks the environments nothing and
decides nothing; see ``agentenv.fleet.fleet``.
"""

from __future__ import annotations

import itertools
import os
import select
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
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
from agentenv.fleet.finals import Finals
from agentenv.fleet.introduction import Introduction, read_introduction
from agentenv.fleet.reported import cleaned, reported
from agentenv.fleet.starting import start_all, start_another
from agentenv.sandbox.contract import Copying, ParkedCopy, Sandbox, Usage
from agentenv.sandbox.workbench import Kept
from agentenv.wire.batch import BatchView
from agentenv.wire.layout import Writer, plan
from agentenv.wire.slot import Op, plan_slot
from agentenv.wire.spin import SPIN_US

_CLOSE_TIMEOUT_S = 2.0
_DYING_S = 1.0

_anew = itertools.count(1)


class Crew:
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
        reseed: int | None = None,
    ) -> None:
        """Start everything; on failure nothing is left.

        Args:
            context: What the run shares.
            members: The environments.
            autoreset: Name of the autoreset mode, done beside the environment.
            envs_per_sandbox: How many share a sandbox.
            in_vector: Whether errors name the position.
            sandboxes: Sandboxes made from the same members beforehand, which are owned from here on; None makes them.
            reseed: Seed of new random streams, where the sandboxes are forks of others.

        Raises:
            EnvError, SandboxDied, StepTimeout: An environment could not be built.
            RuntimeUnavailable: The machine refuses.
            ValueError: Two environments have different spaces.
        """
        self.context = context
        self.members = list(members)
        self.autoreset = autoreset
        self._in_vector = in_vector
        self._closed = False
        size = envs_per_sandbox
        self.groups = [list(range(i, min(i + size, len(members)))) for i in range(0, len(members), size)]
        self.sandboxes: list[Sandbox]
        if sandboxes is None:
            specs = [context.spec(self._sandbox_id(group), [self.members[i] for i in group]) for group in self.groups]
            self.sandboxes = start_all(context.runtime, specs, context.output)
        else:
            self.sandboxes = list(sandboxes)
        try:
            self._agree_on_spaces()
            self._open_channel(reseed, is_new=sandboxes is None)
        except BaseException:
            for sandbox in self.sandboxes:
                context.watch.remove(sandbox)
                sandbox.destroy()
            raise

    @property
    def count(self) -> int:
        """Number of environments."""
        return len(self.members)

    def usage(self) -> list[Usage | None]:
        """What each sandbox uses now, in order of sandboxes."""
        return [sandbox.usage() for sandbox in self.sandboxes]

    def dead(self) -> list[int]:
        """Positions of environments whose sandbox is gone."""
        return [i for g, group in enumerate(self.groups) for i in group if not self.sandboxes[g].alive()]

    def replace(self, numbers: Sequence[int], origin: Kept | None = None) -> dict[int, SandboxError]:
        """Start new sandboxes in place of these, all at once.

        Args:
            numbers: Which.
            origin: What they are brought back from, with their environments; None builds those anew.

        Returns:
            For each that could not be started, why.

        Raises:
            RuntimeUnavailable: The machinery refuses.
        """
        specs = []
        for number in numbers:
            old = self.sandboxes[number]
            self._discard(number)
            # Forks may live on in the old one, which then keeps its name.
            new_id = f"{old.spec.id[:40]}.anew{next(_anew)}"
            directory = None if origin is None else origin.directory
            specs.append(replace(old.spec, id=old.spec.id if old.destroyed else new_id, origin=directory))
        failures: dict[str, SandboxError] = {}
        made = {s.spec.id: s for s in self.context.runtime.create(specs, self.context.output, failures)}
        failed: dict[int, SandboxError] = {}
        try:
            for number, spec in zip(numbers, specs, strict=True):
                error = failures.get(spec.id)
                if error is None:
                    self.sandboxes[number] = made[spec.id]
                    error = self._take_in(number)
                if error is not None:
                    failed[number] = cleaned(error)
        except BaseException:
            # Alive but not attached, they would count as well and be stepped over in silence.
            for number, spec in zip(numbers, specs, strict=True):
                self.sandboxes[number] = made.get(spec.id, self.sandboxes[number])
                self._discard(number)
            raise
        return failed

    def resume_from(self, number: int, parked: ParkedCopy | Kept, reseed: int | None = None) -> None:
        """Have a parked copy copied in place of the process of a sandbox that lives on, or a kept one brought back.

        Args:
            number: Of the sandbox.
            parked: What was kept. New random streams are not given to what was kept whole.
            reseed: Seed of new random streams; None goes on with the copy's.

        Raises:
            RuntimeUnavailable, SandboxError, OSError: The copy is gone.
        """
        if isinstance(parked, Kept):
            if number in (failed := self.replace([number], parked)):
                raise failed[number]
            return
        sandbox, copying = self.sandboxes[number], self.copying(number)
        self.context.watch.remove(sandbox)
        self.channel.abandon(number)  # until it serves from the copy: nobody watches over it
        copying.renew_control()
        self._join(number, lambda fds: copying.serve_from(parked, self.attach_message(reseed), fds))

    def copying(self, number: int) -> Copying:
        """What the process of a sandbox is copied by, where there are copies of it already."""
        copying = self.sandboxes[number].copying
        assert copying is not None  # or there were no copies
        return copying

    def put_observation(self, index: int, observation: Any) -> list[object]:
        """Put an observation of the host's own into a slot; returns its variable-size leaves."""
        first = index * self.slot.size + self.slot.observation
        area = self.channel.arena.bytes[first : first + self.observation_layout.nbytes]
        return Writer(self.observation_layout, area).write(observation)

    def attach_message(self, reseed: int | None = None) -> Mapping[str, Any]:
        """What the other side must know to serve."""
        return {
            "layout": self.slot.to_json(),
            "autoreset": self.autoreset,
            "batched": self._in_vector,
            "max_bytes": self._max_bytes,
            "spin_us": self._spin_us,
            "reseed": reseed,
        }

    def close(self) -> None:
        """Let the environments close, for a moment, then end the sandboxes. Idempotent."""
        if self._closed:
            return
        self._closed = True
        try:
            alive = [i for g, group in enumerate(self.groups) if self.sandboxes[g].alive() for i in group]
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
            if len(self.members) > 1 and (found := self._other_space(number)):
                index, kind, how = found
                raise ValueError(
                    f"environments {self.members[0].id!r} and {self.members[index].id!r} cannot be stepped"
                    f" together: their {kind}s differ ({how}); give them a vector environment each"
                )

    def _other_space(self, number: int) -> tuple[int, str, str] | None:
        """The first environment of a sandbox with another space than the crew's, which space, and how it differs."""
        for position, index in enumerate(self.groups[number]):
            if found := self._introduction(number, position).other_space(self.introduction):
                return index, *found
        return None

    def _introduction(self, number: int, position: int) -> Introduction:
        """What one environment of a sandbox said of itself, once it has been judged."""
        index = self.groups[number][position]
        try:
            return read_introduction(
                self.sandboxes[number].introductions[position], max_bytes=self.members[index].memory_mb << 20
            )
        except ProtocolError as error:
            cause = Cause(CauseKind.PROTOCOL, Owner.ENVIRONMENT, f"described itself wrongly: {error}")
            raise self._ended(index, cause) from error

    def _open_channel(self, reseed: int | None, is_new: bool) -> None:
        observations, actions = plan(self.single_observation_space), plan(self.single_action_space)
        self.observation_layout = observations
        self._max_bytes = max(member.max_message_mb for member in self.members) << 20
        self.slot = plan_slot(
            actions.nbytes,
            observations.nbytes,
            final=self.autoreset == "SameStep",
            variable=observations.variable or actions.variable,
        )
        self._spin_us = SPIN_US if self.context.spare_cores else 0
        self.channel = ShmChannel(
            [len(group) for group in self.groups], self.slot, max_bytes=self._max_bytes, spin_us=self._spin_us
        )
        try:
            for number in range(len(self.groups)):
                try:
                    self._attach(number, reseed)
                except SandboxError as error:
                    if not is_new:
                        raise
                    start_another(error, number, self.replace)
        except BaseException:
            self.channel.close()
            raise
        column = self.channel.arena.column
        self.observation_bytes = column(self.slot.observation, np.uint8, (observations.nbytes,))
        self.observations = BatchView(observations, self.observation_bytes)
        self.final_bytes = column(self.slot.final, np.uint8, (observations.nbytes,))
        self.finals = Finals(observations, self.final_bytes, max_bytes=self._max_bytes)
        self.action_bytes = column(self.slot.action, np.uint8, (actions.nbytes,))

    def _attach(self, number: int, reseed: int | None = None) -> None:
        self._join(number, lambda fds: self.sandboxes[number].attach(self.attach_message(reseed), fds))

    def _take_in(self, number: int) -> SandboxError | None:
        """Have a sandbox that was built again serve; where that fails it is gone, and the error says why."""
        index = self.groups[number][0]
        try:
            if found := self._other_space(number):
                index, kind, how = found
                detail = f"was built again with another {kind} than before ({how})"
                raise self._ended(index, Cause(CauseKind.PROTOCOL, Owner.ENVIRONMENT, detail))
            self._attach(number)
        except SandboxError as error:
            failed = error
        except OSError as error:
            detail = f"could not be given its shared memory: {error.strerror or error}"
            failed = self._ended(index, Cause(CauseKind.START_FAILED, Owner.RESOURCES, detail))
        else:
            return None
        self._discard(number)
        return failed

    def _join(self, number: int, serve: Callable[[Sequence[int]], None]) -> None:
        """Give a sandbox shared memory and bells, and watch it; where that fails, nothing is expected of it."""
        sandbox = self.sandboxes[number]
        try:
            memory, wake, done = self.channel.attach(number, sandbox.control)
            try:
                serve([memory, wake, done])
            finally:
                os.close(memory)
            self.channel.attached(number)
            self.context.watch.add(sandbox, self.channel, number)
        except BaseException:
            self.context.watch.remove(sandbox)
            self.channel.abandon(number)
            raise

    def _discard(self, number: int) -> None:
        """End a sandbox; whoever waits for it is told at once."""
        try:
            self.context.watch.remove(self.sandboxes[number])
            self.sandboxes[number].destroy()
        finally:
            self.channel.abandon(number)

    # -- failures

    def why(self, lost: PeerLost, *, spare: bool = False) -> SandboxError:
        """Make sure that a lost group is gone, and say why it went.

        Args:
            lost: What the channel reported.
            spare: Leave the sandbox alone where only the environment's process is gone.
        """
        sandbox = self.sandboxes[lost.group]
        if not (lost.timed_out or lost.broken):
            # Its descriptors close a moment before its end can be seen. What then still lives has let go by itself.
            sandbox.await_end(_DYING_S)
        if not spare or sandbox.alive():
            what = lost.broken or "stopped serving and lives on"
            sandbox.kill(Cause(CauseKind.PROTOCOL, Owner.ENVIRONMENT, f"broke the protocol: it {what}"))
        self.channel.abandon(lost.group)
        return self._died(self.groups[lost.group][0], sandbox.cause())

    def reject(self, index: int, what: str) -> SandboxError:
        """End an environment whose answer cannot be used; returns the error to raise."""
        number = self.channel.group_of(index)
        error = self._ended(index, Cause(CauseKind.PROTOCOL, Owner.ENVIRONMENT, f"broke the protocol: {what}"))
        self.channel.interrupt(number)
        self.channel.abandon(number)
        return error

    def _ended(self, index: int, cause: Cause) -> SandboxError:
        """End the sandbox of an environment, and say why."""
        self._sandbox_of(index).kill(cause)
        return self._died(index, cause)

    def _died(self, index: int, cause: Cause) -> SandboxError:
        kind: type[SandboxError] = StepTimeout if cause.kind in (CauseKind.TIMEOUT, CauseKind.FROZEN) else SandboxDied
        return kind(
            cause.detail,
            env_id=self.members[index].id,
            cause=cause,
            output=self.context.output.tail(self._sandbox_of(index).spec.id),
            index=index if self._in_vector else None,
        )

    def _sandbox_of(self, index: int) -> Sandbox:
        return next(self.sandboxes[number] for number, group in enumerate(self.groups) if index in group)

    def _env_error(self, index: int, texts: tuple[str, str, str]) -> EnvError:
        place = index if self._in_vector else None
        return reported(texts, self.members[index].id, self._sandbox_of(index), self.context.output, place)


def _wait_for_end(pidfd: int, ends: float) -> None:
    poller = select.poll()
    poller.register(pidfd, select.POLLIN)
    poller.poll(max(0, int((ends - time.monotonic()) * 1000)))
