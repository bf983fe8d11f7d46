"""What lets an ``AgentENV`` be kept, gone back to and forked."""

from __future__ import annotations

import contextlib
import copy
import itertools
import logging
import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

from agentenv.config import EnvironmentConfig
from agentenv.envs.snapshots import Snapshot, Spawns, check_snapshot, load_snapshot, single_seed, spread_seeds
from agentenv.errors import SnapshotError
from agentenv.fleet import moments, restoring
from agentenv.fleet.context import RunContext
from agentenv.fleet.fleet import Fleet
from agentenv.fleet.moments import How
from agentenv.sandbox.contract import ParkedCopy, Sandbox
from agentenv.sandbox.workbench import Kept

logger = logging.getLogger("agentenv.envs")

_forked = itertools.count(1)
_FORKERS = 3


class Branching:
    """A part of ``AgentENV``; the attributes are that class's."""

    env_id: str
    action_space: Any
    spec: Any
    _environment: EnvironmentConfig
    _context: RunContext
    _fleet: Fleet
    _spawns: Spawns
    _variable: bool
    _leaves: Sequence[object]
    _first_seed: int | None
    _read: Callable[[Sequence[object]], Any]

    def __init__(self, source: Any, *, env_id: str | None = None) -> None:
        raise NotImplementedError  # AgentENV's

    def close(self) -> None:
        raise NotImplementedError  # AgentENV's

    def _opened(self) -> Fleet:
        raise NotImplementedError  # AgentENV's

    def _open(
        self, environment: EnvironmentConfig, context: RunContext, sandbox: Sandbox | None, reseed: int | None
    ) -> None:
        raise NotImplementedError  # AgentENV's

    @classmethod
    def from_snapshot(cls, source: str | os.PathLike[str] | Snapshot, *, reseed: int | None = None) -> Self:
        """An environment of its own that goes on from a snapshot.

        Args:
            source: A snapshot, or the path of a file written by ``Snapshot.save``.
            reseed: Seed of new random streams; None goes on with the snapshot's.

        Raises:
            SnapshotError: It is damaged, of another environment, or a process in another sandbox.
            ConfigError, RuntimeUnavailable, EnvError: As for the constructor.
        """
        if not isinstance(source, str | os.PathLike | Snapshot):
            raise TypeError(f"from_snapshot: expected a Snapshot or the path of one, got {type(source).__name__}")
        single_seed(reseed)
        snapshot = source if isinstance(source, Snapshot) else load_snapshot(Path(source))
        return cls._begin_from(snapshot, reseed)

    def snapshot(self, how: How | None = None) -> Snapshot:
        """Keep this moment, to go back to or to begin others from.

        Args:
            how: "state", "pickle", "fork" or "replay" (see ``Snapshot.how``); None takes the first that works.

        Raises:
            SnapshotError: It cannot be kept, or not so; says why.
        """
        fleet = self._opened()
        self._require_observation()
        moment = moments.take(fleet, 0, how)
        observation = copy.deepcopy(self._read(self._leaves))
        config = replace(self._context.config, environments=(self._environment,))
        return Snapshot(self.env_id, moment.how, moment.reasons, observation, False, config, moment)

    def restore(self, snapshot: Snapshot, *, reseed: int | str | None = None) -> Any:
        """Go back to a snapshot, or on from one of another environment of the same kind.

        Args:
            snapshot: From ``snapshot``, or ``agentenv.load_snapshot(path)``.
            reseed: None goes on with the snapshot's random streams, so that the same actions lead to the same future as
                they did from there; an int, the seed of new ones; "spawn": others at every call.

        Returns:
            The observation of that moment.

        Raises:
            TypeError, ValueError: It is no snapshot, or ``reseed`` none of these.
            SnapshotError: It cannot be gone back to from here; says why. Where it fails on its way, the environment is
                brought back to where it was, when it is asked next.
        """
        fleet = self._opened()
        check_snapshot(snapshot, self._environment)
        seeds = single_seed(reseed, lambda: self._spawns.take("restore", [self._environment])[0])
        restoring.put(fleet, {0: snapshot.moment}, seeds)
        self._leaves = fleet.put_observation(0, snapshot.observation)
        return copy.deepcopy(snapshot.observation)

    def fork(self, n: int = 1, *, reseed: int | str | None = None) -> list[Self]:
        """Copies of this environment as it is now, each a process of its own that goes on from here.

        They share this one's sandbox with its limits and files; closing this one leaves them alive. Where the process
        cannot be copied (threads, child processes), each gets a sandbox of its own and the saved state instead. Of an
        environment in a machine the whole machine is copied, and each copy is a sandbox of its own.

        Args:
            n: How many.
            reseed: None: all go on with this one's random streams, so that the same actions lead to the same future; an
                int or "spawn": each gets its own, with "spawn" others at every call.

        Raises:
            SnapshotError: It can be neither copied nor saved; says why.
        """
        fleet = self._opened()
        if not isinstance(n, int) or isinstance(n, bool) or n < 1:
            raise ValueError(f"fork(n): expected a number of copies of at least 1, got {n!r}")
        self._require_observation()
        fleet.recovery.mend(0)
        each = spread_seeds(reseed, n, self._spawns.take("fork", [self._environment] * n))
        turn = threading.Lock()
        if n == 1 and fleet.sandboxes[0].copying is not None:
            return [self._fork(fleet, each[0], None, turn)]
        stem = self._make_stem(fleet)
        # While one copy is made inside, the host's part of another is done.
        with ThreadPoolExecutor(_FORKERS, "agentenv-fork") as pool:
            begun = [pool.submit(self._fork, fleet, seed, stem, turn) for seed in each]
            wait(begun, return_when=FIRST_EXCEPTION)
            begun = [one for one in begun if not one.cancel()]  # what was refused to one is refused to the rest
            wait(begun)
        if stem is not None:
            stem.drop()
        failed = [one.exception() for one in begun if one.exception() is not None]
        made = [one.result() for one in begun if one.exception() is None]
        if failed:
            for env in made:
                env.close()
            raise failed[0]  # type: ignore[misc]  # there is one: it was asked for above
        return made

    def _make_stem(self, fleet: Fleet) -> ParkedCopy | Kept | None:
        """A parked copy to make many from, which does nothing else, so that copying it costs less; or a snapshot."""
        try:
            return moments.take(fleet, 0, "fork" if fleet.sandboxes[0].copying is not None else "machine").parked
        except SnapshotError as error:
            logger.debug("%s", error)
            return None

    def _fork(
        self, fleet: Fleet, seed: int | None, stem: ParkedCopy | Kept | None, turn: AbstractContextManager[Any]
    ) -> Self:
        sandbox_id = f"{self.env_id[:40]}.fork{next(_forked)}"
        child = type(self).__new__(type(self))
        child.action_space = copy.deepcopy(self.action_space)
        child.spec, child._first_seed = self.spec, None
        try:
            with contextlib.nullcontext() if isinstance(stem, Kept) else turn:
                sandbox = moments.branch(fleet, sandbox_id, stem, turn)
            with turn:
                self._context.share()
            own = {"id": sandbox_id} if seed is None else {"id": sandbox_id, "seed": seed}
            child._open(self._environment.model_copy(update=own), self._context, sandbox, seed)
            if seed is not None and isinstance(stem, Kept):
                restoring.reseed(child._fleet, 0, seed)
        except SnapshotError as error:
            logger.info("%s", error)
            with turn:
                kept = self.snapshot()
            return self._begin_from(kept, seed)
        with turn:
            observation = self._read(self._leaves)
            moments.inherit(child._fleet, fleet, seed)
        child._leaves = child._fleet.put_observation(0, observation)
        return child

    def _require_observation(self) -> None:
        if self._variable and not self._leaves:
            raise SnapshotError(f"{self.env_id}: there is no observation yet that could be kept: call reset() first")

    @classmethod
    def _begin_from(cls, snapshot: Snapshot, reseed: int | None) -> Self:
        env = cls(snapshot.config, env_id=snapshot.env_id)
        try:
            env.restore(snapshot, reseed=reseed)
        except BaseException:
            env.close()
            raise
        return env
