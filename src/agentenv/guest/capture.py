"""The state of one environment as bytes, made and read only inside the sandbox; to the host they are opaque.

Every wrapper and the environment itself are layers. A capture holds what is in each of them, and the global random
generators; restoring puts it back into the same chain of objects, built anew from the same description. What a layer
says of itself comes first: ``get_state``/``set_state`` (or ``clone_state``/``restore_state``, the Atari emulator's
names), then its own ``__getstate__``, then its attributes. ``gymnasium.utils.EzPickle``'s way is not used: it restores
a new environment, not a running one.

Whether a way really holds the whole state is not believed but tried, see ``proven``.
"""

from __future__ import annotations

import contextlib
import copy
import inspect
import io
import math
import os
import pickle
import random
import resource
import select
import signal
import stat
from collections.abc import Callable, Iterator
from time import perf_counter
from typing import Any

import cloudpickle
import numpy as np
from gymnasium.utils import EzPickle

from agentenv.guest.physics import Physics

_TRIAL_STEPS = 12
_TRIAL_S = 1.0
_DUMP_S = 2.0
_PAIRS = (("get_state", "set_state"), ("clone_state", "restore_state"))
_RANDOM = ("_np_random", "_np_random_seed")

_target: list[Any] = []  # the layers that a capture being read belongs to, the innermost last


class Unfit(Exception):
    """This environment's state cannot be captured; says why."""


def _layer(position: int) -> Any:
    return _target[position]


def _part(name: str) -> Any:
    return _target[-1].__dict__[name]


def _new(kind: type, state: dict[str, Any]) -> Any:
    made: Any = object.__new__(kind)
    made.__dict__.update(state)
    return made


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]  # cloudpickle ships no types
    def __init__(self, file: io.BytesIO, layers: list[Any], parts: dict[int, str]) -> None:
        super().__init__(file, protocol=5)
        self._positions = {id(layer): position for position, layer in enumerate(layers)}
        self._parts = parts

    def reducer_override(self, obj: Any) -> Any:
        position = self._positions.get(id(obj))
        if position is not None:
            return _layer, (position,)
        part = self._parts.get(id(obj))
        if part is not None:
            return _part, (part,)
        if isinstance(obj, EzPickle):
            return _new, (type(obj), obj.__dict__)
        return super().reducer_override(obj)


class Capture:
    """Captures and restores one environment.

    Attributes:
        how: "state" (the environment's own methods) or "pickle" (its attributes).
    """

    def __init__(self, env: Any) -> None:
        """Find out what the environment offers; nothing is captured yet."""
        self._layers = _chain(env)
        base = self._layers[-1]
        self._physics = Physics(base)
        pairs = [pair for pair in _PAIRS if all(callable(getattr(base, name, None)) for name in pair)]
        self._methods: tuple[Callable[[], Any], Callable[[Any], Any]] | None = None
        if pairs:
            get, put = (getattr(base, name) for name in pairs[0])
            if "include_rng" in inspect.signature(get).parameters:
                plain_get = get
                get = lambda: plain_get(include_rng=True)  # noqa: E731  # one argument more, nothing else
            self._methods = get, put
        self.how = "state" if self._methods else "pickle"

    def dump(self, ended: bool) -> bytes:
        """The state as bytes.

        Args:
            ended: Whether the episode is over; kept with it.

        Raises:
            Unfit: It cannot be captured.
        """
        try:
            with _in_time():
                return self._dump(ended)
        except Exception as error:
            name = type(self._layers[-1]).__name__
            raise Unfit(f"{name} cannot be captured: {type(error).__name__}: {error}") from error

    def _dump(self, ended: bool) -> bytes:
        states = [_state_of(layer) for layer in self._layers[:-1]]
        base = self._layers[-1]
        if self._methods is not None:
            states.append([self._methods[0](), {name: base.__dict__.get(name) for name in _RANDOM}])
        else:
            states.append(_state_of(base))
        light = self._methods is None and self._physics.observe()
        buffer = io.BytesIO()
        _Pickler(buffer, self._layers, self._physics.parts() if light else {}).dump(states)
        physics = self._physics.read() if light else None
        generators = random.getstate(), np.random.get_state(legacy=False)
        return pickle.dumps((ended, generators, physics, buffer.getvalue()), 5)

    def load(self, data: bytes) -> bool:
        """Put a captured state back; returns whether the episode was over then."""
        ended, (python_state, numpy_state), physics, body = pickle.loads(data)
        _target[:] = self._layers
        try:
            states = pickle.loads(body)
        finally:
            _target.clear()
        base = self._layers[-1]
        if len(states) != len(self._layers):
            raise ValueError(f"expected the state of {len(self._layers)} layers of wrappers, got {len(states)}")
        for layer, state in zip(self._layers[:-1], states[:-1]):
            _put_back(layer, state)
        if self._methods is not None:
            own, generators = states[-1]
            for name, value in generators.items():
                if name in base.__dict__:
                    base.__dict__[name] = value
            self._methods[1](own)
        else:
            _put_back(base, states[-1])
        if physics is not None:
            self._physics.write(physics)
        random.setstate(python_state)
        np.random.set_state(numpy_state)
        return bool(ended)

    def proven(self, env: Any, data: bytes, ended: bool, action: Any = None) -> str:
        """Try a capture just made in a forked child: "" when it brings back the same future, else what differs.

        Args:
            env: The environment, in the state that ``data`` holds.
            data: From ``dump``.
            ended: Whether its episode is over.
            action: One that was taken before, and did no harm; None draws some.
        """

        def trial() -> str:
            space = copy.deepcopy(env.action_space)  # drawing from its own would change the environment's state
            actions = [space.sample() if action is None else action for _ in range(_TRIAL_STEPS)]
            expected = _future(env, actions, ended, budget_s=_TRIAL_S / 3)
            self.load(data)
            found = _future(env, actions[: len(expected) - ended], ended)
            if len(found) != len(expected):
                return f"{len(expected)} steps became {len(found)} after restoring"
            for number, (one, other) in enumerate(zip(expected, found)):
                if one != other:
                    return f"step {number + 1} after restoring differs"
            return ""

        return _in_a_child(trial)

    def fall_back(self) -> bool:
        """Go on with the attributes where the environment's own methods do not hold all; False if that was so."""
        if self._methods is None:
            return False
        self._methods, self.how = None, "pickle"
        return True


def _chain(env: Any) -> list[Any]:
    layers = [env]
    while (inner := layers[-1].__dict__.get("env")) is not None and hasattr(inner, "step"):
        layers.append(inner)
    return layers


def _has_own_getstate(layer: Any) -> bool:
    found = getattr(type(layer), "__getstate__", None)
    plain = getattr(object, "__getstate__", None)
    return found is not None and found is not plain and found is not EzPickle.__getstate__


def _state_of(layer: Any) -> Any:
    if _has_own_getstate(layer):
        return ("own", layer.__getstate__())
    return ("attributes", layer.__dict__)


def _put_back(layer: Any, tagged: Any) -> None:
    kind, state = tagged
    if kind == "own" and hasattr(layer, "__setstate__"):
        layer.__setstate__(state)
        return
    layer.__dict__.clear()
    layer.__dict__.update(state)


def _future(env: Any, actions: list[Any], ended: bool, budget_s: float = math.inf) -> list[bytes]:
    """What comes out of a reset, if the episode has ended, and of steps: all, or one and those there is time for."""
    began = perf_counter()
    seen = [pickle.dumps(_as_bytes(env.reset()[0]))] if ended else []
    for number, action in enumerate(actions, 1):
        observation, reward, terminated, truncated, _info = env.step(action)
        seen.append(pickle.dumps((_as_bytes(observation), float(reward), bool(terminated), bool(truncated))))
        if terminated or truncated:
            seen[-1] += pickle.dumps(_as_bytes(env.reset()[0]))
        if (perf_counter() - began) * (number + 1) / number > budget_s:
            break
    return seen


def _as_bytes(value: Any) -> Any:
    """Arrays as what they hold: two equal ones may differ in strides and flags, and so in their pickles."""
    if isinstance(value, dict):
        return {key: _as_bytes(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_as_bytes(item) for item in value]
    return value.tobytes() if isinstance(value, (np.ndarray, np.generic)) else repr(value)


def _in_a_child(trial: Callable[[], str]) -> str:
    """Run it in a fork that prints nothing and lasts a few seconds at most."""
    if threads() > 1:
        return "it cannot be tried out: the environment runs threads"
    if (shared := shared_files()) is not None:
        return f"it cannot be tried out: a copy would share {shared}"
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        with contextlib.suppress(BaseException):
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, 1)
            os.dup2(null, 2)
            # What it writes to files would be there for the environment itself.
            resource.setrlimit(resource.RLIMIT_FSIZE, (0, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))
            try:
                verdict = trial() or "ok"
            except Exception as error:
                verdict = f"restoring fails: {type(error).__name__}: {error}"
            os.write(writer, verdict.encode(errors="replace")[:1000])
        os._exit(0)
    os.close(writer)
    poller = select.poll()
    poller.register(reader, select.POLLIN)
    in_time = bool(poller.poll(int(_TRIAL_S * 1000)))
    said = os.read(reader, 1000).decode(errors="replace") if in_time else ""
    os.close(reader)
    os.kill(pid, signal.SIGKILL)  # it may be stuck, or stopped
    os.waitpid(pid, 0)
    if not in_time:
        return f"trying it out takes more than {_TRIAL_S:g} s"
    return "" if said == "ok" else said or "trying it out killed the process"


@contextlib.contextmanager
def _in_time() -> Iterator[None]:
    """Raise where the environment's own code takes too long; its own use of the alarm goes on afterwards."""

    def late(_number: int, _frame: object) -> None:
        raise TimeoutError(f"that takes more than {_DUMP_S:g} s")

    before = signal.signal(signal.SIGALRM, late)
    rest, _ = signal.setitimer(signal.ITIMER_REAL, _DUMP_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, rest)
        signal.signal(signal.SIGALRM, before)


def shared_files() -> str | None:
    """A file of the environment's that is open: copies would share its position. None where there is none."""
    for name in os.listdir("/proc/self/fd"):
        if int(name) <= 2:
            continue
        with contextlib.suppress(OSError):
            target = os.readlink(f"/proc/self/fd/{name}")
            if target.startswith("/") and not target.startswith("/memfd:") and stat.S_ISREG(os.stat(int(name)).st_mode):
                return f"the open file {target}"
    return None


def threads() -> int:
    """How many threads this process has."""
    try:
        return len(os.listdir("/proc/self/task"))
    except OSError:
        return 1
