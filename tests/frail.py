"""Environments that die, or are hard to bring back, imported by name inside the sandboxes of the tests."""

from __future__ import annotations

import os
import signal
import threading
import time
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

Step = tuple[Any, float, bool, bool, dict[str, Any]]


class Walk(gymnasium.Env[Any, Any]):
    """A random walk whose noise comes from three generators; an info now and then, a few dozen steps an episode."""

    observation_space: Any = spaces.Box(-np.inf, np.inf, (3,), np.float64)
    action_space: Any = spaces.Discrete(3)

    def __init__(self, length: int = 37) -> None:
        self.length, self.steps, self.place = length, 0, np.zeros(3)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.steps, self.place = 0, self.np_random.normal(size=3)
        return self.place.copy(), {"began": self.steps}

    def step(self, action: Any) -> Step:
        self.steps += 1
        self.place += [self.np_random.normal(), np.random.normal(), float(action)]
        info = {"place": float(self.place[0])} if self.steps % 5 == 0 else {}
        return self.place.copy(), float(self.place[1]), False, self.steps >= self.length, info


class Native(Walk):
    """Keeps its place where no pickle reaches, and cannot be pickled at all."""

    def __init__(self, length: int = 37) -> None:
        super().__init__(length)
        self.lock = threading.Lock()


class Lengthy(Walk):
    """Observes texts, of any length there is memory for."""

    observation_space = spaces.Text(1 << 40, min_length=0)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        return self.told(), {}

    def step(self, action: Any) -> Step:
        _, reward, terminated, truncated, info = super().step(action)
        return self.told(), reward, terminated, truncated, info

    def told(self) -> str:
        return "a"


class Lengthier(Lengthy):
    """Observes texts none of which fits into a slot."""

    observation_space = spaces.Text(60_000, min_length=50_000)

    def told(self) -> str:
        return "a" * 50_000


class Stateful(Native):
    """Cannot be pickled, but says truly what its state is."""

    def get_state(self) -> dict[str, Any]:
        return {"steps": self.steps, "place": self.place.copy()}

    def set_state(self, state: Any) -> None:
        self.steps, self.place = state["steps"], state["place"].copy()


class Forgetful(Walk):
    """Says that its state can be kept, and keeps none of it."""

    def get_state(self) -> dict[str, Any]:
        return {}

    def set_state(self, state: Any) -> None:
        self.steps = 0


class Threaded(Native):
    """Runs a thread, and cannot be pickled: only repeating is left."""

    def __init__(self, length: int = 37) -> None:
        super().__init__(length)
        threading.Thread(target=time.sleep, args=(1e6,), daemon=True).start()


class Busy(Walk):
    """Runs a thread, which is stopped for pickling: neither to be forked nor to be tried out."""

    def __init__(self, length: int = 37) -> None:
        super().__init__(length)
        self.thread: Any = threading.Thread(target=time.sleep, args=(1e6,), daemon=True)
        self.thread.start()

    def __getstate__(self) -> dict[str, Any]:
        return {key: value for key, value in self.__dict__.items() if key != "thread"}


class Erratic(Walk):
    """Draws from the system, which cannot be repeated."""

    def step(self, action: Any) -> Step:
        _, reward, terminated, truncated, info = super().step(action)
        self.place[2] = int.from_bytes(os.urandom(4), "little")
        return self.place.copy(), reward, terminated, truncated, info


class Mortal(Walk):
    """Dies at the seventh step of an episode if the action is 2: it exits, gets a signal, or never answers."""

    def __init__(self, how: str = "exit") -> None:
        super().__init__(20)
        self.how = how

    def step(self, action: Any) -> Step:
        if self.steps == 6 and action == 2:
            if self.how == "exit":
                os._exit(3)
            if self.how == "segv":
                os.kill(os.getpid(), signal.SIGSEGV)
            time.sleep(1e6)
        return super().step(action)


class Stillborn(Walk):
    """Is built, and dies whenever an episode is to begin: it exits, or never answers."""

    def __init__(self, how: str = "exit") -> None:
        super().__init__()
        self.how = how

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        if self.how == "exit":
            os._exit(3)
        time.sleep(1e6)
        return super().reset(seed=seed)


class Reading(Walk):
    """Observes text and an array, and answers far more than fits into shared memory."""

    observation_space: Any = spaces.Dict(
        {"said": spaces.Text(20_000, min_length=0), "place": spaces.Box(-np.inf, np.inf, (3,), np.float64)}
    )
    action_space: Any = spaces.Dict({"move": spaces.Discrete(3), "say": spaces.Text(8, min_length=0)})

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        place, info = super().reset(seed=seed)
        return {"said": "", "place": place}, info

    def step(self, action: Any) -> Step:
        place, reward, terminated, truncated, info = super().step(action["move"])
        said = (action["say"] + "abcdefgh") * 2000
        return {"said": said[:20_000], "place": place}, reward, terminated, truncated, {**info, "large": "x" * 50_000}


class Large(Walk):
    """Tells more than fits into shared memory, and begins with how many steps it has taken."""

    def step(self, action: Any) -> Step:
        place, reward, terminated, truncated, _ = super().step(action)
        return place, reward, terminated, truncated, {"large": f"{self.steps} " * 20_000}


class Filmed(Walk):
    """Draws its frames, and an attribute, with noise of its own generator, as a camera has it."""

    metadata: Any = {"render_modes": ["rgb_array"]}  # noqa: RUF012  # as Gymnasium has it
    render_mode = "rgb_array"

    def __init__(self, render_mode: str | None = None) -> None:
        super().__init__()

    @property
    def mood(self) -> float:
        return float(self.np_random.random())

    def render(self) -> Any:
        return self.np_random.integers(0, 255, (4, 4, 3)).astype(np.uint8)


class Stubborn(Large):
    """Refuses to be set an attribute, at such length that it does not fit into shared memory."""

    @property
    def mood(self) -> str:
        return "bad"

    @mood.setter
    def mood(self, value: Any) -> None:
        raise ValueError("no" * 20_000)


class Heavy(Walk):
    """Has so large a state that forking is far cheaper than saving it."""

    def __init__(self, length: int = 37) -> None:
        super().__init__(length)
        self.bulk = {number: str(number) for number in range(200_000)}


class Filled(Walk):
    """Uses more than half of the memory it may: to save its state would kill it."""

    def __init__(self, length: int = 37) -> None:
        super().__init__(length)
        self.bulk = bytearray(b"x") * (150 << 20)


class Refusing(Stateful):
    """Takes on no state any more once it was told so, and explains that at length."""

    refuses = False

    def set_state(self, state: Any) -> None:
        if self.refuses:
            raise ValueError("no" * 20_000)
        super().set_state(state)

    def say(self, length: int) -> str:
        return "x" * length


class Bulky(Walk):
    """Has a state of some size."""

    def __init__(self, kib: int = 0) -> None:
        super().__init__()
        self.bulk = bytes(kib << 10)


class Logging(Walk):
    """Writes every step to a file that is open, and pays what the file holds."""

    def __init__(self, length: int = 37) -> None:
        super().__init__(length)
        self.log = open("/tmp/walk.log", "w+")  # noqa: SIM115  # open as long as the environment

    def step(self, action: Any) -> Step:
        place, _, terminated, truncated, info = super().step(action)
        self.log.write(f"{action}\n")
        self.log.flush()
        return place, float(self.log.tell()), terminated, truncated, info


class Particular(Walk):
    """Hangs at an action that its user knows to avoid, and in get_state."""

    def step(self, action: Any) -> Step:
        while action != 0:
            time.sleep(1)
        return super().step(action)

    def get_state(self) -> Any:
        while True:
            time.sleep(1)

    def set_state(self, state: Any) -> None:
        self.steps = state


class Itself(Walk):
    """Tells what makes its machine one of its own."""

    def who(self) -> dict[str, Any]:
        with open("/etc/machine-id", encoding="ascii") as stream:
            machine = stream.read().strip()
        return {
            "host": os.uname().nodename,
            "machine": machine,
            "random": os.urandom(16).hex(),
            "time": time.time(),
            "user": os.getuid(),
        }


class Looking(Walk):
    """Says what is in files, and tries to write some."""

    def read(self, path: str) -> str:
        with open(path, encoding="utf-8") as stream:
            return stream.read()

    def write(self, path: str) -> str:
        try:
            with open(path, "w", encoding="utf-8") as stream:
                stream.write("x")
        except OSError as error:
            return f"refused: {error.strerror}"
        return "written"
