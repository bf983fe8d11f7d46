"""What a run writes down besides the environments' own output: configuration, manifest, events, episodes, summary."""

from __future__ import annotations

import logging
import signal
import time
from collections.abc import Iterable, Sequence
from importlib import metadata

from agentenv.config import EnvironmentConfig
from agentenv.errors import Cause
from agentenv.fleet.context import RunContext
from agentenv.fleet.manifest import build_manifest
from agentenv.fleet.progress import EnvState, Progress
from agentenv.fleet.rundir import RunDir
from agentenv.fleet.summary import Summary
from agentenv.telemetry.events import EventLog
from agentenv.telemetry.records import RecordWriter

logger = logging.getLogger("agentenv.fleet")


class Paperwork:
    """The records of one run.

    Attributes:
        events: What happened.
    """

    def __init__(self, context: RunContext, run: RunDir, argv: Sequence[str]) -> None:
        self.events = EventLog(run.events)
        self._context = context
        self._run = run
        self._argv = argv
        self._started_unix = time.time()

    def open(self, environments: Iterable[EnvironmentConfig]) -> None:
        """Write the resolved configuration and the manifest.

        Raises:
            ResourceLimit: The disk is full.
        """
        context, config = self._context, self._context.config
        listed = list(environments)
        self._run.write_config(config.to_toml())
        self._run.write_manifest(
            build_manifest(
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
        )
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
        return RecordWriter(self._run.environment(env_id).episodes)

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
        if progress.exit_code is not None:
            fields["exit_code"] = progress.exit_code
        self.events.emit(f"env_{progress.state.value}", progress.env_id, level=level, **fields)

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
            ResourceLimit: The disk is full.
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
        self._run.write_summary(summary.to_json())
        return summary

    def close(self) -> None:
        """Close the files."""
        self.events.close()


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
