"""Stepping everything a configuration names with random actions, for as long as one likes.

Environments that stand in the same table, or are built the same way, are one ``AgentVectorEnv``: the face that trainers
use is what is watched. What fails is counted, reset and stepped on; only failures without a single step in between end
it.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import Any, Self

from agentenv.config import Config, EnvironmentConfig
from agentenv.envs.vector import AgentVectorEnv
from agentenv.errors import CauseKind, ConfigError, Problem, SandboxError
from agentenv.fleet.context import RunContext
from agentenv.fleet.rundir import RunDir
from agentenv.sandbox.contract import Sandbox
from agentenv.soak.latency import Latencies
from agentenv.telemetry.text import one_line

_PATIENCE = 50
# What a kill from outside does not look like.
_OWN_FAULTS = (CauseKind.EXCEPTION, CauseKind.OUT_OF_MEMORY, CauseKind.DISK_FULL, CauseKind.START_FAILED)


class RecordedVectorEnv(AgentVectorEnv):
    """An ``AgentVectorEnv`` whose environments write their output into the folder of a run."""

    def __init__(self, config: Config, run: RunDir) -> None:
        self._recorded_in = run
        super().__init__(config)

    @property
    def context(self) -> RunContext:
        """What its sandboxes share."""
        return self._context

    def _make_context(self, config: Config, members: Sequence[EnvironmentConfig]) -> RunContext:
        context = super()._make_context(config, members)
        context.run = self._recorded_in  # of the run's folder it takes the logs only
        return context


@dataclass(slots=True)
class Tally:
    """What happened so far.

    Attributes:
        steps: Environment steps, of all environments together.
        stepping_s: Seconds spent on them and on choosing actions.
        losses: Errors a kill explains: a sandbox was gone.
        failures: Errors of the environments themselves.
        last_failure: The last of those, in a line.
        latencies: Of the vectors' steps, since the last look.
    """

    steps: int = 0
    stepping_s: float = 0.0
    losses: int = 0
    failures: int = 0
    last_failure: str = ""
    latencies: Latencies = field(default_factory=Latencies)


class Driver:
    """A context manager that holds the vectors.

    Attributes:
        vectors: One for each group of environments that are built the same way.
        tally: What happened so far.
    """

    def __init__(self, config: Config, run: RunDir, *, killed_from_outside: bool = False) -> None:
        """Start all environments.

        Args:
            config: The configuration.
            run: Where their output goes.
            killed_from_outside: Whether a sandbox that is gone is a loss, not a failure of its own.

        Raises:
            ConfigError: Environments built the same way have different spaces, or one is a command.
            RuntimeUnavailable, EnvError: As for ``AgentVectorEnv``.
        """
        self.tally = Tally()
        self.vectors: list[RecordedVectorEnv] = []
        self._killed_from_outside = killed_from_outside
        self._in_a_row = 0
        self._stack = ExitStack()
        with ExitStack() as undo:
            for part in split_by_kind(config):
                try:
                    vector = RecordedVectorEnv(part, run)
                except ConfigError:
                    raise
                except ValueError as error:  # their spaces differ
                    raise ConfigError([Problem(config.source, "environments", str(error))]) from error
                undo.callback(vector.close)
                self.vectors.append(vector)
            self._stack = undo.pop_all()

    def reset(self) -> None:
        """Start the first episodes."""
        for vector in self.vectors:
            self._guarded(vector, vector.reset)

    def step(self) -> None:
        """One step of every vector.

        Raises:
            SandboxError: So many failures in a row that nothing is to be learned any more.
        """
        began = time.perf_counter()
        for vector in self.vectors:
            actions = vector.action_space.sample()
            asked = time.perf_counter_ns()
            if self._guarded(vector, lambda v=vector, a=actions: v.step(a)):
                self.tally.latencies.add(time.perf_counter_ns() - asked)
                self.tally.steps += vector.num_envs
                self._in_a_row = 0
        self.tally.stepping_s += time.perf_counter() - began

    def sandboxes(self) -> Sequence[Sandbox]:
        """All of them, as they are now."""
        return [sandbox for vector in self.vectors for sandbox in vector.sandboxes]

    def close(self) -> None:
        """End everything. Idempotent."""
        self._stack.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _guarded(self, vector: RecordedVectorEnv, act: Any) -> bool:
        try:
            act()
        except SandboxError as error:
            self._note(error)
            # What this one meets, the next step meets again, and it is counted there.
            with contextlib.suppress(SandboxError):
                vector.reset()
            return False
        return True

    def _note(self, error: SandboxError) -> None:
        if self._killed_from_outside and error.cause.kind not in _OWN_FAULTS:
            self.tally.losses += 1
        else:
            self.tally.failures += 1
            self.tally.last_failure = one_line(str(error), 500)
        self._in_a_row += 1
        if self._in_a_row >= _PATIENCE:
            raise error


def split_by_kind(config: Config) -> list[Config]:
    """One configuration for each kind of environment: those built by the same name, with the same arguments."""
    kinds: dict[str, list[EnvironmentConfig]] = {}
    for environment in config.environments:
        built = (
            environment.env,
            environment.env_kwargs,
            [(one.wrapper, one.kwargs) for one in environment.wrappers],
            environment.max_episode_steps,
            environment.render_mode,
            environment.command,
        )
        kinds.setdefault(repr(built), []).append(environment)
    return [replace(config, environments=tuple(group)) for group in kinds.values()]
