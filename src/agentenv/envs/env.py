"""One isolated environment as an ordinary ``gymnasium.Env``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
from gymnasium.envs.registration import EnvSpec

from agentenv.config import Config, EnvironmentConfig, config_from_keywords, load_config
from agentenv.envs.branching import Branching
from agentenv.envs.lifetime import Lifetime
from agentenv.envs.snapshots import Spawns
from agentenv.envs.source import Source, choose_environment, env_name, refuse_several, split_source, with_render_mode
from agentenv.errors import ClosedError, InvalidAction, ProtocolError
from agentenv.fleet.context import RunContext
from agentenv.fleet.fleet import Fleet
from agentenv.fleet.introduction import Introduction
from agentenv.sandbox.contract import Sandbox
from agentenv.wire.batch import ActionCheck
from agentenv.wire.layout import Reader, Writer, plan
from agentenv.wire.opaque import Opaque
from agentenv.wire.sending import encode_request
from agentenv.wire.slot import PAYLOAD, Flag, Op
from agentenv.wire.values import encode

_RESERVED = ("reset", "step", "close", "render")
FORKED = "the property of the process that forked this one: make another here instead"


class AgentENV(Branching, Lifetime, gymnasium.Env[Any, Any]):
    """An environment that lives in a sandbox of its own and behaves as if it lived here.

    Example:
        >>> env = AgentENV.from_env("CartPole-v1", memory_mb=256)
        >>> observation, info = env.reset(seed=1)
        >>> observation, reward, terminated, truncated, info = env.step(env.action_space.sample())
        >>> env.close()

    Observations are fresh arrays of the space's dtype and shape; Discrete observations are ints; the reward is a float.
    Actions are converted to the action space's dtype, and must be inside it (``invalid_action``). ``np_random`` is a
    generator of the host's own, and has nothing to do with the environment's, which is in the sandbox.

    Every method may raise ``EnvError`` (the environment's own exception, as text), ``SandboxDied`` or ``StepTimeout``.
    After ``SandboxDied`` or ``StepTimeout`` the next ``reset`` starts a new sandbox.
    """

    def __init__(self, source: Source, *, env_id: str | None = None, render_mode: str | None = None) -> None:
        """Start the sandbox and build the environment in it.

        Args:
            source: Path of a TOML file, a ``Config``, a dict of either form, or
                ``{"config_file": path, "env_id": id}``.
            env_id: Which environment of the configuration; the first one by default.
            render_mode: Overrides the configuration's.

        Raises:
            ConfigError: The configuration is wrong.
            RuntimeUnavailable: This machine cannot run it.
            EnvError: The environment's constructor raised.
        """
        config, chosen_id = split_source(source, env_id)
        environment = choose_environment(config, chosen_id)
        if render_mode is not None:
            environment = with_render_mode(environment, render_mode)
        self._open(environment, RunContext(config, [environment], record=False), None)
        seeds, seeded = self._context.seeds, environment.seed is not None or config.global_.seed is not None
        self._first_seed = seeds.environment(self.env_id, seed=environment.seed) if seeded else None
        if seeded:
            self.action_space.seed(seeds.actions(self.env_id, seed=environment.seed))
        self.spec = _make_spec(config, self.env_id, self._fleet.introduction)

    def _open(
        self,
        environment: EnvironmentConfig,
        context: RunContext,
        sandbox: Sandbox | None,
        reseed: int | None = None,
    ) -> None:
        """Become a user of a context, and start in it, or in a sandbox that was made for it."""
        self.env_id = environment.id
        self._environment = environment
        self._context = context
        self._closed = False
        self._why_closed = "closed"
        self._spawns = Spawns(context.seeds)
        self._leaves: Sequence[object] = ()
        try:
            self._fleet = Fleet(context, [environment], sandboxes=None if sandbox is None else [sandbox], reseed=reseed)
        except BaseException:
            self._closed = True
            context.release()
            raise
        context.on_fork(self._disown)
        self._open_views()
        self.metadata = {**self._fleet.metadata, "render_modes": _render_modes(self._fleet.metadata)}
        self.render_mode = self._fleet.render_mode

    @classmethod
    def from_env(cls, env: str | Callable[..., Any], **keywords: Any) -> AgentENV:
        """An environment by its Gymnasium id or ``module:callable``, without a file.

        Args:
            env: The id, ``module:callable``, or an importable class or function.
            **keywords: Every key of an ``[[environments]]`` table and of ``[global]``, and ``bubblewrap``, ``qemu`` or
                ``firecracker`` with the keys of that table in a dict.

        Raises:
            ConfigError: A keyword is unknown or wrong; also ``count``, where it asks for more than one.
        """
        config = config_from_keywords(env_name(env), **keywords)
        refuse_several(config)
        return cls(config)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Start an episode; see ``gymnasium.Env.reset``.

        Without a seed, the first reset uses the configuration's, where it has one.

        Raises:
            TypeError: Something in ``options`` is not plain data; nothing was sent.
        """
        fleet = self._opened()
        if fleet.dead():
            fleet.revive()
        if seed is None:
            seed = self._first_seed
        payload = encode_request(Op.RESET, [None if seed is None else int(seed), options])
        self._first_seed = None
        super().reset(seed=seed)
        fleet.exchange(Op.RESET, self._environment.reset_timeout_s, None, [payload])
        if self._variable or int(fleet.channel.status[0]) & PAYLOAD:
            answer = fleet.answer(0)
            self._leaves = answer.observation
            return self._read(answer.observation), answer.info
        return self._read(()), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Take one action; see ``gymnasium.Env.step``.

        Raises:
            InvalidAction: The action is not in the action space; nothing was sent.
        """
        fleet = self._opened()
        action = self._check(action)
        if fleet.is_pending:
            fleet.finish()
        try:
            variable = self._write(action)
        except ValueError as error:
            raise InvalidAction(str(error)) from None
        channel = fleet.channel
        payloads = [encode(variable)] if self._variable_action else None
        fleet.post(Op.STEP, None, payloads, timeout_s=self._environment.step_timeout_s)
        fleet.wait()
        status = int(channel.status[0])
        if self._variable or status & PAYLOAD:
            answer = fleet.answer(0)
            status = int(channel.status[0])  # if it died before all of that was read, it has answered again
            self._leaves = answer.observation
            observation, info = self._read(answer.observation), answer.info
        else:
            observation, info = self._read(()), {}
        ended, cut = bool(status & Flag.TERMINATED), bool(status & Flag.TRUNCATED)
        return observation, float(channel.rewards[0]), ended, cut, info

    def render(self) -> Any:
        """The frame (uint8 array, shape (height, width, 3)) or text of the environment's render mode."""
        return self._opened().call(Op.RENDER, None, [0], self._environment.step_timeout_s)[0]

    def call(self, name: str, *args: Any, **kwargs: Any) -> Any:
        """Call a method of the environment (or read an attribute) with plain data, and return plain data.

        Raises:
            ValueError: The name is one the environment protocol uses itself.
            TypeError: An argument, or the result, is not plain data.
        """
        if name in _RESERVED:
            raise ValueError(f"call({name!r}): use {name}() itself")
        fleet = self._opened()
        return plain(fleet.call(Op.CALL, [name, list(args), kwargs], [0], self._environment.step_timeout_s)[0], name)

    def get_attr(self, name: str) -> Any:
        """An attribute of the environment, through its wrappers; plain data only."""
        return self.call(name)

    def set_attr(self, name: str, value: Any) -> None:
        """Set an attribute of the environment to plain data."""
        self._opened().call(Op.SET, [name, value], [0], self._environment.step_timeout_s)

    def has_wrapper_attr(self, name: str) -> bool:
        """Whether this object, or the environment in the sandbox, has the attribute."""
        return hasattr(self, name) or self._look(name)[0] != "none"

    def get_wrapper_attr(self, name: str) -> Any:
        """An attribute of this object, else of the environment in the sandbox; a method comes as a function to call.

        Raises:
            AttributeError: Neither has it.
            TypeError: It is neither a method nor plain data.
        """
        if hasattr(self, name):
            return getattr(self, name)
        kind, *value = self._look(name)
        if kind == "none":
            raise AttributeError(f"environment {self.env_id!r} has no attribute {name!r}, here or in its sandbox")
        return partial(self.call, name) if kind == "callable" else plain(value[0], name)

    def set_wrapper_attr(self, name: str, value: Any, *, force: bool = True) -> bool:
        """Set an attribute of this object if it has one of that name, else of the environment in the sandbox."""
        if hasattr(self, name):
            setattr(self, name, value)
            return True
        if not force and self._look(name)[0] == "none":
            return False
        self.set_attr(name, value)
        return True

    def _look(self, name: str) -> list[Any]:
        found = self._opened().call(Op.LOOK, name, [0], self._environment.step_timeout_s)[0]
        if not isinstance(found, list) or [found[:1], len(found)] not in (
            [["none"], 1],
            [["callable"], 1],
            [["value"], 2],
        ):
            raise ProtocolError(f"asked for {name!r}, the environment answered something that is not the protocol")
        return found

    def __repr__(self) -> str:
        return (
            f"<AgentENV {self.env_id} ({self._environment.env or 'GridWorld'}) in runtime {self._context.runtime_name}>"
        )

    __str__ = __repr__

    def close(self) -> None:
        """End the environment and its sandbox. Idempotent; always leaves nothing behind."""
        if not getattr(self, "_closed", True):
            self._closed = True
            try:
                self._fleet.close()
            finally:
                self._context.release()

    def __del__(self) -> None:
        self.close()

    def _open_views(self) -> None:
        fleet = self._fleet
        self.observation_space = fleet.single_observation_space
        if not hasattr(self, "action_space"):
            self.action_space = fleet.single_action_space
        actions, observations = plan(fleet.single_action_space), plan(fleet.single_observation_space)
        self._check = ActionCheck(fleet.single_action_space, self._environment.invalid_action).apply_one
        self._variable_action, self._variable = actions.variable, observations.variable
        memory = fleet.channel.arena.bytes
        self._write = Writer(actions, memory[fleet.slot.action :]).write
        self._read: Callable[[Sequence[object]], Any] = Reader(observations, memory[fleet.slot.observation :]).read

    def _disown(self) -> None:
        self._closed = True
        self._why_closed = FORKED

    def _opened(self) -> Fleet:
        if self._closed:
            raise ClosedError(f"environment {self.env_id!r} is {self._why_closed}")
        return self._fleet


def plain(value: Any, name: str) -> Any:
    """The value, unless it is only the description of an object that cannot leave the sandbox.

    Raises:
        TypeError: It is.
    """
    if isinstance(value, Opaque):
        raise TypeError(
            f"{name!r} is a {value.type_name}, which stays inside the sandbox; only plain data (numbers, text, lists,"
            f" dicts, numpy arrays) comes out. It looks like {value.text:.200}"
        )
    return value


def make_from_spec(
    config: dict[str, Any], base_dir: str, source: str, env_id: str, render_mode: str | None = None
) -> AgentENV:
    """What ``AgentENV.spec`` makes another one with; plain data, since a spec can be written down as JSON."""
    loaded = replace(load_config(config), base_dir=Path(base_dir), source=source)
    return AgentENV(loaded, env_id=env_id, render_mode=render_mode)


def _make_spec(config: Config, env_id: str, inner: Introduction) -> EnvSpec:
    name = (inner.spec_id or "Env-v0").rpartition("/")[2]
    kwargs = {"config": config.to_dict(), "base_dir": str(config.base_dir), "source": config.source, "env_id": env_id}
    return EnvSpec(
        id=f"agentenv/{name}",
        entry_point="agentenv.envs.env:make_from_spec",
        kwargs=kwargs,
        max_episode_steps=inner.max_episode_steps,
        order_enforce=False,
        disable_env_checker=True,
    )


def _render_modes(metadata: dict[str, Any]) -> list[str]:
    """The environment's render modes, without "human": there is no display inside a sandbox."""
    return [mode for mode in metadata.get("render_modes") or [] if mode != "human"]
