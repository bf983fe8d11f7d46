"""The typed cause of whatever ended an environment, also where it never came to live in a sandbox."""

from __future__ import annotations

from agentenv.disk import UNWRITABLE
from agentenv.errors import Cause, CauseKind, ConfigError, Owner, ProtocolError, ResourceLimit, SandboxError
from agentenv.fleet.policies import PolicyError


def cause_of(error: Exception) -> Cause:
    """Say what an error means for the environment it ended."""
    if isinstance(error, SandboxError):
        return error.cause
    if isinstance(error, PolicyError):
        return Cause(CauseKind.EXCEPTION, Owner.ENVIRONMENT, str(error).partition("\n")[0])
    if isinstance(error, ProtocolError | ValueError) and not isinstance(error, ConfigError):
        return Cause(CauseKind.PROTOCOL, Owner.ENVIRONMENT, f"described itself wrongly: {error}")
    if isinstance(error, OSError) and (isinstance(error, ResourceLimit) or error.errno in UNWRITABLE):
        return Cause(CauseKind.START_FAILED, Owner.RESOURCES, error.strerror or str(error))
    return Cause(CauseKind.START_FAILED, Owner.INFRASTRUCTURE, f"{type(error).__name__}: {error}")
