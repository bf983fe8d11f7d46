"""The environment under examination and what examines it: runs inside the sandbox, and is spoken to through ``call``.

It builds the environment itself, in a world that was asked for (global generators, what is held still), plays it and
reports plain data. It decides nothing. Its own spaces are stand-ins: what the environment returns is looked at here as
it is, and does not have to fit into a slot first.
"""

from __future__ import annotations

import random
import time
from copy import deepcopy
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from agentenv.checks import keeping
from agentenv.checks.digests import digest
from agentenv.checks.held import Hold
from agentenv.checks.observed import faults
from agentenv.guest.failure import failure
from agentenv.guest.maker import make_environment

# Bound before anything is held: the measurements need the real one.
_now_ns = time.perf_counter_ns


class WrongReturn(TypeError):
    """``reset`` or ``step`` returned something else than Gymnasium's interface says."""


class Probed(gymnasium.Env[Any, Any]):
    """An environment in a world of its own.

    Args:
        description: What to build, as ``agentenv.guest.maker.make_environment`` takes it.
        random_seed: Of Python's global generator, before building and before every seeded reset.
        numpy_seed: Of numpy's, likewise.
        held: What to hold still; see ``agentenv.checks.held``.
    """

    observation_space = spaces.Discrete(1)
    action_space = spaces.Discrete(1)

    def __init__(self, description: dict[str, Any], random_seed: int, numpy_seed: int, held: list[str]) -> None:
        self._seeds = random_seed, numpy_seed
        self._hold = Hold(held)
        self._seed_globals()
        self._env = make_environment(description)
        self._space = deepcopy(self._env.observation_space)
        self._going = False
        self._step = 0

    def play(
        self,
        actions: list[Any],
        seed: int | None = None,
        digests: bool = False,
        stop_at_end: bool = False,
        budget_s: float = 0.5,
    ) -> dict[str, Any]:
        """Take actions, resetting without a seed after the end of an episode.

        Args:
            actions: One a step.
            seed: Reset with this seed first, in the world as it was asked for.
            digests: Whether to report every state as a digest.
            stop_at_end: Whether to return when an episode ends.
            budget_s: Return after the step in which so many seconds have passed.

        Returns:
            ``done`` (steps taken), ``rewards``, ``step_s`` and ``reset_s`` (float64 arrays), ``faults`` (by kind: how
            many, in which step first, text), ``episodes`` (ended), ``states`` and ``infos`` (with ``digests``: one a
            reset or step), ``drawn`` (global generators that were drawn from), ``error`` (three texts, or None).
        """
        record = Record(digests)
        ends = _now_ns() + int(budget_s * 1e9)
        if seed is not None:
            self._rewind()
            self._step = 0
        before = self._global_states()
        try:
            if seed is not None or not self._going:
                self._reset(record, seed)
            for action in actions:
                if not self._going:
                    self._reset(record, None)
                self._take(record, action)
                if (not self._going and stop_at_end) or _now_ns() > ends:
                    break
        except Exception as error:
            self._going = False
            record.error = failure(error)
        after = self._global_states()
        drawn = [name for name, old, new in zip(("random", "numpy_random"), before, after) if old != new]
        return record.to_plain(drawn)

    def attempt(self, action: Any) -> dict[str, Any]:
        """One step with whatever action: ``error`` (three texts), or ``state``, ``finite`` and ``faults`` (texts)."""
        try:
            observation, reward, terminated, truncated, _info = _five(self._env.step(action))
        except Exception as error:
            return {"error": failure(error)}
        number = _number(reward)
        return {
            "error": None,
            "state": digest([observation, reward, bool(terminated), bool(truncated)]),
            "finite": number is not None and bool(np.isfinite(number)),
            "faults": [text for _kind, text in faults(self._space, observation)],
        }

    def pickled(self, actions: list[Any]) -> dict[str, Any]:
        """See ``keeping.pickled``; the global generators are the same for both."""
        return keeping.pickled(self._env, lambda env: self._follow(env, actions))

    def forked(self, actions: list[Any]) -> dict[str, Any]:
        """See ``keeping.forked``."""
        return keeping.forked(lambda: self._follow(self._env, actions))

    def memory(self) -> int:
        """Resident bytes of this process, once what is only waiting to be collected has been."""
        return keeping.resident_bytes()

    def places(self) -> dict[str, dict[str, int]]:
        """Where what is held was asked for: ``file:line`` and how often, by what."""
        return self._hold.places

    def close(self) -> None:
        """Close the environment."""
        self._env.close()

    def _reset(self, record: Record, seed: int | None) -> None:
        began = _now_ns()
        returned = self._env.reset(seed=seed)
        record.reset_s.append((_now_ns() - began) / 1e9)
        if not isinstance(returned, tuple) or len(returned) != 2:
            raise WrongReturn(f"reset must return (observation, info), got {_shape_of(returned)}")
        observation, info = returned
        self._going = True
        record.observe(self._space, observation, self._step)
        if record.digests:
            record.add_state([observation], info)

    def _take(self, record: Record, action: Any) -> None:
        began = _now_ns()
        returned = self._env.step(action)
        record.step_s.append((_now_ns() - began) / 1e9)
        observation, reward, terminated, truncated, info = _five(returned)
        self._step += 1
        record.observe(self._space, observation, self._step)
        record.reward(reward, self._step)
        if record.digests:
            record.add_state([observation, reward, bool(terminated), bool(truncated)], info)
        if terminated or truncated:
            self._going = False
            record.episodes += 1

    def _follow(self, env: Any, actions: list[Any]) -> bytes:
        """Go on with some actions, from the same position of everything that is global, and digest what comes."""
        self._rewind()
        seen = []
        try:
            for action in actions:
                observation, reward, terminated, truncated, _info = _five(env.step(action))
                seen.append([digest(observation), reward, bool(terminated), bool(truncated)])
                if terminated or truncated:
                    seen.append([digest(env.reset()[0])])
        except Exception as error:  # raising is going on as well: the other one has to do the same
            seen.append([type(error).__name__, str(error)])
        return digest(seen)

    def _rewind(self) -> None:
        self._hold.rewind()
        self._seed_globals()

    def _seed_globals(self) -> None:
        random.seed(self._seeds[0])
        np.random.seed(self._seeds[1])

    def _global_states(self) -> tuple[Any, bytes]:
        state = np.random.get_state(legacy=True)
        return random.getstate(), digest(list(state))


class Record:
    """What one call of ``play`` saw."""

    def __init__(self, digests: bool) -> None:
        self.digests = digests
        self.rewards: list[float] = []
        self.step_s: list[float] = []
        self.reset_s: list[float] = []
        self.faults: dict[str, list[Any]] = {}
        self.states: list[bytes] = []
        self.infos: list[dict[str, bytes]] = []
        self.episodes = 0
        self.error: list[str] | None = None

    def observe(self, space: spaces.Space[Any], observation: Any, step: int) -> None:
        """Judge an observation."""
        for kind, text in faults(space, observation):
            self._fault(kind, step, text)

    def reward(self, reward: Any, step: int) -> None:
        """Judge a reward."""
        number = _number(reward)
        if number is None:
            self._fault("reward_type", step, f"expected one number, got {_shape_of(reward)}")
        elif not np.isfinite(number):
            self._fault("reward_finite", step, f"got {number}")
        else:
            self.rewards.append(number)

    def add_state(self, state: list[Any], info: Any) -> None:
        """Digest a state."""
        self.states.append(digest(state))
        keyed = info.items() if isinstance(info, dict) else [("info", info)]
        self.infos.append({str(key): digest(value) for key, value in keyed})

    def to_plain(self, drawn: list[str]) -> dict[str, Any]:
        """As plain data."""
        return {
            "done": len(self.step_s),
            "rewards": np.array(self.rewards, np.float64),
            "step_s": np.array(self.step_s, np.float64),
            "reset_s": np.array(self.reset_s, np.float64),
            "faults": self.faults,
            "episodes": self.episodes,
            "states": self.states,
            "infos": self.infos,
            "drawn": drawn,
            "error": self.error,
        }

    def _fault(self, kind: str, step: int, text: str) -> None:
        known = self.faults.setdefault(kind, [0, step, text])
        known[0] += 1


def _five(returned: Any) -> tuple[Any, Any, Any, Any, Any]:
    if not isinstance(returned, tuple) or len(returned) != 5:
        raise WrongReturn(
            f"step must return (observation, reward, terminated, truncated, info), got {_shape_of(returned)}"
        )
    return returned


def _number(reward: Any) -> float | None:
    array = np.asarray(reward)
    return float(array.reshape(()).item()) if array.size == 1 and array.dtype.kind in "biuf" else None


def _shape_of(value: Any) -> str:
    if isinstance(value, (tuple, list)):
        return f"a {type(value).__name__} of {len(value)}"
    if isinstance(value, np.ndarray):
        return f"an array of shape {value.shape} and dtype {value.dtype}"
    return type(value).__name__
