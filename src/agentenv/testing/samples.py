"""Small environments that the suites run inside sandboxes: one that speaks every space, one that fails on request.

They live in the package because a sandbox must be able to import them. Both are deterministic functions of the seed and
of what they are told; neither is meant to be learned.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import zlib
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from agentenv.wire.spaces import rebuild

SAMPLED = "agentenv.testing.samples:SampledSpaces"
PATIENT = "agentenv.testing.samples:Patient"


def fingerprint(value: Any) -> int:
    """A number that differs, almost surely, when type, dtype, shape or any bit of a nested value differs."""
    return zlib.crc32(_spell(value).encode())


def _spell(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ",".join(f"{key!r}:{_spell(item)}" for key, item in value.items()) + "}"
    if isinstance(value, (list, tuple)):
        return f"{type(value).__name__}(" + ",".join(map(_spell, value)) + ")"
    if isinstance(value, (np.ndarray, np.generic)):
        return f"{type(value).__name__}:{value.dtype.str}:{value.shape}:{value.tobytes().hex()}"
    return f"{type(value).__name__}:{value!r}"


class SampledSpaces(gymnasium.Env[Any, Any]):
    """Emits seeded samples of its observation space; the reward is a fingerprint of the action it was given.

    Args:
        observation: The observation space, as ``agentenv.wire.spaces.describe`` gives it.
        action: The action space, likewise.
        length: Steps until termination; every second episode is truncated at that length instead.
    """

    def __init__(self, observation: dict[str, Any], action: dict[str, Any], length: int = 4) -> None:
        self.observation_space = rebuild(observation)
        self.action_space = rebuild(action)
        self._length = length
        self._steps = 0
        self._episodes = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Reseed the observation space; see ``gymnasium.Env.reset``."""
        super().reset(seed=seed)
        if seed is not None:
            self.observation_space.seed(seed)
        elif not self._episodes:
            self.observation_space.seed(0)
        self._steps = 0
        self._episodes += 1
        return self.observation_space.sample(), {"episode": self._episodes, "options": str(options)}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Count, sample, and answer with the fingerprint of the action."""
        self._steps += 1
        ended = self._steps >= self._length
        mark = fingerprint(action)
        observation = self.observation_space.sample()
        info = {"action": mark, "observation": fingerprint(observation)} if self._steps % 2 else {}
        even = self._episodes % 2 == 0
        return observation, float(mark), ended and even, ended and not even, info


class Patient(gymnasium.Env[Any, Any]):
    """Harmless while stepped; its methods do to its own process whatever a suite asks for through ``call``.

    The observation is the number of steps, four times. The action is added to the reward.

    Args:
        build: A method of this class to call in the constructor, with its arguments: ``["exit", 3]``.
    """

    observation_space = spaces.Box(-np.inf, np.inf, (4,), np.float64)
    action_space = spaces.Box(-1.0, 1.0, (), np.float64)

    def __init__(self, build: list[Any] | None = None) -> None:
        self.steps = 0
        if build:
            getattr(self, build[0])(*build[1:])

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Start at step 0; see ``gymnasium.Env.reset``."""
        super().reset(seed=seed)
        self.steps = 0
        return np.zeros(4), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Count."""
        self.steps += 1
        return np.full(4, float(self.steps)), float(self.steps) + float(action), False, False, {}

    def echo(self, value: Any) -> Any:
        """Give back what came."""
        return value

    def pid(self) -> int:
        """Its process id, as numbered inside."""
        return os.getpid()

    def variables(self) -> dict[str, str]:
        """Its environment variables."""
        return dict(os.environ)

    def say(self, text: str, error: bool = False) -> None:
        """Print a line."""
        print(text, file=sys.stderr if error else sys.stdout, flush=True)

    def raises(self, text: str) -> None:
        """Raise a ValueError."""
        raise ValueError(text)

    def exit(self, code: int) -> None:
        """End the process at once."""
        os._exit(code)

    def leave(self, code: int) -> None:
        """Call ``sys.exit``, as careless code does."""
        sys.exit(code)

    def die(self, number: int) -> None:
        """Kill the process by a signal."""
        os.kill(os.getpid(), number)
        time.sleep(60)  # a signal to oneself may be delivered a moment later

    def hang(self) -> None:
        """Block for ever, using no CPU."""
        while True:
            signal.pause()

    def spin(self) -> None:
        """Compute for ever."""
        while True:
            pass

    def allocate(self, megabytes: int) -> int:
        """Touch so much memory."""
        return len(bytearray(os.urandom(1 << 20) * megabytes))

    def fill(self, directory: str, megabytes: int) -> str:
        """Write so much, in files of 1 MiB; returns "written" or the error."""
        try:
            for number in range(megabytes):
                with open(f"{directory}/fill-{number}", "wb") as stream:
                    stream.write(b"x" * (1 << 20))
        except OSError as error:
            return type(error).__name__ + ":" + os.strerror(error.errno or 0)
        return "written"

    def leave_children(self, number: int) -> list[int]:
        """Start processes in sessions of their own that would outlive it; returns their pids as numbered inside."""
        return [subprocess.Popen(["sleep", "1000"], start_new_session=True).pid for _ in range(number)]

    def spawn_until_refused(self, most: int) -> int:
        """Fork children that wait until one is refused; returns how many were started, and ends them."""
        children: list[int] = []
        try:
            while len(children) < most:
                pid = os.fork()
                if pid == 0:
                    signal.pause()
                    os._exit(0)
                children.append(pid)
        except OSError:
            pass
        for pid in children:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        return len(children)
