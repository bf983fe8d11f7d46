"""What a policy remembers between two episodes, as bytes: so that a run that goes on later decides as it would have.

Kept are the streams of the action space, and of a policy class either what its ``state_dict()`` returns or, where it
has none, those of its attributes that are plain data or numpy generators. Nothing is pickled. What cannot be kept (a
neural network without ``state_dict``, an open file, a ``defaultdict``, more than 64 kB) is not guessed at: it is
reported, and a resumed run begins with a new policy. What is plain comes back as the type it was, and what two
attributes share they share again.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from types import MemberDescriptorType
from typing import Any

import numpy as np
from gymnasium import Space

from agentenv.fleet.sharing import fold, overlapping, unfold
from agentenv.telemetry.text import message_of
from agentenv.wire.opaque import Opaque
from agentenv.wire.values import decode, encode

LIMIT_BYTES = 64 << 10
_PLAIN = (bool, int, float, complex, str, bytes)
_KINDS = "biufcSUMm"
_HEAP_TYPE = 1 << 9  # of a type that was made by a class statement
_REMEDY = "give it state_dict() and load_state_dict()"


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
        try:
            self.gap = "" if policy is None else self._find_gap(policy)
        except Exception as error:  # the policy is somebody else's code
            self.gap = f"looking at it raised {message_of(error)}"

    def capture(self) -> bytes:
        """The state now; empty where it cannot be kept."""
        if self.gap:
            return b""
        value: list[Any] = [[_stream(space.np_random) for space in self._spaces], None]
        if self._policy is not None:
            try:
                value[1] = self._remembered(self._policy)
            except Exception as error:  # the policy is somebody else's code
                self.gap = f"looking at its state raised {message_of(error)}"
                return b""
            if self.gap:
                return b""
            if value[1][0] == "dict" and not _is_plain(value[1][1]):
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
        for base in type(policy).__mro__[:-1]:
            if not base.__flags__ & _HEAP_TYPE:
                return f"it is itself a {base.__name__}; {_REMEDY}"
        attributes = list(_attributes(policy))
        for name, value in attributes:
            if not _is_kept(value):
                return f"its attribute {name!r} is a {type(value).__name__}; {_REMEDY}"
        if overlapping([value for _, value in attributes]):
            return f"two of its arrays are parts of one; {_REMEDY}"
        return ""

    def _remembered(self, policy: Any) -> Any:
        if _has_state_dict(policy):
            state = policy.state_dict()
            return ["dict", dict(state) if isinstance(state, Mapping) else state]
        self.gap = self._find_gap(policy)
        return ["attributes", *fold({name: _kept(value) for name, value in _attributes(policy) if _is_kept(value)})]

    def _recall(self, policy: Any, remembered: Any) -> None:
        form, values, *shared = remembered
        if form == "dict":
            policy.load_state_dict(values)
            return
        for name, value in unfold(values, *shared).items():
            _put_back(policy, name, value)


def _has_state_dict(policy: object) -> bool:
    return callable(getattr(policy, "state_dict", None)) and callable(getattr(policy, "load_state_dict", None))


def _attributes(policy: object) -> Iterator[tuple[str, Any]]:
    # A space is made anew with the policy, and the streams of the action space are kept beside it.
    held = dict(getattr(policy, "__dict__", {}))
    for kind in type(policy).__mro__:
        # What a class with __slots__ keeps is found through these, by the name that it has from outside.
        held |= {name: getattr(policy, name) for name in _slots(kind) if hasattr(policy, name)}
    for name, value in sorted(held.items()):
        if not isinstance(value, Space) and not isinstance(value, type):
            yield name, value


def _slots(kind: type) -> list[str]:
    return [name for name, member in vars(kind).items() if isinstance(member, MemberDescriptorType)]


def _is_kept(value: Any) -> bool:
    return isinstance(value, np.random.Generator | random.Random) or _is_plain(value)


def _is_plain(value: Any) -> bool:
    # By the very type: of a subclass, what it is besides is lost.
    kind = type(value)
    if value is None or kind in _PLAIN:
        return True
    if kind is np.ndarray or (isinstance(value, np.generic) and kind is value.dtype.type):
        return value.dtype.kind in _KINDS
    if kind is dict:
        return all(type(key) in (str, int, bool) and _is_plain(item) for key, item in value.items())
    if kind in (list, tuple, set, frozenset):
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
    held = getattr(policy, name, None)
    if form == "numpy":
        state = _whole_numbers(parts[0])
        # One that is there is set, since others may hold it as well; a policy may also make it when it first decides.
        if not isinstance(held, np.random.Generator) or type(held.bit_generator).__name__ != state["bit_generator"]:
            held = np.random.Generator(_bit_generator(state["bit_generator"]))
            setattr(policy, name, held)
        held.bit_generator.state = state
    elif form == "python":
        if not isinstance(held, random.Random):
            held = random.Random()
            setattr(policy, name, held)
        held.setstate((3, tuple(parts[0]), parts[1]))
    else:
        setattr(policy, name, parts[0])


def _bit_generator(name: str) -> np.random.BitGenerator:
    kind = getattr(np.random, name)
    if not (isinstance(kind, type) and issubclass(kind, np.random.BitGenerator)):
        raise ValueError(f"expected a generator of numpy, got {name!r}")
    return kind()


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
