"""What an environment says of itself when it is built: its spaces and metadata, or why it could not be built."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from agentenv.errors import Cause, CauseKind, EnvError, Owner, ProtocolError, SandboxDied
from agentenv.sandbox.contract import SandboxSpec

_MOST_WORDS = 300


def read_introductions(
    message: Mapping[str, Any], spec: SandboxSpec, output: Callable[[], str]
) -> list[dict[str, Any]]:
    """The introductions in a guest's first message about its environments; still hostile.

    Args:
        message: What it sent.
        spec: What was asked of it.
        output: Gives the last lines of its output, for errors.

    Raises:
        SandboxDied: It says that it cannot be made, which anybody in there may say.
        EnvError: An environment's constructor raised.
        ProtocolError: It is no introduction.
    """
    failed = message.get("failed")
    if isinstance(failed, str):
        detail = f"it says of itself that it cannot be made: {failed[:_MOST_WORDS]!r}"
        cause = Cause(CauseKind.START_FAILED, Owner.ENVIRONMENT, detail)
        raise SandboxDied(detail, env_id=spec.id, cause=cause, output=output())
    error_texts = message.get("error")
    if isinstance(error_texts, list) and len(error_texts) == 3:
        name, text, trace = (str(part) for part in error_texts)
        raise EnvError(
            env_id=spec.id,
            cause=Cause(CauseKind.START_FAILED, Owner.ENVIRONMENT, f"its constructor raised {name}"),
            type_name=name,
            message=text,
            traceback_text=trace,
            output=output(),
        )
    introductions = message.get("ready")
    if (
        not isinstance(introductions, list)
        or len(introductions) != len(spec.envs)
        or not all(isinstance(introduction, dict) for introduction in introductions)
    ):
        raise ProtocolError("introduced itself in a form that is not the protocol")
    return introductions
