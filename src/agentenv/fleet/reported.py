"""An exception as an environment reported it: three texts, made short enough to keep and safe enough to show.

They come from the other side, which may have sent megabytes, or sequences that act on a terminal. What the sandbox
itself is the reason for is explained here too; the attributes hold what was reported and nothing else.
"""

from __future__ import annotations

from dataclasses import replace

from agentenv.errors import EnvError, SandboxError
from agentenv.fleet.evidence import environment_of, full_disks
from agentenv.sandbox.cause import classify_exception
from agentenv.sandbox.contract import Output, Sandbox
from agentenv.telemetry.text import one_line, printable

READ_ONLY = "Read-only file system"
READ_ONLY_HINT = "hint: in a sandbox only /tmp and /dev/shm are writable (and /out, for commands)"
MEMORY_HINT = "hint: it may have reached its limit, which is memory_mb: raise that, or use less"
_OUT_OF_MEMORY = ("MemoryError", "_ArrayMemoryError")  # the second one is numpy's
_NOT_FOUND = "agentenv.guest.maker.EnvironmentNotFound"
_NAME_LIMIT = 200
_TEXT_LIMIT = 65536


def reported(texts: tuple[str, str, str], env_id: str, sandbox: Sandbox, output: Output, index: int | None) -> EnvError:
    """The error to raise for an exception that an environment which lives on reported.

    Args:
        texts: The class's qualified name, the message and the traceback.
        env_id: Of the environment.
        sandbox: Where it lives.
        output: Of the sandbox.
        index: Its position in a vector environment, or None.
    """
    name, message, trace = texts
    sandbox_id, pid = sandbox.spec.id, environment_of(sandbox)
    output.drain(sandbox_id)
    return readable(
        EnvError(
            env_id=env_id,
            cause=classify_exception(name, message, full_disks=full_disks(pid) if pid is not None else ()),
            type_name=name,
            message=message,
            traceback_text=trace,
            output=output.tail(sandbox_id),
            index=index,
        )
    )


def cleaned(error: SandboxError) -> SandboxError:
    """The same error; if an environment raised it, with its texts cleaned."""
    return readable(error) if isinstance(error, EnvError) else error


def readable(error: EnvError) -> EnvError:
    """The same error with its texts cleaned; of the message the beginning is kept, of the traceback the end.

    A name that leads to no environment is told without the traceback, which shows only where we looked for it.
    """
    name = one_line(error.type_name, _NAME_LIMIT)
    trace = printable(error.traceback_text[-_TEXT_LIMIT:])
    shown = "" if name == _NOT_FOUND else trace
    out_of_memory = name.rpartition(".")[2] in _OUT_OF_MEMORY
    for hint in [READ_ONLY_HINT] * (READ_ONLY in error.message) + [MEMORY_HINT] * out_of_memory:
        shown = f"{shown.rstrip()}\n{hint}".lstrip()
    legible = EnvError(
        env_id=error.env_id,
        cause=replace(error.cause, detail=one_line(error.cause.detail)),
        type_name=name.rpartition(".")[2] if name == _NOT_FOUND else name,
        message=printable(error.message[:_TEXT_LIMIT]),
        traceback_text=shown,
        output=error.output,
        index=error.index,
    )
    legible.type_name, legible.traceback_text = name, trace
    return legible
