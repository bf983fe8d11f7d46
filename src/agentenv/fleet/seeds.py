"""One integer at the top, a stream of its own for everything below.

Every seed is derived from the root and from the environment's *id*, by numpy's ``SeedSequence``
(https://numpy.org/doc/stable/reference/random/parallel.html): never from a position. Adding, removing or reordering
environments, or changing how many run at once or share a sandbox, changes nobody's seed. Nothing here draws random
numbers, and nothing is kept: the same question has the same answer in every process.
"""

from __future__ import annotations

import hashlib
import os
from enum import IntEnum

import numpy as np

# A root we draw ourselves stays below 2**53, so that it survives a JSON reader that keeps numbers as doubles.
_DRAWN_BITS = 53
_WORDS = 8


class _Purpose(IntEnum):
    """Part of every key. The values are part of what makes old runs reproducible: never renumber."""

    ENVIRONMENT = 0
    ACTIONS = 1
    POLICY = 2


class Seeds:
    """Derives the seeds of a run.

    The seeds are 31 bits wide, because that is what every ``reset(seed=)`` accepts (the emulator of the Atari
    environments takes no more). With 31 bits, two among 10 000 environments share a seed for about one root in
    fifty; up to 100 environments it is one root in 400 000.

    Args:
        root: The run's seed; None draws one, which ``root`` then tells and the manifest records.

    Raises:
        ValueError: the root is not an integer from 0 to 2**128 - 1.
    """

    def __init__(self, root: int | None = None) -> None:
        if root is None:
            root = int.from_bytes(os.urandom(8), "little") >> (64 - _DRAWN_BITS)
        self._root = _checked(root, "root seed")

    @property
    def root(self) -> int:
        """The run's seed, given or drawn: everything follows from it."""
        return self._root

    def environment(self, env_id: str, *, seed: int | None = None, episode: int = 0) -> int:
        """Returns what to pass to ``reset(seed=)`` for an episode of an environment.

        Without an explicit seed it depends on the root, the id and the episode. With one, episode 0 gets exactly that
        seed and episode n a seed that depends on it and on n alone: neither on the root nor on the id, so that two
        environments given the same seed play the same episodes.

        Args:
            env_id: The environment's id.
            seed: The environment's own seed from its configuration, which overrides the root.
            episode: The number of the episode, from 0.

        Returns:
            An integer from 0 to 2**31 - 1, or ``seed`` itself.

        Raises:
            ValueError: ``seed`` or ``episode`` is negative or not an integer.
        """
        _checked(episode, "episode")
        if seed is None:
            return self._derive(env_id, _Purpose.ENVIRONMENT, episode)
        _checked(seed, f"seed of environment {env_id!r}")
        return seed if episode == 0 else _draw(seed, (_Purpose.ENVIRONMENT, episode))

    def actions(self, env_id: str, *, seed: int | None = None) -> int:
        """Returns the seed of the environment's action space, from 0 to 2**31 - 1.

        Like ``environment``, it depends on the environment's own ``seed`` alone where there is one.
        """
        if seed is None:
            return self._derive(env_id, _Purpose.ACTIONS, 0)
        return _draw(_checked(seed, f"seed of environment {env_id!r}"), (_Purpose.ACTIONS, 0))

    def policy(self, env_id: str) -> int:
        """Returns the seed of the environment's policy, from 0 to 2**31 - 1."""
        return self._derive(env_id, _Purpose.POLICY, 0)

    def __repr__(self) -> str:
        return f"Seeds({self._root})"

    def _derive(self, env_id: str, purpose: _Purpose, episode: int) -> int:
        return _draw(self._root, (*id_words(env_id), purpose, episode))


def id_words(env_id: str) -> tuple[int, ...]:
    """Returns an id as eight 32-bit words, its SHA-256: Python's own ``hash`` differs from process to process."""
    digest = hashlib.sha256(env_id.encode("utf-8", "surrogatepass")).digest()
    return tuple(int.from_bytes(digest[4 * i : 4 * i + 4], "little") for i in range(_WORDS))


def _draw(entropy: int, key: tuple[int, ...]) -> int:
    state = np.random.SeedSequence(entropy, spawn_key=tuple(int(word) for word in key)).generate_state(1, np.uint32)
    return int(state[0]) >> 1


def _checked(value: int, what: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 2**128:
        raise ValueError(f"{what}: expected an integer from 0 to 2**128 - 1, got {value!r}")
    return value
