"""What an environment was asked and what it answered, episode by episode, in one compact file.

A row is one answer: row 0 of an episode is its reset, row n its step n. A row holds the action that led to it, the
reward, the flags, and the digests of ``agentenv.fleet.digests``. Rows are written in chunks, each one append:

    4s magic | u32 length | u32 CRC-32 of the rest | u32 CRC-32 of these twelve bytes
    u32 length of the description | description, JSON | the rows by columns, deflated

A process that is killed loses the rows it had not written yet; a torn end and a flipped bit are found by checksum, and
the chunks around them stay readable. The files of an environment have a size in all: the older episodes go first.
Writing is never fatal, and leaves the last megabyte of a disk to the records.
"""

from __future__ import annotations

import json
import logging
import os
import struct
import time
import zlib
from hashlib import blake2b
from pathlib import Path
from typing import Any

from agentenv.fleet.digests import StepDigest
from agentenv.telemetry.syncing import Syncer

logger = logging.getLogger("agentenv.fleet")

MAGIC = b"AET1"
FRAME = struct.Struct("<4sIII")
CHAIN_BYTES = 16
DEFAULT_MB = 64
FORMAT = 1

_ROWS = 512
_EVERY_S = 1.0
_RESERVE = 1 << 20


class TraceWriter:
    """Appends to the trace of one environment. One thread.

    Attributes:
        path: The file; a second one, with the episodes before, is ``older(path)``.
    """

    def __init__(
        self,
        path: Path,
        *,
        names: tuple[str, ...],
        action_bytes: int,
        limit_mb: float = DEFAULT_MB,
        syncer: Syncer | None = None,
        resume_at: int | None = None,
    ) -> None:
        """Prepare; the file is made at the first chunk.

        Args:
            path: The file; its directory must exist.
            names: Of the parts of the observation.
            action_bytes: Of the fixed part of an action.
            limit_mb: MiB of both files together; 0 writes none.
            syncer: Told of every chunk, so that it reaches the disk.
            resume_at: Where the whole chunks of an earlier process end; what follows is cut off. None: begin anew.
        """
        self.path = path
        self._names, self._action_bytes = list(names), action_bytes
        self._limit = int(limit_mb * 2**20)
        self._syncer = syncer
        self._resume_at = resume_at
        self._fd: int | None = None
        self._size = 0
        self._warned = False
        self._chain = blake2b(digest_size=CHAIN_BYTES)
        self._meta: dict[str, Any] = {}
        self._row, self._body, self._muted, self._due = 0, 0, False, 0.0
        self._clear()

    @property
    def chain(self) -> str:
        """The digest of the episode so far, in hex: of every action and answer, in order."""
        return self._chain.hexdigest()

    def begin(self, episode: int, seed: int, *, attempt: int = 0) -> None:
        """An episode begins; its reset is the next row.

        Args:
            episode: Its number.
            seed: What it was reset with.
            attempt: How often it was begun before.
        """
        self._clear()
        self._chain = blake2b(digest_size=CHAIN_BYTES)
        self._meta = {"episode": episode, "seed": seed, "attempt": attempt}
        self._row, self._body, self._muted = 0, 0, self._limit == 0
        self._due = time.monotonic() + _EVERY_S
        if self._size > self._limit // 4:
            self._rotate()

    def follow(self, action: bytes, variable: bytes, digest: bytes) -> None:
        """The next row is in the file already."""
        self._chain.update(action)
        if variable:
            self._chain.update(variable)
        self._chain.update(digest)
        self._row += 1

    def add(self, action: bytes, variable: bytes, step: StepDigest) -> None:
        """Add a row.

        Args:
            action: The fixed part of the action, ``action_bytes`` long; zeros for a reset.
            variable: The encoded parts of variable size.
            step: The answer.
        """
        self._chain.update(action)
        if variable:
            self._chain.update(variable)
        self._chain.update(step.digest)
        self._row += 1
        if self._muted:
            return
        self._actions.append(action)
        self._variables.append(variable)
        self._steps.append(step)
        if len(self._steps) >= _ROWS or time.monotonic() > self._due:
            self.flush()

    def flush(self) -> None:
        """Write what there is."""
        if self._steps:
            self._write({})
        self._due = time.monotonic() + _EVERY_S

    def end(self, outcome: str, policy_state: bytes = b"") -> None:
        """The episode has ended.

        Args:
            outcome: How.
            policy_state: What its policy, and the stream of its actions, remember for the next one.
        """
        if self._limit:
            self._write({"outcome": outcome, "digest": self.chain, "policy_bytes": len(policy_state)}, policy_state)

    def close(self) -> None:
        """Write what there is and close. Idempotent."""
        self.flush()
        if self._fd is not None:
            fd, self._fd = self._fd, None
            os.close(fd)

    def _clear(self) -> None:
        self._actions: list[bytes] = []
        self._variables: list[bytes] = []
        self._steps: list[StepDigest] = []

    def _write(self, end: dict[str, Any], state: bytes = b"") -> None:
        steps = self._steps
        rows = len(steps)
        variables = self._variables if any(self._variables) else []
        columns = [
            b"".join(self._actions),
            struct.pack(f"<{rows}d", *[step.reward for step in steps]),
            struct.pack(f"<{rows}H", *[step.flags for step in steps]),
            b"".join([step.digest for step in steps]),
            b"".join([struct.pack(f"<{len(self._names)}I", *step.parts) for step in steps]),
            struct.pack(f"<{rows}I", *[step.info for step in steps]),
            struct.pack(f"<{len(variables)}I", *map(len, variables)),
            *variables,
            state,
        ]
        body = zlib.compress(b"".join(columns), 1)
        meta = {**self._meta, "first": self._row - rows, "rows": rows, "variable": bool(variables), **end}
        meta |= {"format": FORMAT, "parts": self._names, "action_bytes": self._action_bytes}
        described = json.dumps(meta, separators=(",", ":")).encode()
        payload = struct.pack("<I", len(described)) + described + body
        head = FRAME.pack(MAGIC, len(payload), zlib.crc32(payload), 0)[:12]
        self._clear()
        if not self._append(head + struct.pack("<I", zlib.crc32(head)) + payload):
            self._muted = True
            return
        self._body += len(payload)
        if self._body > self._limit // 4:
            self._muted = True

    def _append(self, chunk: bytes) -> bool:
        """Write a chunk whole, or not at all."""
        try:
            fd = self._open()
            room = os.fstatvfs(fd)
            if room.f_bavail * room.f_frsize < len(chunk) + _RESERVE:
                raise OSError(0, "the last megabyte of the disk is left to the records")
            try:
                written = os.write(fd, chunk)
                if written != len(chunk):
                    raise OSError(0, f"the disk took {written} of {len(chunk)} bytes")
            except OSError:
                os.ftruncate(fd, self._size)
                raise
        except OSError as error:
            if not self._warned:
                self._warned = True
                logger.warning(
                    "%s: %s: this episode cannot be replayed. The run goes on, and tries again with the next episode.",
                    self.path,
                    error.strerror or error,
                )
            return False
        self._size += len(chunk)
        if self._syncer is not None:
            self._syncer.touch(self.path)
        return True

    def _open(self) -> int:
        if self._fd is None:
            flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
            self._fd = os.open(self.path, flags, 0o644)
            if self._resume_at is not None:
                os.ftruncate(self._fd, min(self._resume_at, os.fstat(self._fd).st_size))
                self._resume_at = None
            self._size = os.fstat(self._fd).st_size
        return self._fd

    def _rotate(self) -> None:
        if self._fd is None:
            return
        try:
            os.replace(self.path, older(self.path))
        except OSError:
            return  # the file then grows on until the next episode
        os.close(self._fd)
        self._fd, self._size = None, 0


def older(path: Path) -> Path:
    """The file with the episodes before those in ``path``."""
    return path.with_name(f"{path.stem}.old{path.suffix}")
