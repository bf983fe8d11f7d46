"""What a run writes down besides the environments' own output: configuration, manifest, events, episodes, summary."""

from __future__ import annotations

import errno
import logging
import os
import signal
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from agentenv.config import EnvironmentConfig
from agentenv.disk import MOUNT
from agentenv.errors import Cause, ConfigError, Problem, ResourceLimit
from agentenv.fleet.context import RunContext
from agentenv.fleet.manifest import build_manifest, continued, unlike_before
from agentenv.fleet.origin import write_resume_point
from agentenv.fleet.progress import EnvState, Progress
from agentenv.fleet.resuming import Resumption
from agentenv.fleet.rundir import RunDir, read_object
from agentenv.fleet.summary import Summary
from agentenv.fleet.trace import TraceWriter
from agentenv.telemetry.events import EventLog
from agentenv.telemetry.records import RecordWriter
from agentenv.telemetry.syncing import Syncer

logger = logging.getLogger("agentenv.fleet")


class Paperwork:
    """The records of one run.

    Attributes:
        events: What happened.
    """

    def __init__(
        self, context: RunContext, run: RunDir, argv: Sequence[str], resumption: Resumption | None = None
    ) -> None:
        """Take the folder, which nobody else may write to until ``close``.

        Args:
            context: The run's.
            run: Its folder.
            argv: The command line.
            resumption: What an earlier process left, where its run goes on.

        Raises:
            ConfigError: Another process has the folder.
        """
        lock = run.lock()
        if lock is None:
            message = "expected a run that was interrupted, another process is writing to this one"
            raise ConfigError([Problem("--resume", run.path.name, message, "wait for it, or end it")])
        self._lock: int | None = lock
        self.events = EventLog(run.events)
        self._syncer = Syncer()
        self._resumption = resumption
        self._context = context
        self._run = run
        self._argv = argv
        self._started_unix = time.time()

    def open(self, environments: Iterable[EnvironmentConfig]) -> None:
        """Write the resolved configuration and the manifest, or continue those of the run that is resumed.

        Raises:
            ResourceLimit: The disk is full.
        """
        context, config = self._context, self._context.config
        listed = list(environments)
        manifest = build_manifest(
            run_id=context.run_id,
            runtime=context.runtime_name,
            limits=context.runtime.limits(),
            root_seed=context.seeds.root,
            seeds={e.id: context.seeds.environment(e.id, seed=e.seed) for e in listed if e.command is None},
            config_dir=config.base_dir,
            config_digest=config.digest(),
            argv=self._argv,
            packages=_distributions(listed),
        )
        if self._resumption is None:
            self._run.write_config(config.to_toml())
            self._run.write_manifest(manifest)
            write_resume_point(self._run, config, read_object(self._run.manifest) or manifest, Path.cwd())
        else:
            self._continue(self._resumption, manifest)
        self.events.emit(
            "run_started",
            level=logging.DEBUG,
            runtime=context.runtime_name,
            environments=len(listed),
            seed=context.seeds.root,
        )
        isolation, gaps = describe_isolation(context)
        logger.info("%s; run directory %s", isolation, self._run.path)
        if gaps:
            logger.warning("not enforced here: %s; see `agentenv runtimes`", ", ".join(gaps))

    def records(self, env_id: str) -> RecordWriter:
        """Where an environment's episodes are recorded."""
        return _Synced(self._run.environment(env_id).episodes, self._syncer)

    def tracing(
        self, environment: EnvironmentConfig, trace_end: int | None
    ) -> Callable[[tuple[str, ...], int], TraceWriter]:
        """Opens an environment's trace.

        Args:
            environment: Its configuration.
            trace_end: Where an earlier process's whole chunks end, or None.
        """
        place = self._run.environment(environment.id)
        limit_mb = float(environment.trace_mb)

        def opened(names: tuple[str, ...], action_bytes: int) -> TraceWriter:
            return TraceWriter(
                place.trace,
                names=names,
                action_bytes=action_bytes,
                limit_mb=limit_mb,
                syncer=self._syncer,
                resume_at=trace_end,
            )

        return opened

    def notice(self, env_id: str, kind: str, text: str) -> None:
        """Something unusual happened to an environment, which goes on."""
        self.events.emit(kind, env_id, level=logging.DEBUG, detail=text)
        logger.warning("%s: %s", env_id, text)

    def report(self, env_id: str, cause: Cause, text: str) -> None:
        """An environment failed."""
        self.events.emit(
            "env_failed",
            env_id,
            level=logging.DEBUG,
            cause=cause.kind.value,
            owner=cause.owner.value,
            detail=cause.detail,
            error=text,
        )
        logger.error("%s: failed (%s, %s): %s", env_id, cause.kind.value, cause.owner.value, text)

    def ended(self, progress: Progress) -> None:
        """An environment is finished, in whatever way."""
        level = logging.DEBUG if progress.state is EnvState.FAILED else logging.INFO
        fields = {"episodes": progress.episodes, "steps": progress.steps} if progress.wanted else {}
        if progress.mean_return is not None:
            fields["return_mean"] = round(progress.mean_return, 4)  # type: ignore[assignment]  # a mixed record
        if progress.memory_peak_bytes:  # if this process dies, nothing else tells
            fields["memory_peak_mb"] = round(progress.memory_peak_bytes / 2**20, 2)  # type: ignore[assignment]  # mixed
        if progress.exit_code is not None:
            fields["exit_code"] = progress.exit_code
        self.events.emit(f"env_{progress.state.value}", progress.env_id, level=level, **fields)
        self._syncer.touch(self._run.events)

    def stopping(self, number: int | None) -> None:
        """The first signal came."""
        name = "a signal" if number is None else signal.Signals(number).name
        self.events.emit("run_stopping", level=logging.DEBUG, signal=name)

    def conclude(
        self, environments: Sequence[Progress], *, opened: float, ready: float | None, number: int | None
    ) -> Summary:
        """Write the summary, after which the run counts as finished.

        Args:
            environments: What became of them.
            opened: Monotonic time at which the run began.
            ready: Likewise, when the first environment was ready or had failed; None if none ever was.
            number: The signal that ended the run, or None.

        Raises:
            ResourceLimit: The disk is full or read-only.
        """
        now = time.monotonic()
        context = self._context
        summary = Summary(
            run_id=context.run_id,
            name=context.config.name,
            run_dir=self._run.path,
            runtime=context.runtime_name,
            isolation=context.runtime.isolation,
            limits=context.runtime.limits(),
            seed=context.seeds.root,
            started_unix=self._started_unix,
            startup_s=(now if ready is None else ready) - opened,
            duration_s=now - opened,
            signal=number,
            environments=environments,
        )
        self.events.emit("run_done", level=logging.DEBUG, state=summary.state)
        try:
            self._run.write_summary(summary.to_json())
        except ResourceLimit as error:
            helps = MOUNT if error.errno == errno.EROFS else "free some space"
            raise ResourceLimit(
                error.errno,
                f"the run has ended, and its summary cannot be kept: {error.strerror}\n  remedy: {helps}, then agentenv"
                f" run --resume {self._run.path.name} plays what is not recorded, and ends it",
            ) from error
        return summary

    def close(self) -> None:
        """Close the files and let go of the folder. Idempotent."""
        self._syncer.touch(self._run.events)
        self._syncer.close()
        self.events.close()
        if self._lock is not None:
            lock, self._lock = self._lock, None
            os.close(lock)

    def _continue(self, resumption: Resumption, now: dict[str, Any]) -> None:
        for warning in (*resumption.warnings, *unlike_before(resumption.manifest, now)):
            logger.warning("%s", warning)
        self._run.take_over(continued(resumption.manifest, now))
        if not self._run.config.is_file():
            self._run.write_config(resumption.config.to_toml())
        for env_id, standing in resumption.standings.items():
            if standing.lost:
                with self.records(env_id) as records:
                    for record in standing.lost:
                        records.append(record)
        ended = sum(standing.state is not None for standing in resumption.standings.values())
        self.events.emit("run_resumed", environments=len(resumption.standings), ended=ended)


class _Synced(RecordWriter):
    """Records that reach the disk a second later at most."""

    def __init__(self, path: Path, syncer: Syncer) -> None:
        super().__init__(path)
        self._syncer = syncer

    def append(self, record: Mapping[str, Any]) -> bool:
        written = super().append(record)
        self._syncer.touch(self.path)
        return written


def describe_isolation(context: RunContext) -> tuple[str, list[str]]:
    """The isolation in force, in a sentence; and the limits that nothing enforces."""
    limits = context.runtime.limits()
    held = ", ".join(f"{name} by {how}" for name, how in limits.items() if how != "not enforced")
    gaps = [name for name, how in limits.items() if how == "not enforced"]
    kind = context.runtime.isolation
    isolation = "NO isolation" if kind == "process" else f"isolation {kind}"
    return f"runtime {context.runtime_name}: {isolation}; limits: {held or 'none'}", gaps


def _distributions(environments: Iterable[EnvironmentConfig]) -> list[str]:
    """Distributions named like the modules that the environments come from, as far as they are installed."""
    modules = {(e.env or "").partition(":")[0].partition(".")[0] for e in environments if ":" in (e.env or "")}
    found = []
    for module in sorted(modules - {"", "agentenv"}):
        try:
            metadata.version(module)
        except (metadata.PackageNotFoundError, ValueError):
            continue
        found.append(module)
    return found
