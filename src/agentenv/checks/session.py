"""Sandboxes with the environment under examination, in worlds that differ in one thing at a time.

The environment runs where a run of its configuration would have it: same runtime, same limits, same variables. Only
who builds it inside is another (``agentenv.checks.inside``), and a request may take longer, because it is many steps.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Any, Self

from gymnasium import Space

from agentenv.config import Config, EnvironmentConfig
from agentenv.errors import ProtocolError
from agentenv.fleet.context import RunContext
from agentenv.fleet.fleet import Fleet
from agentenv.wire.slot import Op

PROBED = "agentenv.checks.inside:Probed"
BUDGET_S = 0.5
_VARIABLE = "PYTHONHASHSEED"
_ID_LENGTH = 40
_MOST_HASH_SEED = 2**32


@dataclass(frozen=True, slots=True)
class World:
    """What an environment can depend on without having been told to.

    Attributes:
        random_seed: Seed of Python's global generator.
        numpy_seed: Seed of numpy's.
        hash_seed: PYTHONHASHSEED; None is the one a run would have.
        held: What is held still; see ``agentenv.checks.held``.
    """

    random_seed: int = 1
    numpy_seed: int = 1
    hash_seed: int | None = None
    held: tuple[str, ...] = ()


class Ground:
    """Where sessions of one environment are opened; a context manager that leaves nothing behind.

    Args:
        config: The configuration.
        environment: The environment, one of its own.
    """

    def __init__(self, config: Config, environment: EnvironmentConfig) -> None:
        self.environment = environment
        self._config = config
        self._contexts: dict[tuple[int, bool], RunContext] = {}
        self._number = 0
        self.hash_seed = _own_hash_seed()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def runtime_name(self) -> str:
        """The runtime that is used."""
        return self._context(self.hash_seed, held=False).runtime_name

    def spaces(self) -> tuple[Space[Any], Space[Any]]:
        """Build the environment as a run does; returns its observation and action space, rebuilt here.

        Raises:
            SandboxError: It cannot be built.
            ValueError: What it says of itself is not usable.
        """
        fleet = self._fleet(self.environment, World())
        try:
            return fleet.single_observation_space, fleet.single_action_space
        finally:
            fleet.close()

    def open(self, world: World) -> Session:
        """A new instance in a sandbox of its own.

        Raises:
            SandboxError: It cannot be built in this world.
        """
        environment = self.environment
        context = self._context(self._hash_seed(world), held=bool(world.held))
        description = context.spec(environment.id, [environment]).envs[0].to_json()
        probed = environment.model_copy(
            update={
                "env": PROBED,
                "env_kwargs": {
                    "description": description,
                    "random_seed": world.random_seed,
                    "numpy_seed": world.numpy_seed,
                    "held": list(world.held),
                },
                "wrappers": (),
                "max_episode_steps": None,
                "render_mode": None,
            }
        )
        # A request may hold one reset and, up to the budget, any number of steps.
        timeout_s = environment.step_timeout_s + environment.reset_timeout_s + BUDGET_S
        return Session(self._fleet(probed, world), timeout_s)

    def close(self) -> None:
        """End everything. Idempotent."""
        while self._contexts:
            self._contexts.popitem()[1].close()

    def _fleet(self, environment: EnvironmentConfig, world: World) -> Fleet:
        hash_seed = self._hash_seed(world)
        context = self._context(hash_seed, held=bool(world.held))
        self._number += 1
        named = environment.model_copy(
            update={
                "id": f"{environment.id[:_ID_LENGTH]}.check-{self._number}",
                # A death is a finding here, and must not be made up for.
                "on_crash": "raise",
                "restart": "never",
                "checkpoint_every": "never",
            }
        )
        # A runtime may start an interpreter for every sandbox, and not only when it is opened.
        with _hash_seed_of(hash_seed):
            return Fleet(context, [named])

    def _context(self, hash_seed: int, *, held: bool) -> RunContext:
        key = hash_seed, held
        if key not in self._contexts:
            # What is held must be held before the environment's modules are imported: then none is beforehand.
            foreseen = [] if held else [self.environment]
            with _hash_seed_of(hash_seed):
                self._contexts[key] = RunContext(self._config, foreseen, record=False)
        return self._contexts[key]

    def _hash_seed(self, world: World) -> int:
        return self.hash_seed if world.hash_seed is None else world.hash_seed

    def other_hash_seeds(self, count: int) -> list[int]:
        """Hash seeds that differ from the one of a run."""
        return [(self.hash_seed + 1 + index) % _MOST_HASH_SEED for index in range(count)]


class Session:
    """One instance of the environment; a context manager.

    Attributes:
        fleet: The sandbox.
    """

    def __init__(self, fleet: Fleet, timeout_s: float) -> None:
        self.fleet = fleet
        self._timeout_s = timeout_s

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.fleet.close()

    def call(self, name: str, **keywords: Any) -> Any:
        """Call a method of ``agentenv.checks.inside.Probed``.

        Raises:
            SandboxDied, StepTimeout: It ended, or did not answer.
        """
        return self.fleet.call(Op.CALL, [name, [], keywords], [0], self._timeout_s)[0]

    def play(self, actions: Sequence[Any], *, seed: int | None = None, digests: bool = False) -> Played:
        """Take all the actions, in as many requests as that needs; stops after an error of the environment.

        Raises:
            SandboxDied, StepTimeout: It ended, or did not answer.
        """
        played = Played()
        while True:
            rest = list(actions[played.steps :])
            played.add(self.call("play", actions=rest, seed=seed, digests=digests, budget_s=BUDGET_S))
            seed = None
            if played.error or played.steps >= len(actions):
                return played


class Played:
    """What was seen in one or several requests to play.

    Attributes:
        steps: Steps taken.
        episodes: Episodes that ended.
        rewards: Finite rewards, in order.
        step_s, reset_s: How long each took, seconds.
        faults: By kind: how many, in which step first, text.
        states, infos: Digests, where they were asked for.
        drawn: Global generators that were drawn from.
        error: Type, message and traceback of what was raised, or empty.
    """

    def __init__(self) -> None:
        self.steps = 0
        self.episodes = 0
        self.rewards: list[float] = []
        self.step_s: list[float] = []
        self.reset_s: list[float] = []
        self.faults: dict[str, list[Any]] = {}
        self.states: list[bytes] = []
        self.infos: list[dict[str, bytes]] = []
        self.drawn: set[str] = set()
        self.error: list[str] = []

    def add(self, record: dict[str, Any]) -> None:
        """Put what one request reported behind what is known.

        Raises:
            ProtocolError: It is not what ``Probed.play`` reports: the environment answered in its place.
        """
        try:
            self._add(record)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise ProtocolError(
                "asked to play, the environment answered something else than what examines it"
                f" ({type(error).__name__}: {error}); it must leave agentenv.checks.inside alone"
            ) from error

    def _add(self, record: dict[str, Any]) -> None:
        self.steps += int(record["done"])
        self.episodes += int(record["episodes"])
        self.rewards += record["rewards"].tolist()
        self.step_s += record["step_s"].tolist()
        self.reset_s += record["reset_s"].tolist()
        self.states += record["states"]
        self.infos += record["infos"]
        self.drawn |= set(record["drawn"])
        self.error = list(record["error"] or ())
        for kind, (number, step, text) in record["faults"].items():
            known = self.faults.setdefault(str(kind), [0, int(step), str(text)])
            known[0] += int(number)


def varied(world: World, **changes: Any) -> World:
    """The same world but for one thing."""
    return replace(world, **changes)


def _own_hash_seed() -> int:
    given = os.environ.get(_VARIABLE, "0")
    return int(given) if given.isdigit() else 0


@contextlib.contextmanager
def _hash_seed_of(value: int) -> Iterator[None]:
    """Interpreters started in here hash with this seed; the variable is how a runtime is told."""
    before = os.environ.get(_VARIABLE)
    os.environ[_VARIABLE] = str(value)
    try:
        yield
    finally:
        if before is None:
            del os.environ[_VARIABLE]
        else:
            os.environ[_VARIABLE] = before
