"""A ``command`` environment: a whole program in a sandbox, watched until it ends.

Its exit status is a result, not an error of ours. What it writes to /out stays on the host, is watched for its size,
and is never read here.
"""

from __future__ import annotations

import time
from dataclasses import replace

from agentenv.config import EnvironmentConfig
from agentenv.errors import Cause, CauseKind, Owner
from agentenv.fleet.outsize import find_excess
from agentenv.fleet.progress import EnvState, Progress
from agentenv.sandbox.contract import Sandbox

_LOOK_S = 1.0


class Program:
    """One running command.

    Attributes:
        sandbox: Where it runs.
        progress: Kept up to date.
    """

    def __init__(self, sandbox: Sandbox, environment: EnvironmentConfig, progress: Progress, now: float) -> None:
        self.sandbox = sandbox
        self.progress = progress
        self._environment = environment
        self._out = sandbox.spec.out
        self._ends = None if environment.timeout_s is None else now + environment.timeout_s
        self._next_look = now + _LOOK_S

    @property
    def bell(self) -> int:
        """The descriptor that becomes readable when it has ended."""
        return self.sandbox.pidfd

    def check(self, now: float | None = None) -> None:
        """End it if it takes too long or /out has grown too large; call often, it looks once a second."""
        now = time.monotonic() if now is None else now
        if self._ends is not None and now > self._ends:
            self._ends = None
            limit = self._environment.timeout_s
            self.sandbox.kill(
                Cause(CauseKind.TIMEOUT, Owner.ENVIRONMENT, f"the command had not ended after timeout_s = {limit:g}")
            )
        if now >= self._next_look and self._out is not None:
            self._next_look = now + _LOOK_S
            excess = find_excess(self._out, self._environment.disk_mb << 20)
            if excess:
                self.sandbox.kill(self._too_large(excess))

    def stop(self) -> None:
        """End it because the run ends."""
        self.sandbox.kill(Cause(CauseKind.CLOSED, Owner.INFRASTRUCTURE, "ended together with the run"))

    def conclude(self) -> None:
        """After its end: say in ``progress`` what became of it."""
        cause = self.sandbox.cause()
        if cause.kind is CauseKind.EXIT:
            self.progress.exit_code = cause.exit_code
            cause = replace(cause, detail=f"the command exited with status {cause.exit_code}")
            if self._out is not None and (excess := find_excess(self._out, self._environment.disk_mb << 20)):
                cause = self._too_large(excess)
        if cause.kind is CauseKind.EXIT and cause.exit_code == 0:
            self.progress.state = EnvState.DONE
            return
        self.progress.cause = cause
        self.progress.state = EnvState.INTERRUPTED if cause.kind is CauseKind.CLOSED else EnvState.FAILED

    def _too_large(self, excess: str) -> Cause:
        limit = self._environment.disk_mb
        helps = "raise it or write less"
        if not excess.endswith(" MB"):
            helps = "how much it holds must be seen, so write a tree that can be read to its end"
        detail = f"/out holds {excess}; disk_mb = {limit} allows {limit} MB: {helps}"
        return Cause(CauseKind.DISK_FULL, Owner.ENVIRONMENT, detail)
