"""Errors as plain data, between a keeper and whoever asks it: the same class, with the same words, on both sides."""

from __future__ import annotations

import errno
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from agentenv import errors
from agentenv.errors import Cause, CauseKind, Owner, Problem

_PLAIN = ("ClosedError", "SnapshotError", "ProtocolError")
_OF_SANDBOXES = ("SandboxDied", "StepTimeout")


def to_record(error: BaseException) -> dict[str, Any]:
    """An error as plain data."""
    record: dict[str, Any] = {"type": type(error).__name__, "message": str(error)}
    if isinstance(error, errors.SandboxError):
        record |= {"id": error.env_id, "cause": asdict(error.cause)}
    elif isinstance(error, errors.RuntimeUnavailable):
        record |= {"message": str(error).partition("\n  remedy: ")[0], "remedy": error.remedy}
    elif isinstance(error, errors.ConfigError):
        record |= {"problems": [asdict(problem) for problem in error.problems]}
    elif isinstance(error, OSError):
        record |= {"errno": error.errno, "message": error.strerror or str(error), "file": error.filename}
    return record


def from_record(record: Mapping[str, Any]) -> Exception:
    """The error again."""
    kind, message = str(record.get("type")), str(record.get("message"))
    if kind in _OF_SANDBOXES and isinstance(told := record.get("cause"), dict):
        cause = Cause(**{**told, "kind": CauseKind(told["kind"]), "owner": Owner(told["owner"])})
        made: Exception = getattr(errors, kind)(cause.detail, env_id=record.get("id"), cause=cause, noun="sandbox")
        return made
    if kind == "RuntimeUnavailable":
        return errors.RuntimeUnavailable(message, str(record.get("remedy", "")))
    if kind == "ConfigError":
        return errors.ConfigError([Problem(**problem) for problem in record.get("problems", [])])
    if "errno" in record:
        number = record["errno"] if isinstance(record["errno"], int) else errno.EIO
        made_os = OSError if kind != "ResourceLimit" else errors.ResourceLimit
        return made_os(number, message, record["file"]) if record.get("file") else made_os(number, message)
    known = getattr(errors, kind, None)
    if kind in _PLAIN and known is not None:
        plain: Exception = known(message)
        return plain
    if isinstance(known, type) and issubclass(known, errors.SnapshotError):
        return errors.SnapshotError(message)
    return errors.AgentEnvError(message if known is not None else f"{kind}: {message}")
