"""A run without a trainer: every environment of a configuration, played or run to its end, side by side.

One thread sleeps on the bells of all of them and moves on whoever rang. It never waits for one in particular, so that
a slow, hung or dying environment holds up nobody; starting and ending happen in other threads. An environment that
fails is reported with its cause and stays down; the others go on.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from agentenv.config import Config, EnvironmentConfig
from agentenv.errors import ResourceLimit, RuntimeUnavailable, SandboxError, counted
from agentenv.fleet.admission import Machine
from agentenv.fleet.bells import Bells, Running
from agentenv.fleet.births import Birth, Births
from agentenv.fleet.blame import cause_of
from agentenv.fleet.context import RunContext
from agentenv.fleet.errands import Errands
from agentenv.fleet.fleet import Fleet
from agentenv.fleet.interrupts import Interrupts, StopNow
from agentenv.fleet.leftovers import remove_leftovers
from agentenv.fleet.paperwork import Paperwork
from agentenv.fleet.player import Player
from agentenv.fleet.policies import PolicyError, find_policies
from agentenv.fleet.program import Program
from agentenv.fleet.progress import EnvState, Outcome, Progress
from agentenv.fleet.reported import READ_ONLY, READ_ONLY_HINT
from agentenv.fleet.resuming import Resumption
from agentenv.fleet.roster import Roster
from agentenv.fleet.summary import Summary

logger = logging.getLogger("agentenv.fleet")

_TICK_S = 0.2
_USAGE_S = 1.0
_CLOSE_S = 3.0


class Play:
    """One run.

    Attributes:
        progress: What is known of each environment, by id, in the order of the configuration.
        run_dir: The run's directory; set by ``run``.
    """

    def __init__(
        self,
        config: Config,
        *,
        argv: Sequence[str] = (),
        on_tick: Callable[[Play], None] = lambda _play: None,
        resumption: Resumption | None = None,
    ) -> None:
        """Check everything that can be checked before anything is started.

        Args:
            config: The configuration.
            argv: The command line, for the manifest.
            on_tick: Called a few times a second, in the thread that plays.
            resumption: The run to go on with, whose configuration ``config`` then is; None begins a new one.

        Raises:
            ConfigError: A policy cannot be imported.
            RuntimeUnavailable: An environment will never fit into this machine.
        """
        self.config = config
        self._argv = argv
        self._on_tick = on_tick
        self._machine = Machine.measure()
        self._resumption = resumption
        self._standings = {} if resumption is None else resumption.standings
        everybody = config.expand()
        self._roster = Roster(
            [e for e in everybody if e.id not in self._standings or self._standings[e.id].state is None],
            self._machine,
            config.global_.max_parallel_envs,
        )
        self._everybody = everybody
        self._warn_of_cores()
        self._policies = find_policies(self._roster.environments.values(), config.base_dir)
        self.progress = {e.id: self._progress_of(e) for e in everybody}
        self.run_dir: Path | None = None
        self._stopping = False
        self._ready: float | None = None
        self._next_usage = 0.0
        self._next_tick = 0.0

    def run(self) -> Summary:
        """Play everything to its end, or to the first or second signal.

        Raises:
            RuntimeUnavailable, ResourceLimit: This machine cannot run it; nothing is left.
        """
        remove_leftovers()
        with Interrupts() as interrupts:
            self._interrupts = interrupts
            opened = time.monotonic()
            if self._resumption is None:
                self._context = RunContext(self.config, self._everybody, record=True)
            else:
                self._context = RunContext(self.config, self._everybody, record=False, run=self._resumption.run)
            run = self._context.run
            assert run is not None  # it was asked to record
            self.run_dir = run.path
            self._births = Births(self._context, interrupts.wake.set)
            self._errands = Errands(interrupts.wake.set)
            self._bells = Bells(interrupts.wake)
            try:
                self._papers = Paperwork(self._context, run, self._argv, self._resumption)
            except BaseException:
                self._context.close()
                self._births.close()
                self._errands.close()
                self._bells.close()
                raise
            self._context.crashes.events = self._papers.events
            try:
                try:
                    self._births.start(self._roster.admit())
                    self._papers.open(self._everybody)
                    interrupts.may_raise = True
                    self._loop()
                    interrupts.may_raise = False
                except StopNow:
                    pass
                self._take_down()
                return self._papers.conclude(
                    list(self.progress.values()), opened=opened, ready=self._ready, number=interrupts.number
                )
            finally:
                interrupts.may_raise = False
                self._close()

    def _loop(self) -> None:
        while not self._roster.finished:
            for running in self._bells.wait(_TICK_S):
                self._advance(running)
            for birth in self._births.collect():
                self._receive(birth)
            for errand in self._errands.collect():
                if errand.error is not None:
                    self._lose(errand.player, errand.error)
                    continue
                self._bells.unmute(errand.player)
                if errand.taken:
                    self._proceed(errand.player)
            for env_id in self._births.ended():
                self._roster.leave(env_id)
            if self._interrupts.count >= 2:
                return
            if self._interrupts.count and not self._stopping:
                self._stop()
            if not self._stopping:
                self._births.start(self._roster.admit())
            now = time.monotonic()
            if now >= self._next_tick:
                self._next_tick = now + _TICK_S
                self._tick(now)

    def _receive(self, birth: Birth) -> None:
        environment, held = birth.environment, birth.result
        self._ready = self._ready or time.monotonic()
        if isinstance(held, Exception):
            # Where nobody got anywhere, it is the machine that cannot do it.
            if isinstance(held, RuntimeUnavailable | ResourceLimit) and self._roster.untouched:
                raise held
            self._fail(environment.id, held)
            self._roster.leave(environment.id)
            return
        if self._stopping:
            self._births.end(held, environment.id)
            return
        progress = self._roster.begin(environment.id)
        self._papers.events.emit("env_started", environment.id, level=logging.DEBUG)
        if not isinstance(held, Fleet):
            out = held.spec.out
            progress.out = None if out is None or self.run_dir is None else str(out.relative_to(self.run_dir))
            self._add(Program(held, environment, progress, time.monotonic()))
            return
        records = self._papers.records(environment.id)
        try:
            standing = self._standings.get(environment.id)
            beginning = None if standing is None else standing.beginning
            player = Player(
                held,
                environment,
                self._policies[environment.policy],
                self._context.seeds,
                records,
                progress,
                tracing=self._papers.tracing(environment, None if beginning is None else beginning.trace_end),
                looks=lambda: self._bells.looks,
                beginning=beginning,
                notice=partial(self._papers.notice, environment.id),
            )
        except PolicyError as error:
            records.close()
            self._fail(environment.id, error)
            self._births.end(held, environment.id)
            return
        self._add(player)
        player.begin()

    def _add(self, running: Running) -> None:
        self._bells.add(running)
        self._next_usage = 0.0  # a short one is looked at too

    def _advance(self, running: Running) -> None:
        if isinstance(running, Program):
            running.conclude()
            self._retire(running)
            return
        if not running.rung():
            return
        if running.spilled() or running.lost():
            # Taken by somebody else; until then its bell is not listened to.
            self._bells.mute(running)
            self._errands.take(running)
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
                if player.holds_back:
                    self._bells.mute(player)
                    self._errands.ask(player)
                return
        except (PolicyError, SandboxError) as error:
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
        progress = running.progress
        progress.observe(running.sandbox.usage())  # one that was soon over may have been looked at by nobody
        self._bells.remove(running)
        self._roster.tell_time(progress.env_id, time.monotonic())
        if isinstance(running, Player):
            running.abort(Outcome.INTERRUPTED)
        elif progress.state is EnvState.FAILED:
            assert progress.cause is not None  # conclude() gives one
            output = self._context.output.tail(progress.env_id)
            hint = READ_ONLY_HINT if READ_ONLY in output else ""
            text = "\n".join(part for part in (progress.cause.detail, output.rstrip(), hint) if part)
            self._papers.report(progress.env_id, progress.cause, text)
        self._papers.ended(progress)
        self._births.end(running.fleet if isinstance(running, Player) else running.sandbox, progress.env_id)

    def _fail(self, env_id: str, error: Exception) -> None:
        cause = cause_of(error)
        self._roster.fail(env_id, cause)
        self._papers.report(env_id, cause, str(error))

    def _tick(self, now: float) -> None:
        for running in self._bells:
            self._roster.tell_time(running.progress.env_id, now)
            if isinstance(running, Program):
                running.check(now)
        self._errands.check(now)
        if now >= self._next_usage:
            self._next_usage = now + _USAGE_S
            for running in self._bells:
                running.progress.observe(running.sandbox.usage())
        self._on_tick(self)

    def _progress_of(self, environment: EnvironmentConfig) -> Progress:
        progress = self._roster.progress.get(environment.id)
        if progress is None:
            progress = Progress(environment.id, 0 if environment.command else environment.episodes)
            if environment.command and self._resumption is not None:
                out = f"environments/{environment.id}/out"
                progress.out = out if (self._resumption.run.path / out).is_dir() else None
        if environment.id in self._standings:
            self._standings[environment.id].fill(progress)
        return progress

    def _warn_of_cores(self) -> None:
        cpus = self._machine.cpus
        greedy = [e for e in self._roster.environments.values() if e.vcpu_count > cpus]
        if greedy:
            others = f" (and {len(greedy) - 1} more)" if len(greedy) > 1 else ""
            logger.warning(
                "%s%s: vcpu_count = %g cannot be given: this machine has %s; it runs on those",
                greedy[0].id,
                others,
                greedy[0].vcpu_count,
                counted(cpus, "core"),
            )

    def _stop(self) -> None:
        """The first signal: nobody starts, everybody finishes the current step, commands end."""
        self._stopping = True
        self._papers.stopping(self._interrupts.number)
        self._roster.interrupt(EnvState.QUEUED, EnvState.STARTING)
        for running in self._bells:
            running.stop()

    def _take_down(self) -> None:
        """End whatever still runs, gracefully if there was no hurry."""
        for running in self._bells:
            if isinstance(running, Program):
                running.stop()
                running.conclude()
            elif self._interrupts.count >= 2:
                running.sandbox.kill()
            if not running.progress.finished:
                running.progress.state = EnvState.INTERRUPTED
            self._retire(running)
        self._roster.interrupt(EnvState.QUEUED, EnvState.STARTING)
        self._births.wait_ended(_CLOSE_S)

    def _close(self) -> None:
        """Leave nothing behind, whatever happened before."""
        try:
            self._context.close()
        finally:
            self._births.close()
            self._errands.close()
            self._bells.close()
            self._papers.close()
