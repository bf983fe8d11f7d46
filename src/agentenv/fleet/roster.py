"""The environments of a run and where each stands: who waits, who holds a place, who is finished.

Admission is decided here by the pure rules of ``admission``; nothing is started or ended.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence

from agentenv.config import EnvironmentConfig
from agentenv.errors import Cause
from agentenv.fleet.admission import Machine, Need, next_starts, refuse_impossible
from agentenv.fleet.progress import EnvState, Progress


class Roster:
    """All environments of one run.

    Attributes:
        environments: By id, in the order of the configuration.
        progress: What is known of each, likewise.
    """

    def __init__(self, environments: Sequence[EnvironmentConfig], machine: Machine, max_parallel: int | None) -> None:
        """Queue everybody.

        Raises:
            RuntimeUnavailable: Somebody will never fit into this machine.
        """
        refuse_impossible(map(_need, environments), machine)
        self.environments = {environment.id: environment for environment in environments}
        self.progress = {e.id: Progress(e.id, 0 if e.command else e.episodes) for e in environments}
        self._machine = machine
        self._max_parallel = max_parallel
        self._waiting = deque(environments)
        self._places: dict[str, Need] = {}
        self._began: dict[str, float] = {}

    @property
    def finished(self) -> bool:
        """Whether nothing more will happen to anybody."""
        return all(progress.finished for progress in self.progress.values())

    @property
    def untouched(self) -> bool:
        """Whether nobody has got further than being started."""
        return all(p.state in (EnvState.QUEUED, EnvState.STARTING) for p in self.progress.values())

    def admit(self) -> list[EnvironmentConfig]:
        """Take those from the queue that may start now, and give each a place."""
        needs = [_need(environment) for environment in self._waiting]
        count = next_starts(needs, self._places.values(), self._machine, max_parallel=self._max_parallel)
        batch = [self._waiting.popleft() for _ in range(count)]
        for environment in batch:
            self._places[environment.id] = _need(environment)
            self.progress[environment.id].state = EnvState.STARTING
        return batch

    def leave(self, env_id: str) -> None:
        """Give its place to others. Only when it is really gone."""
        self._places.pop(env_id)

    def begin(self, env_id: str) -> Progress:
        """It is up: its time counts from now."""
        self._began[env_id] = time.monotonic()
        self.progress[env_id].state = EnvState.RUNNING
        return self.progress[env_id]

    def tell_time(self, env_id: str, now: float) -> None:
        """Bring the time it has been up to date."""
        self.progress[env_id].active_s = now - self._began[env_id]

    def fail(self, env_id: str, cause: Cause) -> None:
        """It is finished, because of this."""
        self.progress[env_id].state = EnvState.FAILED
        self.progress[env_id].cause = cause

    def interrupt(self, *states: EnvState) -> None:
        """Nothing more will happen to those in these states."""
        if EnvState.QUEUED in states:
            self._waiting.clear()
        for progress in self.progress.values():
            if progress.state in states:
                progress.state = EnvState.INTERRUPTED


def _need(environment: EnvironmentConfig) -> Need:
    return Need(environment.id, environment.memory_mb, environment.vcpu_count)
