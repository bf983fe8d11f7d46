"""What a policy remembers between two episodes, as bytes: so that a run that goes on later decides as it would have.

Kept are the streams of the action space, and of a policy class either what its ``state_dict()`` returns or, where it
has none, those of its attributes that are plain data or numpy generators. Nothing is pickled. What cannot be kept (a
neural network without ``state_dict``, an open file, more than 64 kB) is not guessed at: it is reported, and a resumed
run begins with a new policy.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import numpy as np
from gymnasium import Space

from agentenv.wire.opaque import Opaque
from agentenv.wire.values import decode, encode

LIMIT_BYTES = 64 << 10
_PLAIN = (bool, int, float, complex, str, bytes, np.generic)


class PolicyState:
    """Captures and restores the state of one environment's policy.

    Attributes:
        gap: What of it cannot be kept, in words; empty if all is.
    """

    def __init__(self, policy: object | None, action_space: Space[Any]) -> None:
        """Look at what there is.

        Args:
            policy: The instance of a policy class; None for random actions and for plain functions.
            action_space: Whose streams the policy draws from.
        """
        self._policy = policy
        self._spaces = list(_spaces(action_space))
        self.gap = "" if policy is None else self._find_gap(policy)

    def capture(self) -> bytes:
        """The state now; empty where it cannot be kept."""
        if self.gap:
            return b""
        value = [[_stream(space.np_random) for space in self._spaces], None]
        if self._policy is not None:
            try:
                value[1] = self._remembered(self._policy)
            except Exception as error:  # the policy is somebody else's code
                self.gap = f"its state_dict() raised {type(error).__name__}: {error}"
                return b""
            if not _is_plain(value[1]):
                self.gap = "its state is not plain data (numbers, text, lists, dicts, arrays)"
                return b""
        try:
            data = encode(value)
        except ValueError as error:
            self.gap = f"its state cannot be kept: {error}"
            return b""
        if len(data) > LIMIT_BYTES:
            self.gap = f"its state has {len(data)} bytes, at most {LIMIT_BYTES} are kept"
            return b""
        return data

    def restore(self, data: bytes) -> bool:
        """Bring back what ``capture`` gave; False where it does not fit this policy or these spaces."""
        try:
            value: Any = decode(data, max_bytes=1 << 24)
            streams, remembered = value
            if len(streams) != len(self._spaces):
                return False
            for space, stream in zip(self._spaces, streams, strict=True):
                space.np_random.bit_generator.state = _whole_numbers(stream)
            if self._policy is not None:
                self._recall(self._policy, remembered)
        except Exception:  # damaged, of another version, or refused by the policy's own code
            return False
        return True

    def _find_gap(self, policy: object) -> str:
        if _has_state_dict(policy):
            return ""
        for name, value in _attributes(policy):
            if not _is_kept(value):
                return f"its attribute {name!r} is a {type(value).__name__}; give it state_dict() and load_state_dict()"
        return ""

    def _remembered(self, policy: Any) -> Any:
        if _has_state_dict(policy):
            return ["dict", policy.state_dict()]
        self.gap = self._find_gap(policy)
        return ["attributes", {name: _kept(value) for name, value in _attributes(policy) if _is_kept(value)}]

    def _recall(self, policy: Any, remembered: Any) -> None:
        form, values = remembered
        if form == "dict":
            policy.load_state_dict(values)
            return
        for name, value in values.items():
            _put_back(policy, name, value)


def _has_state_dict(policy: object) -> bool:
    return callable(getattr(policy, "state_dict", None)) and callable(getattr(policy, "load_state_dict", None))


def _attributes(policy: object) -> Iterator[tuple[str, Any]]:
    # A space is made anew with the policy, and the streams of the action space are kept beside it.
    for name, value in sorted(getattr(policy, "__dict__", {}).items()):
        if not isinstance(value, Space) and not isinstance(value, type):
            yield name, value


def _is_kept(value: Any) -> bool:
    return isinstance(value, np.random.Generator | random.Random) or _is_plain(value)


def _is_plain(value: Any) -> bool:
    if value is None or isinstance(value, _PLAIN):
        return True
    if isinstance(value, np.ndarray):
        return value.dtype.kind in "biufcSUMm"
    if isinstance(value, dict):
        return all(isinstance(key, str | int) and _is_plain(item) for key, item in value.items())
    if type(value) in (list, tuple, set, frozenset):
        return all(_is_plain(item) for item in value)
    return False


def _kept(value: Any) -> Any:
    if isinstance(value, np.random.Generator):
        return ["numpy", _stream(value)]
    if isinstance(value, random.Random):
        return ["python", list(value.getstate()[1]), value.getstate()[2]]
    return ["plain", value]


def _put_back(policy: Any, name: str, kept: Any) -> None:
    form, *parts = kept
    if form == "numpy":
        getattr(policy, name).bit_generator.state = _whole_numbers(parts[0])
    elif form == "python":
        getattr(policy, name).setstate((3, tuple(parts[0]), parts[1]))
    else:
        setattr(policy, name, parts[0])


def _stream(generator: np.random.Generator) -> Any:
    return _as_text(generator.bit_generator.state)


def _as_text(value: Any) -> Any:
    """A generator's state with its integers of 128 bits as text, which every number's limit lets pass."""
    if isinstance(value, dict):
        return {key: _as_text(item) for key, item in value.items()}
    return f"#{value:x}" if isinstance(value, int) and not isinstance(value, bool) else value


def _whole_numbers(value: Any) -> Any:
    if isinstance(value, Opaque):
        raise ValueError("not the state of a generator")
    if isinstance(value, dict):
        return {key: _whole_numbers(item) for key, item in value.items()}
    return int(value[1:], 16) if isinstance(value, str) and value.startswith("#") else value


def _spaces(space: Space[Any]) -> Iterator[Space[Any]]:
    """A space and all spaces in it, in an order that depends on nothing else."""
    yield space
    for held in vars(space).values():
        if isinstance(held, dict):
            parts: Any = held.values()
        else:
            parts = held if isinstance(held, list | tuple) else [held]
        for part in parts:
            if isinstance(part, Space):
                yield from _spaces(part)
