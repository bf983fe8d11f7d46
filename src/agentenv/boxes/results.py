"""What is told of programs and files in a sandbox, as frozen records."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from agentenv.errors import ProgramFailed, ProtocolError
from agentenv.telemetry.text import printable

_TAIL_LINES = 10
_TAIL_BYTES, _LINE = 1 << 14, 500
_SHELL_BASE = 128
# Of what the kernel says of a file: the bits of each number, and whether it may be below zero.
_NUMBERS = {"size": (63, False), "mode": (12, False), "uid": (32, False), "gid": (32, False), "mtime_ns": (95, True)}


@dataclass(frozen=True, slots=True)
class Ending:
    """How a program ended.

    Attributes:
        exit_code: Its exit status; None where a signal ended it.
        signal: The signal's number; None where it exited.
        oom_kills: Kills by the limit of memory among what it had started.
    """

    exit_code: int | None
    signal: int | None
    oom_kills: int = 0

    @property
    def shell_code(self) -> int:
        """As shells have it: the exit status, or 128 plus the signal's number."""
        return self.exit_code if self.exit_code is not None else _SHELL_BASE + (self.signal or 0)

    def __str__(self) -> str:
        return f"exit status {self.exit_code}" if self.exit_code is not None else f"signal {self.signal}"


@dataclass(frozen=True, slots=True)
class Completed:
    """A program that has ended, and what it wrote.

    Attributes:
        command: Program and arguments.
        exit_code: Its exit status; None where a signal ended it.
        signal: The signal's number; None where it exited.
        stdout: What it wrote, at most as much as was asked for; the beginning of it.
        stderr: The same for its standard error.
        timed_out: Whether it was ended because its time was over.
        truncated: Whether more was written than was kept.
        duration_s: From its start to its end, as the host's clock has it.
        oom_kills: Kills by the limit of memory among what it had started.
    """

    command: tuple[str, ...]
    exit_code: int | None
    signal: int | None
    stdout: bytes = field(repr=False)
    stderr: bytes = field(repr=False)
    timed_out: bool
    truncated: bool
    duration_s: float
    oom_kills: int = 0

    @property
    def text(self) -> str:
        """Standard output as text; bytes that are not UTF-8 become U+FFFD."""
        return self.stdout.decode("utf-8", "replace")

    @property
    def shell_code(self) -> int:
        """As shells have it: the exit status, or 128 plus the signal's number."""
        return Ending(self.exit_code, self.signal).shell_code

    def check(self) -> Completed:
        """Itself, if the program ended with status 0.

        Raises:
            ProgramFailed: It did not.
        """
        if self.exit_code == 0:
            return self
        how = "its time was over" if self.timed_out else str(Ending(self.exit_code, self.signal))
        how += " (out of memory)" if self.oom_kills else ""
        text = f"{' '.join(self.command)[:200]!r}: expected exit status 0, got: {how}"
        said = printable(self.stderr[-_TAIL_BYTES:].decode("utf-8", "replace"))
        if lines := said.splitlines()[-_TAIL_LINES:]:
            cut = (line if len(line) <= _LINE else f"{line[: _LINE - 3]}..." for line in lines)
            text += "\n  the end of its standard error:\n" + "\n".join(f"    {line}" for line in cut)
        raise ProgramFailed(text, exit_code=self.exit_code, signal=self.signal, timed_out=self.timed_out)


@dataclass(slots=True)
class Copied:
    """What was copied into a sandbox or out of one, filled in on the way.

    Attributes:
        files: How many files; directories and links are none.
        bytes: Their contents.
        left_out: Names of what is neither file nor directory nor a link that stays within, is made up by a kernel, or
            cannot be read there.
    """

    files: int = 0
    bytes: int = 0
    left_out: list[str] = field(default_factory=list)

    def count(self, size: int) -> None:
        """One more file."""
        self.files += 1
        self.bytes += size


@dataclass(frozen=True, slots=True)
class Entry:
    """A file in a sandbox.

    Attributes:
        name: Its last part.
        path: Relative to what was listed; the path that was asked for, where one file was.
        kind: "file", "directory", "link", "pipe", "socket", "device" or "other".
        size: Bytes.
        mode: Permission bits.
        owner: Number of the user it belongs to.
        group: Number of its group.
        mtime: When its content last changed: seconds since 1970.
        target: Where a link leads; None for all others.
    """

    name: str
    path: str
    kind: str
    size: int
    mode: int
    owner: int
    group: int
    mtime: float
    target: str | None = None


def read_entry(line: bytes, path: str | None, sandbox: str) -> Entry:
    """An entry from what a sandbox says; hostile data.

    Args:
        line: One JSON object.
        path: What was asked for; None where the object has it.
        sandbox: Named in errors.

    Raises:
        ProtocolError: It is none.
    """
    told = read_object(line, sandbox)
    name = told.get("path") if path is None else path
    numbers = [told.get(key) for key in _NUMBERS]
    target, kind = told.get("target"), told.get("kind")
    fits = isinstance(name, str) and isinstance(kind, str) and (target is None or isinstance(target, str))
    # What is joined to it, here or there, must stay below: a kernel has no other names.
    fits = fits and (path is not None or _is_below(str(name)))
    if not fits or not all(map(_is_number, numbers, _NUMBERS.values())):
        raise ProtocolError(f"sandbox {sandbox!r}: expected what a file is, got {line[:200]!r}")
    size, mode, uid, gid, mtime_ns = (int(number) for number in numbers if number is not None)
    last = str(name).rstrip("/").rpartition("/")[2] or "/"
    return Entry(last, str(name), str(kind), size, mode, uid, gid, mtime_ns / 1e9, target)


def _is_below(name: str) -> bool:
    """Whether it is a path from a directory to something in it."""
    return "\0" not in name and not {"", ".", ".."} & set(name.split("/"))


def _is_number(told: object, bounds: tuple[int, bool]) -> bool:
    bits, signed = bounds
    return type(told) is int and told.bit_length() <= bits and (signed or told >= 0)


def read_object(data: bytes, sandbox: str) -> Mapping[str, Any]:
    """A JSON object from a sandbox.

    Raises:
        ProtocolError: It is none.
    """
    try:
        told = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise ProtocolError(f"sandbox {sandbox!r}: expected JSON, got {data[:200]!r}") from error
    if not isinstance(told, dict):
        raise ProtocolError(f"sandbox {sandbox!r}: expected a JSON object, got {data[:200]!r}")
    return told
