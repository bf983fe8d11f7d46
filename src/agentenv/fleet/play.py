"""A run without a trainer: every environment of a configuration, played or run to its end, side by side.

One thread sleeps on the bells of all of them and moves on whoever rang. It never waits for one in particular, so that
a slow, hung or dying environment holds up nobody; starting and ending happen in other threads. An environment that
fails is reported with its cause and stays down; the others go on.
"""

from __future__ import annotations

import contextlib
import logging
import select
import time
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from agentenv.config import Config, EnvironmentConfig
from agentenv.errors import (
    AgentEnvError,
    Cause,
    CauseKind,
    Owner,
    ProtocolError,
    ResourceLimit,
    RuntimeUnavailable,
    SandboxError,
)
from agentenv.fleet.admission import Machine, Need, next_starts, refuse_impossible
from agentenv.fleet.births import Birth, Births
from agentenv.fleet.context import RunContext
from agentenv.fleet.fleet import Fleet
from agentenv.fleet.interrupts import Interrupts, StopNow
from agentenv.fleet.paperwork import Paperwork
from agentenv.fleet.player import Player
from agentenv.fleet.policies import PolicyError, find_policy
from agentenv.fleet.program import Program
from agentenv.fleet.progress import EnvState, Outcome, Progress
from agentenv.fleet.spills import Spills
from agentenv.fleet.summary import Summary
from agentenv.sandbox.runtimes._cgroup import sweep

logger = logging.getLogger("agentenv.fleet")

_TICK_S = 0.2
_USAGE_S = 1.0
_CLOSE_S = 3.0

Running = Player | Program


class Play:
    """One run.

    Attributes:
        progress: What is known of each environment, by id, in the order of the configuration.
        run_dir: The run's directory; set by ``run``.
    """

    def __init__(
        self, config: Config, *, argv: Sequence[str] = (), on_tick: Callable[[Play], None] = lambda _play: None
    ) -> None:
        """Check everything that can be checked before anything is started.

        Args:
            config: The configuration.
            argv: The command line, for the manifest.
            on_tick: Called a few times a second, in the thread that plays.

        Raises:
            ConfigError: A policy cannot be imported.
            RuntimeUnavailable: An environment will never fit into this machine.
        """
        self.config = config
        self._argv = argv
        self._on_tick = on_tick
        self._environments = {environment.id: environment for environment in config.expand()}
        self._machine = Machine.measure()
        refuse_impossible(map(_need, self._environments.values()), self._machine)
        self._policies: dict[str, Callable[..., Any] | None] = {}
        for environment in self._environments.values():
            if environment.command is None and environment.policy not in self._policies:
                self._policies[environment.policy] = find_policy(
                    environment.policy, config.base_dir, where=f"environments.{environment.id}.policy"
                )
        self.progress = {
            environment.id: Progress(environment.id, 0 if environment.command else environment.episodes)
            for environment in self._environments.values()
        }
        self.run_dir: Path | None = None
        self._waiting = deque(self._environments.values())
        self._reserved: dict[str, Need] = {}
        self._running: dict[int, Running] = {}
        self._began: dict[str, float] = {}
        self._stopping = False
        self._started_s: float | None = None
        self._next_usage = 0.0
        self._next_tick = 0.0

    def run(self) -> Summary:
        """Play everything to its end, or to the first or second signal.

        Raises:
            RuntimeUnavailable, ResourceLimit: This machine cannot run it; nothing is left.
        """
        _sweep()
        with Interrupts() as interrupts:
            self._interrupts = interrupts
            self._opened = time.monotonic()
            self._context = RunContext(self.config, list(self._environments.values()), record=True)
            run = self._context.run
            assert run is not None  # it was asked to record
            self.run_dir = run.path
            self._births = Births(self._context, interrupts.wake.set)
            self._spills = Spills(interrupts.wake.set)
            self._epoll = select.epoll()
            self._papers = Paperwork(self._context, run, self._argv)
            try:
                try:
                    self._epoll.register(interrupts.wake.fd, select.EPOLLIN)
                    self._admit()
                    self._papers.open(self._environments.values())
                    interrupts.may_raise = True
                    self._loop()
                    interrupts.may_raise = False
                except StopNow:
                    pass
                self._take_down()
                return self._papers.conclude(
                    list(self.progress.values()),
                    opened=self._opened,
                    ready=self._started_s,
                    number=interrupts.number,
                )
            finally:
                interrupts.may_raise = False
                self._close()

    # -- the loop

    def _loop(self) -> None:
        wake = self._interrupts.wake
        while not all(progress.finished for progress in self.progress.values()):
            for fd, _ in self._epoll.poll(_TICK_S):
                if fd == wake.fd:
                    wake.clear()
                elif fd in self._running:
                    self._advance(self._running[fd])
            for birth in self._births.collect():
                self._receive(birth)
            for player, error in self._spills.collect():
                if error is not None:
                    self._lose(player, error)
                    continue
                self._epoll.register(player.bell, select.EPOLLIN)
                self._proceed(player)
            for env_id in self._births.ended():
                self._reserved.pop(env_id)
            if self._interrupts.count >= 2:
                return
            if self._interrupts.count and not self._stopping:
                self._stop()
            if not self._stopping:
                self._admit()
            now = time.monotonic()
            if now >= self._next_tick:
                self._next_tick = now + _TICK_S
                self._tick(now)

    def _admit(self) -> None:
        needs = [_need(environment) for environment in self._waiting]
        count = next_starts(
            needs, self._reserved.values(), self._machine, max_parallel=self.config.global_.max_parallel_envs
        )
        if not count:
            return
        batch = [self._waiting.popleft() for _ in range(count)]
        now = time.monotonic()
        for environment in batch:
            self._reserved[environment.id] = _need(environment)
            self.progress[environment.id].state = EnvState.STARTING
            self._began[environment.id] = now
        self._births.start(batch)

    def _receive(self, birth: Birth) -> None:
        environment, held = birth.environment, birth.result
        if self._started_s is None:
            self._started_s = time.monotonic()
        if isinstance(held, Exception):
            machine = isinstance(held, RuntimeUnavailable | ResourceLimit)
            if machine and not self._running and not any(progress.finished for progress in self.progress.values()):
                raise held
            self._fail(environment.id, held)
            self._reserved.pop(environment.id)
            return
        if self._stopping:
            self._births.end(held, environment.id)
            return
        progress = self.progress[environment.id]
        progress.state = EnvState.RUNNING
        self._began[environment.id] = time.monotonic()
        self._papers.events.emit("env_started", environment.id, level=logging.DEBUG)
        if not isinstance(held, Fleet):
            out = None if held.spec.out is None else held.spec.out
            progress.out = None if out is None or self.run_dir is None else str(out.relative_to(self.run_dir))
            self._register(Program(held, environment, out, progress, time.monotonic()))
            return
        records = self._papers.records(environment.id)
        try:
            policy = self._policies[environment.policy]
            player = Player(held, environment, policy, self._context.seeds, records, progress)
        except PolicyError as error:
            records.close()
            self._fail(environment.id, error)
            self._births.end(held, environment.id)
            return
        self._register(player)
        player.begin()

    def _register(self, running: Running) -> None:
        self._running[running.bell] = running
        self._epoll.register(running.bell, select.EPOLLIN)
        self._next_usage = 0.0  # a short one is looked at too

    def _advance(self, running: Running) -> None:
        if isinstance(running, Program):
            running.conclude()
            self._retire(running)
            return
        if not running.rung():
            return
        if running.spilled():
            # Read by somebody else; until then its bell is not listened to.
            self._epoll.unregister(running.bell)
            self._spills.read(running)
            return
        try:
            running.take()
        except SandboxError as error:
            self._lose(running, error)
        else:
            self._proceed(running)

    def _proceed(self, player: Player) -> None:
        try:
            if player.proceed():
                return
        except PolicyError as error:
            self._lose(player, error)
            return
        whole = player.progress.episodes >= player.progress.wanted
        player.progress.state = EnvState.DONE if whole else EnvState.INTERRUPTED
        self._retire(player)

    def _lose(self, player: Player, error: Exception) -> None:
        player.abort(Outcome.FAILED)
        self._fail(player.progress.env_id, error)
        self._retire(player)

    def _retire(self, running: Running) -> None:
        """It is finished: say so, and give back its place once it is really gone."""
        fd, progress = running.bell, running.progress
        with contextlib.suppress(FileNotFoundError):
            self._epoll.unregister(fd)
        del self._running[fd]
        progress.active_s = time.monotonic() - self._began[progress.env_id]
        if isinstance(running, Player):
            running.abort(Outcome.INTERRUPTED)
        elif progress.state is EnvState.FAILED:
            assert progress.cause is not None  # conclude() gives one
            self._papers.report(progress.env_id, progress.cause, progress.cause.detail)
        self._papers.ended(progress)
        held = running.fleet if isinstance(running, Player) else running.sandbox
        self._births.end(held, progress.env_id)

    def _fail(self, env_id: str, error: Exception) -> None:
        progress = self.progress[env_id]
        progress.state = EnvState.FAILED
        progress.cause = cause_of(error)
        self._papers.report(env_id, progress.cause, str(error))

    # -- now and then

    def _tick(self, now: float) -> None:
        for running in list(self._running.values()):
            running.progress.active_s = now - self._began[running.progress.env_id]
            if isinstance(running, Program):
                running.check(now)
        self._spills.check(now)
        if now >= self._next_usage:
            self._next_usage = now + _USAGE_S
            for running in self._running.values():
                sandbox = running.fleet.sandboxes[0] if isinstance(running, Player) else running.sandbox
                usage = sandbox.usage()
                if usage is not None:
                    running.progress.memory_bytes = usage.memory_bytes
                    running.progress.memory_peak_bytes = max(running.progress.memory_peak_bytes, usage.memory_bytes)
        self._on_tick(self)

    def _stop(self) -> None:
        """The first signal: nobody starts, everybody finishes the current step, commands end."""
        self._stopping = True
        self._papers.stopping(self._interrupts.number)
        for progress in self.progress.values():
            if progress.state in (EnvState.QUEUED, EnvState.STARTING):
                progress.state = EnvState.INTERRUPTED
        self._waiting.clear()
        for running in self._running.values():
            if isinstance(running, Player):
                running.stopping = True
            else:
                running.stop()

    # -- the end

    def _take_down(self) -> None:
        """End whatever still runs, gracefully if there was no hurry."""
        for running in list(self._running.values()):
            if isinstance(running, Program):
                running.stop()
                running.conclude()
            elif self._interrupts.count >= 2:
                running.fleet.sandboxes[0].kill()
            if not running.progress.finished:
                running.progress.state = EnvState.INTERRUPTED
            self._retire(running)
        for progress in self.progress.values():
            if not progress.finished:
                progress.state = EnvState.INTERRUPTED
        self._births.wait_ended(_CLOSE_S)

    def _close(self) -> None:
        """Leave nothing behind, whatever happened before."""
        try:
            self._context.close()
        finally:
            self._births.close()
            self._spills.close()
            self._epoll.close()
            self._papers.close()


def cause_of(error: Exception) -> Cause:
    """The typed cause of whatever ended an environment."""
    if isinstance(error, SandboxError):
        return error.cause
    if isinstance(error, PolicyError):
        return Cause(CauseKind.EXCEPTION, Owner.ENVIRONMENT, str(error).splitlines()[0])
    if isinstance(error, ProtocolError | ValueError):
        return Cause(CauseKind.PROTOCOL, Owner.ENVIRONMENT, f"described itself wrongly: {error}")
    return Cause(CauseKind.START_FAILED, Owner.INFRASTRUCTURE, f"{type(error).__name__}: {error}")


def _need(environment: EnvironmentConfig) -> Need:
    return Need(environment.id, environment.memory_mb, environment.vcpu_count)


def _sweep() -> None:
    """Remove the control groups of runs that were killed; a failure to do so is no reason not to run."""
    try:
        removed = sweep()
    except (AgentEnvError, OSError) as error:
        logger.warning("cannot remove what an earlier run left behind: %s", error)
        return
    if removed:
        logger.info("removed the control groups of %d runs that were killed", len(removed))
