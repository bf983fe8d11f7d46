"""Little environments with one peculiarity each, imported by name inside the sandboxes of the tests."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
import threading
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

Step = tuple[Any, Any, Any, Any, dict[str, Any]]


class Counter(gymnasium.Env[Any, Any]):
    """Observes the number of steps; ends after ``length``. The base of the others."""

    metadata: dict[str, Any] = {"render_modes": ["human", "rgb_array", "ansi"], "render_fps": 4}  # noqa: RUF012 (as theirs)
    observation_space: Any = spaces.Box(-1e6, 1e6, (2,), np.float32)
    action_space: Any = spaces.Discrete(3)

    def __init__(self, length: int = 4, render_mode: str | None = None, note: str = "") -> None:
        self.length = length
        self.steps = 0
        self.render_mode = render_mode
        self.note = note
        self.options: Any = None

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.steps = 0
        self.options = options
        return self.observe(), {}

    def step(self, action: Any) -> Step:
        self.steps += 1
        return self.observe(), float(action), self.steps >= self.length, False, {}

    def observe(self) -> Any:
        return np.full(2, self.steps, np.float32)

    def render(self) -> Any:
        if self.render_mode == "ansi":
            return f"step {self.steps}"
        return np.full((2, 3, 3), self.steps, np.uint8)

    def add(self, left: int, right: int = 1) -> int:
        return left + right

    def handle(self) -> Any:
        return threading.Lock()


class ReusedBuffers(Counter):
    """Returns the same array and the same info dict every time, and overwrites both in reset and step."""

    def __init__(self, length: int = 3) -> None:
        super().__init__(length)
        self.buffer = np.zeros(2, np.float32)
        self.info: dict[str, Any] = {}

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.buffer[...] = -7
        self.info.clear()
        self.info["phase"] = "reset"
        return self.buffer, self.info

    def step(self, action: Any) -> Step:
        self.steps += 1
        self.buffer[...] = self.steps
        self.info.clear()
        self.info["phase"] = f"step {self.steps}"
        return self.buffer, 1.0, self.steps >= self.length, False, self.info


class OddRewards(Counter):
    """Each step pays 1 in another type, and states its flags in another one."""

    def step(self, action: Any) -> Step:
        self.steps += 1
        rewards = [np.array([1.0]), np.float32(1), np.int64(1), True, 1, np.bool_(True), np.array(1.0, np.float16)]
        reward: Any = rewards[(self.steps - 1) % len(rewards)]
        return self.observe(), reward, np.bool_(self.steps >= self.length), 0, {}


class WrongReward(Counter):
    """Pays two numbers, which no float can hold."""

    def step(self, action: Any) -> Step:
        return self.observe(), np.array([1.0, 2.0]), False, False, {}


class Informer(Counter):
    """Infos of every type, some of them in some steps only, and different ones in each environment."""

    def step(self, action: Any) -> Step:
        observation, reward, terminated, truncated, _ = super().step(action)
        info: dict[str, Any] = {
            "int": self.steps,
            "float": 0.5,
            "bool": True,
            "text": "täxt",
            "none": None,
            "scalar": np.float32(2.5),
            "small": np.int8(-3),
            "array": np.arange(3, dtype=np.int16),
            "bools": np.array([True, False]),
            "list": [1, "two", 3.0],
            "tuple": (1, 2),
            "nested": {"deep": {"value": 1.5}, "array": np.zeros((2, 2), np.float16)},
        }
        if int(action) == 1:
            info["sometimes"] = 1
            del info["int"]
        return observation, reward, terminated, truncated, info


class Strict(Counter):
    """Continuous actions; puts the one it got into its info."""

    action_space: Any = spaces.Box(-1.0, 1.0, (2,), np.float32)

    def step(self, action: Any) -> Step:
        self.steps += 1
        return self.observe(), 0.0, False, False, {"action": np.array(action)}


class Fragile(Counter):
    """Does what the action says: 0 steps, 1 raises, 2 ends its own process, after printing a line."""

    def step(self, action: Any) -> Step:
        if action == 1:
            print("about to raise", flush=True)
            raise KeyError("no such thing")
        if action == 2:
            print("about to go", file=sys.stderr, flush=True)
            os._exit(7)
        return super().step(action)


class Heavy(Counter):
    """Its infos are short and take much memory; where ``last`` is set, only that of the last step."""

    def __init__(self, last: bool = False, length: int = 2) -> None:
        super().__init__(length)
        self.last = last

    def step(self, action: Any) -> Step:
        observation, reward, terminated, truncated, _ = super().step(action)
        heavy = terminated or not self.last
        return observation, reward, terminated, truncated, {"parts": [{}] * 345_000 if heavy else []}


class Slow(Counter):
    """Action 1 blocks for ever without using the CPU, action 2 forever with."""

    def step(self, action: Any) -> Step:
        if action == 1:
            threading.Event().wait()
        while action == 2:
            pass
        return super().step(action)


class Parent(Counter):
    """Starts a process with subprocess, one with multiprocessing and a thread in every step, and counts the answers."""

    def step(self, action: Any) -> Step:
        observation, _, terminated, truncated, _ = super().step(action)
        said = subprocess.run([sys.executable, "-c", "print(41 + 1)"], capture_output=True, text=True, check=True)
        with multiprocessing.get_context("fork").Pool(2) as pool:
            squares = pool.map(abs, [-1, -2, -3])
        heard: list[int] = []
        thread = threading.Thread(target=lambda: heard.append(5))
        thread.start()
        thread.join()
        return observation, float(said.stdout) + sum(squares) + heard[0], terminated, truncated, {}


class Unrepeatable(Counter):
    """Observes its process: no two places agree."""

    def observe(self) -> Any:
        return np.full(2, os.getpid() % 1000 + self.steps, np.float32)


class Broken(Counter):
    """Cannot be built."""

    def __init__(self) -> None:
        print("while building", flush=True)
        raise RuntimeError("no assets")


class Wide(Counter):
    """Like the others, with another observation space."""

    observation_space: Any = spaces.Box(-1e6, 1e6, (3,), np.float32)

    def observe(self) -> Any:
        return np.full(3, self.steps, np.float32)


def not_an_environment() -> dict[str, int]:
    return {"reset": 1}


class WithoutDrawnAction(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Drops the action in highway-env's reset info: drawn from a new, unseeded space, it never repeats itself."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        observation, info = self.env.reset(seed=seed, options=options)
        del info["action"]
        return observation, info


class Hasher(Counter):
    """Tells in which order it iterates over a set of texts."""

    def order(self) -> list[str]:
        return list({str(i) for i in range(50)})
