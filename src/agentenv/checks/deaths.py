"""The end of a sandbox under examination, as a finding instead of an error."""

from __future__ import annotations

from agentenv.errors import CauseKind, EnvError, SandboxError, StepTimeout
from agentenv.telemetry.text import one_line


def said(error: SandboxError) -> str:
    """Why it ended, in words without the environment's id."""
    if isinstance(error, StepTimeout):
        return "it did not answer in time and was ended"
    if isinstance(error, EnvError):
        return one_line(f"raised {error.type_name}: {error.message}")
    return one_line(f"the process ended: {error.cause.detail}")


def ran_out_of_memory(error: SandboxError) -> bool:
    """Whether it went over its memory limit."""
    return error.cause.kind is CauseKind.OUT_OF_MEMORY
