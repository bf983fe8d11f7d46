"""What is told of a death: an event, a mark in the logs, and in a run that is recorded a folder for whoever asks why.

The evidence is collected when the death is noticed, before another process takes the dead one's place. It is written
when the recovery is over, so that nobody waits for the disk.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Protocol

from agentenv.errors import Cause, SandboxError
from agentenv.fleet.crashes import LAST_STEPS, CrashReport, How, finish_crash, write_crash
from agentenv.fleet.evidence import Evidence, find_stack
from agentenv.fleet.journal import Journal
from agentenv.fleet.output import SandboxOutput
from agentenv.fleet.rundir import RunDir
from agentenv.sandbox.contract import Sandbox, Usage
from agentenv.telemetry.events import EventLog


@dataclass(frozen=True, slots=True)
class Victim:
    """An environment that died.

    Attributes:
        env_id: Its id.
        index: Its position in its fleet.
    """

    env_id: str
    index: int


class EvidenceSource(Protocol):
    """What is needed of ``Watch``."""

    def evidence(self, sandbox_id: str) -> Evidence | None:
        """What was seen of a sandbox that was ended for being late."""


class Postmortem:
    """Keeps the records of deaths of one run.

    Attributes:
        events: Takes what happens; a run that is recorded puts its own here.
    """

    def __init__(self, run: RunDir | None, output: SandboxOutput, watch: EvidenceSource) -> None:
        """Record into the folder of ``run``; without one, only tell."""
        self._run, self._output, self._watch = run, output, watch
        self.events = EventLog(None)

    def examine(
        self,
        victims: list[Victim],
        sandbox: Sandbox,
        error: SandboxError,
        journal: Journal,
        read_action: Callable[[Any], Any],
    ) -> list[CrashReport]:
        """Collect what is known of a death, and say that it happened.

        Args:
            victims: Who died.
            sandbox: In what.
            error: Why.
            journal: What was asked of them.
            read_action: From the bytes of an action to plain data.
        """
        seen = self._watch.evidence(sandbox.spec.id)
        stack = seen.stack if seen is not None else find_stack(self._output.text(sandbox.log_id, "stderr"))
        used = sandbox.last_usage if seen is None or seen.usage is None else seen.usage
        for victim in victims:
            self.events.emit(
                "env_crashed",
                victim.env_id,
                level=logging.WARNING,
                cause=str(error.cause.kind),
                owner=str(error.cause.owner),
                detail=error.cause.detail,
            )
        if self._run is None:
            return []
        return [
            self._report(
                victim, error, stack, used, _with_actions(journal.recent(victim.index, LAST_STEPS), read_action)
            )
            for victim in victims
        ]

    def mark(self, sandbox: Sandbox, cause: Cause) -> None:
        """Where another process is about to take the place of one that died: say so in its logs."""
        if self._run is not None:
            self._output.mark(sandbox.log_id, f"restarted after: {cause.detail}")

    def conclude(self, env_ids: list[str], reports: list[CrashReport], recovery: Mapping[str, Any]) -> None:
        """Say and write how it was made up for: ``how`` (see ``How``), ``replayed_steps``, ``duration_ms``, ..."""
        for env_id in env_ids:
            kind = "env_given_up" if recovery["how"] in ("raised", "quarantined") else "env_recovered"
            self.events.emit(kind, env_id, level=logging.WARNING, **recovery)
        if self._run is not None:
            for report in reports:
                path = write_crash(self._run.environment(report.env_id), report)
                finish_crash(path, recovery)

    def _report(
        self, victim: Victim, error: SandboxError, stack: str, used: Usage | None, steps: list[dict[str, Any]]
    ) -> CrashReport:
        return CrashReport(
            env_id=victim.env_id,
            number=0,
            time_unix=time.time(),
            cause=error.cause,
            output=error.output,
            stack=stack,
            last_actions=[entry["action"] for entry in steps],
            last_rewards=[entry["reward"] for entry in steps],
            usage=None if used is None else asdict(used),
        )


def _with_actions(recent: list[dict[str, Any]], read_action: Callable[[Any], Any]) -> list[dict[str, Any]]:
    steps = [entry for entry in recent if entry["op"] == "step"]
    return [{**entry, "action": read_action(entry["action"]) if "action" in entry else None} for entry in steps]


def describe_recovery(how: How, *, replayed: int, began: float, reason: str, base: int | None) -> dict[str, Any]:
    """How a death was made up for, as it is recorded.

    Args:
        how: See ``How``.
        replayed: Steps and requests done again.
        began: When the death was noticed, ``time.monotonic()``.
        reason: Why the episode was cut, or "".
        base: Position in the journal of what it was brought back from.
    """
    found: dict[str, Any] = {
        "how": how,
        "replayed_steps": replayed,
        "duration_ms": round((time.monotonic() - began) * 1000, 2),
    }
    if base is not None:
        found["checkpoint"] = base
    if reason:
        found["reason"] = reason
    return found
