"""Starting and ending sandboxes off the thread that plays, because both may take as long as an environment likes.

One thread starts, many at a time and each independent of the others' failures; a few threads end. What they did is
collected by the playing thread, which is woken for it. Nothing is decided here.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import TypeVar

from agentenv.config import EnvironmentConfig
from agentenv.errors import AgentEnvError, SandboxError
from agentenv.fleet.context import RunContext
from agentenv.fleet.fleet import Fleet
from agentenv.fleet.reported import cleaned
from agentenv.fleet.starting import start_each
from agentenv.sandbox.cause import is_killed_from_outside
from agentenv.sandbox.contract import Sandbox

logger = logging.getLogger("agentenv.fleet")

Item = TypeVar("Item")

_ENDING_THREADS = 4


@dataclass(frozen=True, slots=True)
class Birth:
    """What became of a request to start.

    Attributes:
        environment: What was to be started.
        result: A fleet of one for an environment, a sandbox for a command, or why there is none.
    """

    environment: EnvironmentConfig
    result: Fleet | Sandbox | Exception


class Births:
    """Starts and ends sandboxes for one run.

    Args:
        context: The run's.
        notify: Called from another thread when there is something to collect.
    """

    def __init__(self, context: RunContext, notify: Callable[[], None]) -> None:
        self._context = context
        self._notify = notify
        self._done: SimpleQueue[Birth] = SimpleQueue()
        self._gone: SimpleQueue[str] = SimpleQueue()
        # Threads that outlive each request: where the kernel ties a child's life to its parent's, it means the thread.
        self._starting = ThreadPoolExecutor(1, "agentenv-start")
        self._ending = ThreadPoolExecutor(_ENDING_THREADS, "agentenv-end")
        self._ends: list[Future[None]] = []

    def start(self, environments: Sequence[EnvironmentConfig]) -> None:
        """Start these, all at once."""
        if environments:
            self._starting.submit(self._start, list(environments))

    def collect(self) -> list[Birth]:
        """What was started or failed since the last call."""
        return _drain(self._done)

    def end(self, held: Fleet | Sandbox, env_id: str) -> None:
        """Close an environment or a command that has ended."""
        self._ends.append(self._ending.submit(self._end, held, env_id))

    def ended(self) -> list[str]:
        """The ids of those that are really gone since the last call."""
        return _drain(self._gone)

    def wait_ended(self, timeout_s: float) -> bool:
        """Wait for everything given to ``end``; whether it was done in time."""
        return not wait(self._ends, timeout_s).not_done

    def close(self) -> None:
        """End the threads. Call after the runtime was closed, which makes whoever waits for a sandbox fail."""
        self._starting.shutdown(wait=True, cancel_futures=True)
        self._ending.shutdown(wait=True)
        for birth in self.collect():
            if isinstance(birth.result, Fleet):
                birth.result.close()
            elif not isinstance(birth.result, Exception):
                birth.result.destroy()

    def _start(self, environments: list[EnvironmentConfig]) -> None:
        failures: dict[str, SandboxError] = {}
        try:
            specs = [self._context.spec(environment.id, [environment]) for environment in environments]
            sandboxes = start_each(self._context.runtime, specs, self._context.output, failures)
        except Exception as error:
            # Not one environment's fault: everybody meets the same.
            for environment in environments:
                self._put(environment, error)
            return
        by_id = {sandbox.spec.id: sandbox for sandbox in sandboxes}
        for environment in environments:
            sandbox = by_id.get(environment.id)
            self._put(
                environment,
                cleaned(failures[environment.id]) if sandbox is None else self._join(environment, sandbox),
            )

    def _join(self, environment: EnvironmentConfig, sandbox: Sandbox) -> Fleet | Sandbox | Exception:
        if environment.command is not None:
            return sandbox
        try:
            try:
                return Fleet(self._context, [environment], sandboxes=[sandbox])
            except SandboxError as error:
                if not is_killed_from_outside(error.cause):
                    raise
                return Fleet(self._context, [environment])
        except Exception as error:
            return error

    def _put(self, environment: EnvironmentConfig, result: Fleet | Sandbox | Exception) -> None:
        self._done.put(Birth(environment, result))
        self._notify()

    def _end(self, held: Fleet | Sandbox, env_id: str) -> None:
        try:
            held.close() if isinstance(held, Fleet) else held.destroy()
        except AgentEnvError as error:
            logger.error("%s", error)
        finally:
            self._gone.put(env_id)
            self._notify()


def _drain(queue: SimpleQueue[Item]) -> list[Item]:
    found: list[Item] = []
    while True:
        try:
            found.append(queue.get_nowait())
        except Empty:
            return found
