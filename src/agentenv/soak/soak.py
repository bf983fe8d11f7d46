"""A soak from its first step to its report.

Whatever ends it - the time, a signal, a failure for good - what was measured until then is judged and written. Killed
at once, it leaves its samples.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from agentenv.config import Config
from agentenv.errors import AgentEnvError, ConfigError, Problem, counted
from agentenv.fleet.interrupts import Interrupts, StopNow
from agentenv.fleet.manifest import build_manifest
from agentenv.fleet.rundir import RunDir
from agentenv.sandbox.runtimes._runid import new_run_id
from agentenv.soak.chaos import Chaos
from agentenv.soak.driver import Driver
from agentenv.soak.plot import MISSING, draw
from agentenv.soak.report import Report, judge_all, read_samples
from agentenv.soak.sampler import Sample, Sampler, temporary_files_in
from agentenv.telemetry.records import RecordWriter, to_json, write_atomic

logger = logging.getLogger("agentenv.soak")

_SUFFIX = "-soak"
_NAME_LIMIT = 64  # of a run's folder, without the time in front
_TICK_S = 0.25


@dataclass(frozen=True, slots=True)
class Moment:
    """How far a soak is.

    Attributes:
        elapsed_s: Seconds of stepping so far.
        wanted_s: Seconds in all.
        steps, kills, losses, failures: So far.
        sample: The last look, or None before the first.
    """

    elapsed_s: float
    wanted_s: float
    steps: int
    kills: int
    losses: int
    failures: int
    sample: Sample | None


def soak(
    config: Config,
    *,
    seconds: float,
    chaos_per_minute: float = 0.0,
    argv: Sequence[str] = (),
    on_tick: Callable[[Moment], Any] | None = None,
) -> Report:
    """Step a configuration for a while and judge what it takes of the machine.

    Args:
        config: The configuration; ``command`` environments are refused.
        seconds: How long to step.
        chaos_per_minute: Processes of sandboxes to kill a minute, on average.
        argv: The command line, for the manifest.
        on_tick: Called about four times a second, between two steps.

    Raises:
        ConfigError: The configuration cannot be stepped.
        RuntimeUnavailable, EnvError: It cannot be started here.
        ResourceLimit: The disk has no room for the report.
    """
    if not (seconds > 0 and 0 <= chaos_per_minute < float("inf")):
        message = f"expected a time and a rate of kills, got {seconds} s and {chaos_per_minute} a minute"
        raise ConfigError([Problem("soak", "seconds, chaos_per_minute", message)])
    run = RunDir.create(Path(config.global_.run_dir), _name(config), new_run_id())
    run.write_config(config.to_toml())
    with Interrupts() as interrupts, temporary_files_in(run.path / "tmp"):
        with Driver(config, run, killed_from_outside=chaos_per_minute > 0) as driver:
            _describe(driver, run, config, argv)
            passing = _Passing(driver, run, seconds, chaos_per_minute, on_tick)
            try:
                interrupts.may_raise = True
                passing.go(lambda: interrupts.count > 0)
                interrupts.may_raise = False
            except StopNow:
                pass
            except AgentEnvError as error:
                passing.error = str(error)
            finally:
                interrupts.may_raise = False
                passing.end()
        report = passing.report(config.name, interrupts.number)
        run.write_summary(_summary(report, run, config))
    return report


class _Passing:
    """The time between the first step and the last."""

    def __init__(
        self,
        driver: Driver,
        run: RunDir,
        seconds: float,
        chaos_per_minute: float,
        on_tick: Callable[[Moment], Any] | None,
    ) -> None:
        self.error = ""
        self._driver, self._run, self._seconds, self._on_tick = driver, run, seconds, on_tick
        self._rate = chaos_per_minute
        root = driver.vectors[0].context.seeds.root
        self._chaos = Chaos(driver.sandboxes, chaos_per_minute, root) if chaos_per_minute > 0 else None
        self._records = RecordWriter(run.samples)
        self._sampler = Sampler(driver, run, run.path / "tmp", seconds)
        self._began = time.monotonic()
        self._elapsed_s = 0.0
        self._last: Sample | None = None

    def go(self, stopping: Callable[[], bool]) -> None:
        """Step until the time is over or somebody wants it to stop.

        Raises:
            SandboxError: Nothing but failures.
            RuntimeUnavailable: The machinery is gone.
        """
        self._driver.reset()
        self._began = time.monotonic()
        if self._chaos is not None:
            self._chaos.start()
        next_look = next_tick = 0.0
        while not stopping():
            self._elapsed_s = elapsed_s = time.monotonic() - self._began
            if elapsed_s >= next_look and self._driver.tally.latencies.count:
                self._look(elapsed_s)
                next_look = elapsed_s + self._sampler.interval_s
            if elapsed_s >= next_tick and self._on_tick is not None:
                self._on_tick(self._moment(elapsed_s))
                next_tick = elapsed_s + _TICK_S
            if elapsed_s >= self._seconds:
                return
            self._driver.step()

    def end(self) -> None:
        """Kill no more and close the file of samples."""
        if self._chaos is not None:
            self._chaos.stop()
        self._records.close()

    def report(self, name: str, number: int | None) -> Report:
        """Judge what was recorded, write the report and draw it.

        Raises:
            ResourceLimit: There is no room for the report.
        """
        samples, damaged = read_samples(self._run.samples)
        judged = judge_all(samples)
        tally = self._driver.tally
        report = Report(
            run_dir=self._run.path,
            config=name,
            duration_s=self._elapsed_s,
            wanted_s=self._seconds,
            chaos_per_minute=self._rate,
            steps=tally.steps,
            kills=self._kills(),
            losses=tally.losses,
            failures=tally.failures,
            last_failure=tally.last_failure,
            samples=len(samples),
            lost_samples=damaged + self._records.lost,
            number=number,
            error=self.error,
            resources=judged,
        )
        path = self._run.path / "soak.png"
        kills = counted(self._kills(), "kill")
        title = f"{name}: {report.verdict}; {counted(tally.steps, 'step')} in {self._elapsed_s:,.0f} s, {kills}"
        try:
            drawn = bool(judged) and draw(judged, path, title)
            report = replace(report, plot=path) if drawn else replace(report, plot_note=MISSING if judged else "")
        except OSError as error:
            report = replace(report, plot_note=f"no plot: {error}")
        write_atomic(self._run.path / "report.json", to_json(report.to_json(), indent=2) + b"\n")
        return report

    def _look(self, elapsed_s: float) -> None:
        self._last = self._sampler.look(elapsed_s, self._kills())
        self._records.append(self._last.to_record())

    def _kills(self) -> int:
        return 0 if self._chaos is None else self._chaos.kills

    def _moment(self, elapsed_s: float) -> Moment:
        tally = self._driver.tally
        return Moment(
            elapsed_s, self._seconds, tally.steps, self._kills(), tally.losses, tally.failures, sample=self._last
        )


def _name(config: Config) -> str:
    return config.name[: _NAME_LIMIT - len(_SUFFIX)] + _SUFFIX


def _describe(driver: Driver, run: RunDir, config: Config, argv: Sequence[str]) -> None:
    context = driver.vectors[0].context
    seeds = {e.id: context.seeds.environment(e.id, seed=e.seed) for e in config.expand()}
    run.write_manifest(
        build_manifest(
            run_id=run.run_id,
            runtime=context.runtime_name,
            limits=context.runtime.limits(),
            root_seed=context.seeds.root,
            seeds=seeds,
            config_dir=config.base_dir,
            config_digest=config.digest(),
            argv=argv,
        )
    )
    logger.info("runtime %s; run directory %s", context.runtime_name, run.path)


def _summary(report: Report, run: RunDir, config: Config) -> dict[str, Any]:
    """What ``agentenv runs`` shows of it."""
    return {
        "run_id": run.run_id,
        "name": _name(config),
        "state": report.to_json()["state"],
        "verdict": report.verdict,
        "exit_code": report.exit_code,
        "duration_s": round(report.duration_s, 3),
        "steps": report.steps,
    }
