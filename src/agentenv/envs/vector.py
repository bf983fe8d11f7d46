"""Many isolated environments as one ordinary ``gymnasium.vector.VectorEnv``."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from time import perf_counter
from typing import Any

import numpy as np
from gymnasium.error import ResetNeeded
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray

from agentenv.config import Config, EnvironmentConfig, config_from_keywords
from agentenv.envs.env import FORKED, plain
from agentenv.envs.infos import gather
from agentenv.envs.lifetime import Lifetime
from agentenv.envs.resets import first_seeds, split_mask, spread_seed
from agentenv.envs.snapshots import Snapshot, Spawns
from agentenv.envs.source import Source, env_name, refuse_commands, split_source
from agentenv.envs.together import check_index, put_all, take_all, take_one
from agentenv.errors import ClosedError, SandboxError, counted
from agentenv.fleet.answers import Answer
from agentenv.fleet.context import RunContext
from agentenv.fleet.fleet import Fleet
from agentenv.fleet.pacing import LEAST_GROUPS, Pacing
from agentenv.sandbox.contract import Sandbox
from agentenv.wire.batch import ActionBatch, ActionCheck
from agentenv.wire.layout import plan
from agentenv.wire.sending import encode_request
from agentenv.wire.slot import PAYLOAD, Flag, Op
from agentenv.wire.values import encode

_RESERVED = ("reset", "step", "close", "render")


class AgentVectorEnv(Lifetime, VectorEnv[Any, Any, NDArray[Any]]):
    """Environments in sandboxes of their own, stepped together through shared memory.

    Example:
        >>> vec = AgentVectorEnv.from_env("CartPole-v1", num_envs=8)
        >>> observations, infos = vec.reset(seed=1)
        >>> observations, rewards, terminated, truncated, infos = vec.step(vec.action_space.sample())
        >>> vec.close()

    Returns exactly what ``gymnasium.vector.SyncVectorEnv`` returns over the same environments, for actions of the
    action space's dtype (others are converted): observations batched as ``batch_space`` says, rewards float64 (n,),
    terminated and truncated bool (n,), infos as a dict of arrays with masks.

    A failure of one environment is raised with its ``index`` after all others have answered. One that died is
    started again by the next ``reset``; until then ``step`` raises.
    """

    closed = True  # until everything has started: what was never opened needs no closing

    def __init__(
        self,
        source: Source,
        *,
        autoreset_mode: str | AutoresetMode = AutoresetMode.NEXT_STEP,
        copy: bool = True,
        envs_per_sandbox: int | None = None,
    ) -> None:
        """Start all sandboxes and build the environments in them.

        Args:
            source: As for ``AgentENV``; every environment of it is part of the vector.
            autoreset_mode: When a finished environment is reset.
            copy: Return observations of their own; False returns views of shared memory, which the next step
                overwrites.
            envs_per_sandbox: Environments that share one sandbox (and its fate); default from the configuration.

        Raises:
            ConfigError, RuntimeUnavailable, EnvError: As for ``AgentENV``.
            ValueError: Two environments have different spaces.
        """
        config, env_id = split_source(source, None)
        members = list(config.expand())
        if env_id is not None:
            members = [member for member in members if member.id == env_id]
        refuse_commands(config, members)
        self.autoreset_mode = AutoresetMode(autoreset_mode)
        self.copy = copy
        self.closed = True
        self._why_closed = "closed"
        self._members = members
        self._failed: dict[int, SandboxError] = {}
        self._context = self._make_context(config, members)
        try:
            self._fleet = Fleet(
                self._context,
                members,
                autoreset=self.autoreset_mode.value,
                envs_per_sandbox=envs_per_sandbox or config.global_.envs_per_sandbox,
                in_vector=True,
            )
            self.closed = False
            self._context.on_fork(self._disown)
        except BaseException:
            self._context.close()
            raise
        fleet = self._fleet
        self.num_envs = len(members)
        self.single_observation_space = fleet.single_observation_space
        self.single_action_space = fleet.single_action_space
        self.observation_space = batch_space(self.single_observation_space, self.num_envs)
        self.action_space = batch_space(self.single_action_space, self.num_envs)
        self.metadata = {**fleet.metadata, "autoreset_mode": self.autoreset_mode}
        self.render_mode = fleet.render_mode
        actions = plan(self.single_action_space)
        modes = {member.invalid_action for member in members}
        self._check_actions = ActionCheck(self.single_action_space, "error" if "error" in modes else "clip").apply
        self._write_actions = ActionBatch(self.single_action_space, actions, fleet.action_bytes).write
        self._variable = plan(self.single_observation_space).variable
        self._step_timeout_s = max(member.step_timeout_s for member in members)
        self._reset_timeout_s = max(member.reset_timeout_s for member in members)
        self._ended: NDArray[np.bool_] = np.zeros(self.num_envs, np.bool_)
        self._any_ended = False
        many = len(fleet.sandboxes) >= LEAST_GROUPS and hasattr(os, "SCHED_BATCH")
        self._pacing = Pacing() if many else None
        self._pace_due, self._stepped = False, perf_counter()
        self._calm = bytes(8 * self.num_envs)
        self._variables: list[Sequence[object]] = [()] * self.num_envs
        self._first_seeds, action_seed = first_seeds(members, config.global_.seed, self._context.seeds)
        if action_seed is not None:
            self.action_space.seed(action_seed)
        self._renewals = 0
        self._spawns = Spawns(self._context.seeds)

    def _make_context(self, config: Config, members: Sequence[EnvironmentConfig]) -> RunContext:
        return RunContext(config, members, record=False)

    @classmethod
    def from_env(
        cls,
        env: str | Callable[..., Any],
        num_envs: int = 1,
        *,
        autoreset_mode: str | AutoresetMode = AutoresetMode.NEXT_STEP,
        copy: bool = True,
        **keywords: Any,
    ) -> AgentVectorEnv:
        """``num_envs`` copies of an environment, without a file; keywords as for ``AgentENV.from_env``."""
        config = config_from_keywords(env_name(env), count=num_envs, **keywords)
        return cls(config, autoreset_mode=autoreset_mode, copy=copy)

    def reset(
        self,
        *,
        seed: int | Sequence[int | None] | None = None,
        options: dict[str, Any] | None = None,
    ) -> tuple[Any, dict[str, Any]]:
        """Start an episode in every environment, or in those of a mask; see ``gymnasium.vector.VectorEnv.reset``.

        Args:
            seed: One int (environment i gets ``seed + i``) or one for each; without, the first reset uses the
                configuration's, where it has any.
            options: Passed to every environment; ``reset_mask`` (bool array, shape (n,)) selects which are reset.
        """
        fleet = self._opened()
        seeds = self._first_seeds if seed is None else spread_seed(seed, self.num_envs)
        chosen, options = split_mask(options, self.num_envs)
        if fleet.dead():
            revived = fleet.revive()
            outside = [index for index in revived if chosen is not None and index not in chosen]
            chosen = None if chosen is None else sorted({*chosen, *outside})
        members = list(range(self.num_envs)) if chosen is None else chosen
        payloads = [encode_request(Op.RESET, [seeds[index], options]) for index in members]
        self._first_seeds = [None] * self.num_envs
        self._ended[members] = False
        self._any_ended = bool(self._ended.any())
        self._exchange(Op.RESET, self._reset_timeout_s, None if chosen is None else members, payloads)
        for index in members:
            self._failed.pop(index, None)
        status = fleet.channel.status.copy()
        answers = self._answers([index for index in members if int(status[index]) & PAYLOAD])
        infos = gather([(index, answer.info) for index, answer in answers.items()], self.num_envs, self._add_info, {})
        return self._observe(), infos

    def step(
        self, actions: Any
    ) -> tuple[Any, NDArray[np.float64], NDArray[np.bool_], NDArray[np.bool_], dict[str, Any]]:
        """Take one action in every environment; see ``gymnasium.vector.VectorEnv.step``.

        Raises:
            InvalidAction: The batch does not fit; nothing was sent.
            ResetNeeded: Autoreset is disabled and an environment's episode is over.
        """
        if self._failed or self.closed:
            self._refuse()
        if self._any_ended and self.autoreset_mode is AutoresetMode.DISABLED:
            raise ResetNeeded(
                f"environments {np.flatnonzero(self._ended).tolist()} have ended their episodes and autoreset is"
                ' disabled: call reset(options={"reset_mask": mask}) first'
            )
        fleet = self._fleet
        actions = self._check_actions(actions)
        if fleet.is_pending:
            fleet.finish()
        channel, pacing = fleet.channel, self._pacing
        try:
            if pacing is not None and (self._pace_due or fleet.renewals != self._renewals):
                self._renewals = fleet.renewals  # new processes do not know the pace
                fleet.set_pace(pacing.pace, self._step_timeout_s)
            # After whatever else is asked: a process that dies over that is replaced, and its memory with it.
            variable = self._write_actions(actions)
            payloads = None if variable is None else [encode(values) for values in variable]
            fleet.post(Op.STEP, None, payloads, timeout_s=self._step_timeout_s)
            fleet.wait()
            if pacing is not None:
                before, self._stepped = self._stepped, perf_counter()
                self._pace_due = pacing.record(self._stepped - before)
        except SandboxError as error:
            self._remember(error)
            raise
        status = channel.status.copy()
        if status.tobytes() == self._calm:
            if self._any_ended:
                self._any_ended = False
                self._ended = np.zeros(self.num_envs, np.bool_)
            none = np.zeros((2, self.num_envs), np.bool_)
            return self._observe(), channel.rewards.copy(), none[0], none[1], {}
        infos = self._collect(np.flatnonzero(status & PAYLOAD).tolist())
        status = channel.status.copy()  # whoever died before all of its answer was read has answered again
        terminated, truncated = (status & int(Flag.TERMINATED)) != 0, (status & int(Flag.TRUNCATED)) != 0
        self._ended = terminated | truncated
        self._any_ended = bool(self._ended.any())
        return self._observe(), channel.rewards.copy(), terminated, truncated, infos

    def snapshot(self, mask: NDArray[np.bool_] | None = None) -> list[Snapshot | None]:
        """Keep this moment of each environment, or of those of a mask of shape (n,); None for the others.

        Raises:
            SnapshotError: One cannot be kept; says which and why.
        """
        return take_all(self._opened(), mask, self._ended, self._variables, self._context.config)

    def restore(
        self,
        snapshots: Sequence[Snapshot | None],
        mask: NDArray[np.bool_] | None = None,
        *,
        reseed: int | str | None = None,
    ) -> Any:
        """Bring each environment, or those of a mask, to the snapshot at its position.

        Args:
            snapshots: One for each environment; None leaves one as it is.
            mask: bool, shape (n,): which of them to use.
            reseed: None goes on with the snapshots' random streams; an int or "spawn" gives each environment its own,
                "spawn" others at every call.

        Returns:
            The batched observation: the snapshots' where they were used.

        Raises:
            SnapshotError: One cannot be gone back to; says which and why. Those that got there stay there.
        """
        fleet = self._opened()
        try:
            put_all(fleet, snapshots, mask, reseed, self._spawns, self._ended, self._variables, self._failed)
        finally:
            self._any_ended = bool(self._ended.any())
        return self._observe()

    def broadcast(self, index: int, *, reseed: int | str | None = None) -> Any:
        """Have all environments go on from where environment ``index`` is: a group of rollouts from one state.

        Those that are quarantined are left out.

        Args:
            index: Whose moment.
            reseed: As for ``restore``.

        Returns:
            The batched observation, all rows alike.

        Raises:
            SnapshotError: Its state cannot be had as bytes, which is the only way into other sandboxes; says why.
        """
        fleet = self._opened()
        kept = take_one(fleet, check_index(index, self.num_envs), self._ended, self._variables, self._context.config)
        out = fleet.recovery.out.reasons
        return self.restore([None if number in out else kept for number in range(self.num_envs)], reseed=reseed)

    def render(self) -> tuple[Any, ...] | None:
        """One frame of each environment."""
        fleet = self._opened()
        return tuple(fleet.call(Op.RENDER, None, range(self.num_envs), self._step_timeout_s))

    def call(self, name: str, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        """Call a method of every environment (or read an attribute) with plain data; one result each."""
        if name in _RESERVED:
            raise ValueError(f"call({name!r}): use {name}() itself")
        fleet = self._opened()
        values = fleet.call(Op.CALL, [name, list(args), kwargs], range(self.num_envs), self._step_timeout_s)
        return tuple(plain(value, name) for value in values)

    def get_attr(self, name: str) -> tuple[Any, ...]:
        """An attribute of every environment, through its wrappers; plain data only."""
        return self.call(name)

    def set_attr(self, name: str, values: Any) -> None:
        """Set an attribute: a list or tuple gives each environment its own value, anything else goes to all.

        Raises:
            ValueError: A list or tuple of another length than the number of environments.
        """
        fleet = self._opened()
        each = list(values) if isinstance(values, list | tuple) else [values] * self.num_envs
        if len(each) != self.num_envs:
            raise ValueError(f"set_attr({name!r}): expected {counted(self.num_envs, 'value')}, got {len(each)}")
        payloads = [encode_request(Op.SET, [name, value]) for value in each]
        self._exchange(Op.SET, self._step_timeout_s, None, payloads)
        fleet.answers(range(self.num_envs))

    def close_extras(self, **kwargs: Any) -> None:
        """End all environments and sandboxes; called by ``close``, which is idempotent."""
        try:
            self._fleet.close()
        finally:
            self._context.release()

    def __del__(self) -> None:
        if not getattr(self, "closed", True):
            self.close()

    @property
    def sandboxes(self) -> tuple[Sandbox, ...]:
        """The sandboxes behind the environments, in order; for a look at their processes and usage."""
        return tuple(self._opened().sandboxes)

    @property
    def np_random_seed(self) -> Any:
        """The seeds of the environments' generators, one each."""
        return self.get_attr("np_random_seed")

    # -- parts of a step

    def _collect(self, flagged: list[int]) -> dict[str, Any]:
        infos: dict[str, Any] = {}
        answers = self._answers(flagged)
        for index, answer in answers.items():
            if answer.final_info is not None:
                final = {"final_obs": answer.final_observation, "final_info": answer.final_info}
                infos = self._add_info(infos, final, index)
        found = [(index, answer.info) for index, answer in answers.items()]
        return gather(found, self.num_envs, self._add_info, infos)

    def _answers(self, members: Sequence[int]) -> dict[int, Answer]:
        """Decode answers that carry more than the fixed fields; raises the first failure after reading all."""
        try:
            answers = self._fleet.answers(members)
        except SandboxError as error:
            self._remember(error)
            raise
        if self._variable:
            for index, answer in answers.items():
                self._variables[index] = answer.observation
        return answers

    def _observe(self) -> Any:
        if self.copy:
            return self._fleet.observations.copy(self._variables if self._variable else None)
        if self._variable:
            return self._fleet.observations.copy(self._variables)
        return self._fleet.observations.views

    def _exchange(self, op: Op, timeout_s: float, members: list[int] | None, payloads: list[bytes]) -> None:
        try:
            self._fleet.exchange(op, timeout_s, members, payloads)
        except SandboxError as error:
            self._remember(error)
            raise

    def _remember(self, error: SandboxError) -> None:
        """Keep in mind which environments were given up: the next step says so before anybody is asked."""
        for index in self._fleet.given_up():
            self._failed[index] = error

    def _refuse(self) -> None:
        self._opened()
        raise next(iter(self._failed.values()))

    def _disown(self) -> None:
        self.closed = True
        self._why_closed = FORKED

    def _opened(self) -> Fleet:
        if self.closed:
            raise ClosedError(f"the vector environment is {self._why_closed}")
        return self._fleet
