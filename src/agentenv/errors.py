"""Every error agentenv raises on purpose, and who is to blame for it.

    AgentEnvError
    +-- ConfigError            (ValueError)      the TOML or a keyword is wrong; all mistakes at once
    +-- RuntimeUnavailable     (RuntimeError)    this machine cannot do what was asked; says what would help
    +-- InvalidAction          (ValueError)      the caller's action does not fit; nothing was sent
    +-- ClosedError            (RuntimeError)    used after close()
    +-- ConcurrentUse          (RuntimeError)    two threads used one environment at once
    +-- SnapshotError          (RuntimeError)    a moment cannot be kept, gone back to, or forked; says why
    |   +-- SnapshotUnknown    (LookupError)     no stored snapshot has this name or id
    |   +-- SnapshotDamaged                      a stored snapshot is not what was kept; names the file and the reason
    +-- ProtocolError          (ValueError)      the other side sent something that is not the protocol
    +-- ResourceLimit          (OSError)         the host lacks descriptors, memory or disk for this
    +-- RunDamaged             (OSError)         what a run left cannot be read; names the file, and what to do
    +-- ProgramFailed          (RuntimeError)    a program in a sandbox ended otherwise than asked for with check()
    +-- SandboxError           (RuntimeError)    something went wrong in one environment; has its id and a Cause
        +-- EnvError                             the environment's own code raised; type, message, traceback as text
        +-- SandboxDied        (ConnectionError) its process is gone; the cause says why
        +-- StepTimeout        (TimeoutError)    it did not answer in time and was ended

Each class is also the builtin a caller would reach for, so ``except TimeoutError`` works.
Nothing here formats for a terminal: the text is complete as it stands.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass

if sys.version_info >= (3, 11):
    from enum import StrEnum
else:  # an older image's Python
    from enum import Enum

    class StrEnum(str, Enum):
        __str__ = str.__str__


def counted(count: int, one: str, many: str | None = None) -> str:
    """How many of something, in words: ``1 step``, ``2,000 steps``.

    Args:
        count: How many.
        one: What one of them is called; words before the noun may stand in it.
        many: What several are called, where that is not ``one`` with an s.
    """
    return f"{count:,} {one if count == 1 else many or one + 's'}"


class Owner(StrEnum):
    """Who has to act: the environment's author, the machine's operator, or agentenv."""

    ENVIRONMENT = "environment"
    RESOURCES = "resources"
    INFRASTRUCTURE = "infrastructure"


class CauseKind(StrEnum):
    """The ways an environment can fail, as values a program can switch on."""

    EXCEPTION = "exception"
    EXIT = "exit"
    SIGNAL = "signal"
    OUT_OF_MEMORY = "out_of_memory"
    HOST_OUT_OF_MEMORY = "host_out_of_memory"
    DISK_FULL = "disk_full"
    TIMEOUT = "timeout"
    FROZEN = "frozen"
    PROTOCOL = "protocol"
    SANDBOX_LOST = "sandbox_lost"
    START_FAILED = "start_failed"
    CLOSED = "closed"


@dataclass(frozen=True)
class Cause:
    """Why an environment ended, with the evidence.

    Attributes:
        kind: The class of failure.
        owner: Whose problem it is.
        detail: One sentence with the evidence, in words.
        exit_code: The process's exit status, where it exited.
        signal: The signal's number, where it was killed by one.
        oom_kills: Kills counted by the memory controller for this environment.
    """

    kind: CauseKind
    owner: Owner
    detail: str
    exit_code: int | None = None
    signal: int | None = None
    oom_kills: int = 0


class AgentEnvError(Exception):
    """Base of everything agentenv raises on purpose."""


@dataclass(frozen=True)
class Problem:
    """One mistake in a configuration.

    Attributes:
        where: ``file:line`` or ``keyword argument``.
        path: Dotted path of the key, such as ``environments[2].memory_mb``.
        message: What was expected and what came.
        hint: What to do, such as the nearest valid key; may be empty.
    """

    where: str
    path: str
    message: str
    hint: str = ""

    def __str__(self) -> str:
        hint = f" ({self.hint})" if self.hint else ""
        return f"{self.where}: {self.path}: {self.message}{hint}"


class ConfigError(AgentEnvError, ValueError):
    """The configuration is wrong. Carries every mistake found, not just the first.

    Attributes:
        problems: The mistakes, in the order of the file.
    """

    def __init__(self, problems: tuple[Problem, ...] | list[Problem]) -> None:
        self.problems = tuple(problems)
        head = f"{counted(len(self.problems), 'problem')} in the configuration:"
        super().__init__("\n".join([head, *(f"  {p}" for p in self.problems)]))


class RuntimeUnavailable(AgentEnvError, RuntimeError):
    """This machine cannot run what was asked.

    Attributes:
        remedy: What would make it work; may be several lines.
    """

    def __init__(self, message: str, remedy: str = "") -> None:
        self.remedy = remedy
        super().__init__(f"{message}\n  remedy: {remedy}" if remedy else message)


class InvalidAction(AgentEnvError, ValueError):
    """An action does not fit its space. Raised before anything is sent."""


class ClosedError(AgentEnvError, RuntimeError):
    """The environment, sandbox or runtime was closed already."""


class ConcurrentUse(AgentEnvError, RuntimeError):
    """Two threads used one environment, or one vector of them, at the same time. Give each thread its own."""


class SnapshotError(AgentEnvError, RuntimeError):
    """An environment's moment cannot be kept or gone back to, or the environment cannot be forked."""


class SnapshotUnknown(SnapshotError, LookupError):
    """No stored snapshot has this name or id. Says which is nearest."""


class SnapshotDamaged(SnapshotError):
    """A stored snapshot is not what was kept, so nothing is brought back from it.

    Attributes:
        id: Of the snapshot.
        file: The file that is at fault, relative to the snapshot's directory; "" for the snapshot as a whole.
        reason: What is wrong with it.
    """

    def __init__(self, id: str, file: str, reason: str, *, label: str = "") -> None:
        self.id = id
        self.file = file
        self.reason = reason
        what = f"{file}: {reason}" if file else reason
        super().__init__(
            f"snapshot {label or id} is damaged: {what}\n"
            f"  remedy: put the file back from a copy, or take the snapshot anew; agentenv snapshot rm {id} removes it"
        )


class ProtocolError(AgentEnvError, ValueError):
    """Bytes that are not the protocol: lying lengths, unknown tags, wrong shapes."""


class ResourceLimit(AgentEnvError, OSError):
    """The host lacks descriptors, memory or disk. Says how much was needed."""


class RunDamaged(AgentEnvError, OSError):
    """A file or folder of a run is missing, damaged or something else than it should be. Names it, and what to do."""


class ProgramFailed(AgentEnvError, RuntimeError):
    """A program in a sandbox did not end with status 0, and whoever ran it had asked for that.

    Attributes:
        exit_code: Its exit status; None where a signal ended it.
        signal: The signal's number; None where it exited.
        timed_out: Whether it was ended because its time was over.
    """

    def __init__(self, message: str, *, exit_code: int | None, signal: int | None, timed_out: bool) -> None:
        self.exit_code = exit_code
        self.signal = signal
        self.timed_out = timed_out
        super().__init__(message)


class SandboxError(AgentEnvError, RuntimeError):
    """Something went wrong in one environment; the others are untouched.

    Attributes:
        env_id: The environment's id from the configuration.
        cause: Why, as data.
        output: The last lines it wrote to stdout and stderr.
        index: Its position in a vector environment, or None.
    """

    def __init__(
        self,
        message: str,
        *,
        env_id: str,
        cause: Cause,
        output: str = "",
        index: int | None = None,
        noun: str = "environment",
    ) -> None:
        self.env_id = env_id
        self.cause = cause
        self.output = output
        self.index = index
        place = f"{noun} {env_id!r}" + ("" if index is None else f" (index {index})")
        text = f"{place}: {message}"
        if output:
            text += "\n  its last output:\n" + "\n".join(f"    {line}" for line in output.splitlines())
        super().__init__(text)


class EnvError(SandboxError):
    """The environment's own code raised an exception.

    Attributes:
        type_name: Qualified name of the original exception's class.
        message: Its ``str()``.
        traceback_text: The formatted traceback from inside the sandbox.
    """

    def __init__(
        self,
        *,
        env_id: str,
        cause: Cause,
        type_name: str,
        message: str,
        traceback_text: str,
        output: str = "",
        index: int | None = None,
    ) -> None:
        self.type_name = type_name
        self.message = message
        self.traceback_text = traceback_text
        text = f"{type_name}: {message}"
        if traceback_text:
            text += "\n" + traceback_text.rstrip()
        super().__init__(text, env_id=env_id, cause=cause, output=output, index=index)


class SandboxDied(SandboxError, ConnectionError):
    """The environment's process is gone."""


class StepTimeout(SandboxError, TimeoutError):
    """The environment did not answer within its deadline and was ended."""
