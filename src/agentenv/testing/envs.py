"""Proof that an environment behaves through agentenv exactly as it does without: run it over your own.

The reference is Gymnasium itself: ``SyncVectorEnv`` for a vector, the bare environment for a single one. Compared are
values, types, dtypes, shapes and bits. An environment that draws from the *global* random state, reads a clock or keeps
state in its module cannot pass, since it does not repeat itself without agentenv either.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np
from gymnasium import Space, spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.wrappers import TimeLimit

from agentenv.envs.env import AgentENV
from agentenv.envs.vector import AgentVectorEnv
from agentenv.fleet.known import registrar
from agentenv.testing.exact import assert_same
from agentenv.wire.spaces import describe

Name = str | Callable[..., Any]


@dataclass(frozen=True, slots=True)
class Parity:
    """How much was compared, so that a test can insist on something having happened.

    Attributes:
        steps: Steps of all environments.
        episodes: Episodes that ended during them.
    """

    steps: int
    episodes: int


def check_parity(
    env: Name,
    *,
    num_envs: int = 3,
    steps: int = 300,
    seed: int = 0,
    autoreset_mode: str | AutoresetMode = AutoresetMode.NEXT_STEP,
    env_kwargs: Mapping[str, Any] | None = None,
    wrappers: Sequence[str] = (),
    max_episode_steps: int | None = None,
    nested: str = "auto",
    envs_per_sandbox: int = 1,
    **settings: Any,
) -> Parity:
    """Step an environment through ``AgentVectorEnv`` and through ``SyncVectorEnv`` and compare everything.

    Half-way all environments are reset with a list of seeds, and every third time that episodes end, exactly those
    environments are reset by mask, so that manual resets meet pending automatic ones.

    Args:
        env: As for ``AgentVectorEnv.from_env``.
        num_envs: Number of environments.
        steps: Vector steps.
        seed: Of the first reset and of the actions.
        autoreset_mode: As for ``SyncVectorEnv``; with "Disabled", ended environments are reset by mask.
        env_kwargs: Keyword arguments of the environment.
        wrappers: Each ``module:callable``, innermost first.
        max_episode_steps: Truncate earlier, so that episodes end at all.
        nested: As in ``[bubblewrap]``.
        envs_per_sandbox: Environments in one sandbox.
        **settings: Further keys of ``[[environments]]`` or ``[global]``, such as ``runtime``.

    Raises:
        AssertionError: What differs first: the step, the place in the value, what was expected, what came.
    """
    mode = AutoresetMode(autoreset_mode)
    kwargs = dict(env_kwargs or {})
    ours = AgentVectorEnv(
        _config(
            env,
            nested,
            count=num_envs,
            env_kwargs=kwargs,
            wrappers=list(wrappers),
            max_episode_steps=max_episode_steps,
            envs_per_sandbox=envs_per_sandbox,
            **settings,
        ),
        autoreset_mode=mode,
    )
    with closing(ours):
        makers = [lambda: _bare(env, kwargs, wrappers, max_episode_steps)] * num_envs
        with closing(SyncVectorEnv(makers, autoreset_mode=mode)) as theirs:
            return _compare_vectors(ours, theirs, steps, seed)


def check_single_parity(
    env: Name,
    *,
    steps: int = 300,
    seed: int = 0,
    env_kwargs: Mapping[str, Any] | None = None,
    wrappers: Sequence[str] = (),
    max_episode_steps: int | None = None,
    nested: str = "auto",
    **settings: Any,
) -> Parity:
    """Step an environment through ``AgentENV`` and bare, and compare everything.

    Observations are compared as their space declares them: agentenv gives Discrete as int and arrays in the space's
    dtype, whatever the environment itself returns. Arguments and errors are those of ``check_parity``.
    """
    kwargs = dict(env_kwargs or {})
    keys = {"env_kwargs": kwargs, "wrappers": list(wrappers), "max_episode_steps": max_episode_steps, **settings}
    ours = AgentENV(_config(env, nested, **keys))
    with closing(ours), closing(_bare(env, kwargs, wrappers, max_episode_steps)) as theirs:
        return _compare_singles(ours, theirs, steps, seed)


def as_declared(space: Space[Any], value: Any, *, action: bool = False) -> Any:
    """A value in the form its space declares: arrays of the dtype, ``()`` included, for the array spaces.

    A Discrete observation is an int and a Discrete action a numpy scalar, as its ``sample`` gives it.
    """
    if isinstance(space, spaces.Discrete):
        return space.dtype.type(value) if action else int(value)
    if isinstance(space, (spaces.Box, spaces.MultiBinary, spaces.MultiDiscrete)):
        return np.asarray(value, space.dtype)
    if isinstance(space, spaces.Dict):
        return {key: as_declared(part, value[key], action=action) for key, part in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(as_declared(part, item, action=action) for part, item in zip(space.spaces, value, strict=True))
    return value


def _compare_vectors(ours: AgentVectorEnv, theirs: SyncVectorEnv, steps: int, seed: int) -> Parity:
    for name in ("single_observation_space", "observation_space", "single_action_space", "action_space"):
        _assert_spaces_equal(getattr(ours, name), getattr(theirs, name), name)
    assert_same(ours.metadata["autoreset_mode"], theirs.metadata["autoreset_mode"], "metadata['autoreset_mode']")
    theirs.action_space.seed(seed)
    assert_same(ours.reset(seed=seed), theirs.reset(seed=seed), f"reset(seed={seed})")
    episodes = endings = 0
    for number in range(steps):
        if number == steps // 2:
            seeds = [None if index == 1 else seed + 7 * index for index in range(ours.num_envs)]
            # A reset without a seed continues the generator, which both sides have advanced alike.
            assert_same(ours.reset(seed=seeds), theirs.reset(seed=seeds), f"reset(seed={seeds})")
        action = theirs.action_space.sample()
        got, expected = ours.step(action), theirs.step(action)
        assert_same(got, expected, f"step {number}")
        ended = expected[2] | expected[3]
        if ended.any():
            episodes += int(ended.sum())
            endings += 1
            if theirs.autoreset_mode is AutoresetMode.DISABLED or endings % 3 == 0:
                masked = [env.reset(options={"reset_mask": ended.copy()}) for env in (ours, theirs)]
                assert_same(masked[0], masked[1], f"reset by mask {ended.tolist()} after step {number}")
    return Parity(steps * ours.num_envs, episodes)


def _compare_singles(ours: AgentENV, theirs: gymnasium.Env[Any, Any], steps: int, seed: int) -> Parity:
    space = theirs.observation_space
    _assert_spaces_equal(ours.observation_space, space, "observation_space")
    _assert_spaces_equal(ours.action_space, theirs.action_space, "action_space")

    def reset(where: str, **options: Any) -> None:
        observation, info = theirs.reset(**options)
        assert_same(ours.reset(**options), (as_declared(space, observation), info), where)

    # A copy: the environment may draw from its own action space.
    actions = deepcopy(theirs.action_space)
    actions.seed(seed)
    reset(f"reset(seed={seed})", seed=seed)
    episodes = 0
    for number in range(steps):
        action = actions.sample()
        # Gymnasium samples 0-d Boxes of integers as scalars and those of floats as arrays.
        observation, reward, terminated, truncated, info = theirs.step(as_declared(actions, action, action=True))
        expected = as_declared(space, observation), float(reward), bool(terminated), bool(truncated), info
        assert_same(ours.step(action), expected, f"step {number}")
        if terminated or truncated:
            episodes += 1
            reset(f"reset() after step {number}", **({"seed": seed + number} if episodes % 3 == 0 else {}))
    return Parity(steps, episodes)


def _assert_spaces_equal(got: Space[Any], expected: Space[Any], name: str) -> None:
    # Descriptions, not ``==``: a space whose class only the sandbox has is a stand-in here.
    if describe(got, allow_foreign=True) != describe(expected, allow_foreign=True):
        raise AssertionError(f"{name}: expected {expected}, got {got}")


def _bare(
    env: Name, kwargs: Mapping[str, Any], wrappers: Sequence[str], max_episode_steps: int | None
) -> gymnasium.Env[Any, Any]:
    """The environment as a program without agentenv would make it."""
    made: gymnasium.Env[Any, Any]
    if isinstance(env, str) and ":" not in env:
        module = registrar(env)
        if module is not None:
            importlib.import_module(module)
        made = gymnasium.make(env, max_episode_steps=max_episode_steps, **kwargs)
    else:
        made = (_imported(env) if isinstance(env, str) else env)(**kwargs)
        if max_episode_steps is not None:
            made = TimeLimit(made, max_episode_steps)
    for wrapper in wrappers:
        made = _imported(wrapper)(made)
    return made


def _imported(name: str) -> Callable[..., Any]:
    module, _, attribute = name.partition(":")
    found: Callable[..., Any] = getattr(importlib.import_module(module), attribute)
    return found


def _config(env: Name, nested: str, *, envs_per_sandbox: int = 1, **keys: Any) -> Any:
    from agentenv.config import EnvironmentConfig
    from agentenv.config.model import keys_of
    from agentenv.envs.source import env_name

    environment = {"id": "env", "env": env_name(env)}
    settings: dict[str, Any] = {"envs_per_sandbox": envs_per_sandbox}
    for key, value in keys.items():
        if value is not None:
            (environment if key in keys_of(EnvironmentConfig) else settings)[key] = value
    return {"global": settings, "environments": [environment], "bubblewrap": {"nested": nested}}
