"""Reading traces back: which episodes there are, and the rows of one of them.

Only descriptions are kept while a file is looked through, rows are read when they are asked for. What is damaged is
counted and passed over; the rows that follow a gap in an episode are not used.
"""

from __future__ import annotations

import json
import os
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from agentenv.errors import RunDamaged
from agentenv.fleet.digests import DIGEST_BYTES, StepDigest
from agentenv.fleet.trace import CHAIN_BYTES, FORMAT, FRAME, MAGIC, older
from agentenv.telemetry.regular import open_regular, read_regular

_MOST_BYTES = 1 << 28


@dataclass(frozen=True, slots=True)
class Chunk:
    """One chunk: where it lies, and what it says of itself."""

    path: Path
    offset: int
    length: int
    meta: dict[str, Any]


@dataclass(slots=True)
class EpisodeTrace:
    """An episode as far as it is recorded.

    Attributes:
        episode, seed, attempt: Which one.
        parts: Names of the parts of the observation.
        action_bytes: Of the fixed part of an action.
        rows: Rows that can be read, from the reset on without a gap.
        outcome: How it ended, or None if that is not recorded.
        digest: Its digest in hex, likewise.
        whole: Whether no row is missing, where it has ended.
    """

    episode: int
    seed: int
    attempt: int
    parts: tuple[str, ...]
    action_bytes: int
    rows: int = 0
    outcome: str | None = None
    digest: str | None = None
    whole: bool = True
    chunks: list[tuple[Chunk, int]] = field(default_factory=list)
    end: Chunk | None = None

    def read(self) -> Rows:
        """The rows.

        Raises:
            OSError: The file cannot be read, or was changed since it was looked through.
        """
        found = [_load(chunk).head(take) for chunk, take in self.chunks]
        if not found:
            return Rows.empty(self.action_bytes, len(self.parts))
        return Rows(
            np.concatenate([rows.actions for rows in found]),
            [variable for rows in found for variable in rows.variables],
            np.concatenate([rows.rewards for rows in found]),
            np.concatenate([rows.flags for rows in found]),
            np.concatenate([rows.digests for rows in found]),
            np.concatenate([rows.parts for rows in found]),
            np.concatenate([rows.infos for rows in found]),
        )

    def policy_state(self) -> bytes | None:
        """What its policy remembered at its end, or None where that is not recorded."""
        if self.end is None:
            return None
        return _load(self.end).policy_state or None


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows of an episode; row 0 is the reset.

    Attributes:
        actions: uint8 of shape (n, action_bytes).
        variables: The encoded parts of variable size of each action; empty where the space has none.
        rewards: float64 of shape (n,).
        flags: uint16 of shape (n,).
        digests: uint8 of shape (n, 8).
        parts: uint32 of shape (n, number of parts).
        infos: uint32 of shape (n,).
        policy_state: What stood behind the rows.
    """

    actions: np.ndarray[Any, np.dtype[np.uint8]]
    variables: list[bytes]
    rewards: np.ndarray[Any, np.dtype[np.float64]]
    flags: np.ndarray[Any, np.dtype[np.uint16]]
    digests: np.ndarray[Any, np.dtype[np.uint8]]
    parts: np.ndarray[Any, np.dtype[np.uint32]]
    infos: np.ndarray[Any, np.dtype[np.uint32]]
    policy_state: bytes = b""

    @classmethod
    def empty(cls, action_bytes: int, parts: int) -> Rows:
        """No rows."""
        return _split(b"", 0, action_bytes, parts, variable=False, state_bytes=0)

    def __len__(self) -> int:
        return len(self.rewards)

    def head(self, count: int) -> Rows:
        """The first rows."""
        return Rows(
            self.actions[:count],
            self.variables[:count],
            self.rewards[:count],
            self.flags[:count],
            self.digests[:count],
            self.parts[:count],
            self.infos[:count],
        )

    def action(self, row: int) -> tuple[bytes, bytes]:
        """The action that led to a row: its fixed part and its encoded parts of variable size."""
        return self.actions[row].tobytes(), self.variables[row]

    def step(self, row: int) -> StepDigest:
        """The answer in a row."""
        return StepDigest(
            self.digests[row].tobytes(),
            tuple(int(part) for part in self.parts[row]),
            int(self.infos[row]),
            float(self.rewards[row]),
            int(self.flags[row]),
        )


@dataclass(slots=True)
class Trace:
    """The recorded episodes of one environment.

    Attributes:
        episodes: By number; of one that was begun several times, the last.
        damaged: Places that could not be read.
        end: Where the whole chunks of the newer file end, in bytes.
        damaged_files: The files they are in.
    """

    episodes: dict[int, EpisodeTrace]
    damaged: int
    end: int
    damaged_files: tuple[Path, ...] = ()


def read_trace(path: Path) -> Trace:
    """Look through the trace of an environment; one that does not exist holds no episodes.

    Raises:
        OSError: A file exists but cannot be read.
    """
    trace = Trace({}, 0, 0)
    for file in (older(path), path):
        trace.end = damaged = 0
        for chunk in _chunks(file):
            if chunk is None:
                damaged += 1
                continue
            trace.end = chunk.offset + chunk.length
            _take(trace.episodes, chunk)
        if file != path and not trace.end and not damaged and os.path.isfile(file):
            damaged = 1  # it was full when it became the older one
        if damaged:
            trace.damaged += damaged
            trace.damaged_files = (*trace.damaged_files, file)
    return trace


def _take(episodes: dict[int, EpisodeTrace], chunk: Chunk) -> None:
    meta = chunk.meta
    number, first, rows = meta["episode"], meta["first"], meta["rows"]
    held = episodes.get(number)
    if held is None or held.attempt != meta["attempt"] or (first == 0 and rows):
        held = episodes[number] = EpisodeTrace(
            number, meta["seed"], meta["attempt"], tuple(meta["parts"]), meta["action_bytes"]
        )
    if rows:
        if first > held.rows:
            held.whole = False
        else:
            _cut(held, first)
            held.chunks.append((chunk, rows))
            held.rows = first + rows
            held.whole = True
    elif first > held.rows:
        held.whole = False
    if "outcome" in meta:
        held.outcome, held.digest, held.end = meta["outcome"], meta["digest"], chunk


def _cut(held: EpisodeTrace, rows: int) -> None:
    """Keep only the first rows: what follows was written again."""
    kept, left = [], rows
    for chunk, take in held.chunks:
        take = min(take, left)
        left -= take
        if take:
            kept.append((chunk, take))
    held.chunks, held.rows = kept, rows
    held.outcome = held.digest = held.end = None


def _chunks(path: Path) -> Iterator[Chunk | None]:
    """Every chunk of a file that is whole, and None for every damaged place."""
    try:
        data = read_regular(path)
    except FileNotFoundError:
        return
    at, size = 0, len(data)
    while at < size:
        chunk = _chunk(path, data, at)
        yield chunk
        if chunk is not None:
            at += chunk.length
            continue
        while True:
            # Where the frame is damaged as well, the next one is looked for.
            at = data.find(MAGIC, at + 1)
            if at < 0:
                return
            if _chunk(path, data, at) is not None:
                break


def _chunk(path: Path, data: bytes, at: int) -> Chunk | None:
    if at + FRAME.size > len(data):
        return None
    magic, length, checksum, own = FRAME.unpack_from(data, at)
    if magic != MAGIC or zlib.crc32(data[at : at + 12]) != own:
        return None
    payload = memoryview(data)[at + FRAME.size : at + FRAME.size + length]
    if len(payload) != length or zlib.crc32(payload) != checksum:
        return None
    try:
        (described,) = struct.unpack_from("<I", payload)
        meta = json.loads(bytes(payload[4 : 4 + described]))
        good = (
            meta["format"] == FORMAT
            and all(type(meta[key]) is int for key in ("episode", "seed", "attempt", "first", "rows", "action_bytes"))
            and all(isinstance(name, str) for name in meta["parts"])
            and ("outcome" not in meta or len(bytes.fromhex(meta["digest"])) == CHAIN_BYTES)
        )
    except (ValueError, KeyError, TypeError, struct.error):
        return None
    return Chunk(path, at, FRAME.size + length, meta) if good else None


def _load(chunk: Chunk) -> Rows:
    with open_regular(chunk.path) as file:
        file.seek(chunk.offset)
        data = file.read(chunk.length)
    if _chunk(chunk.path, data, 0) is None:
        raise RunDamaged(f"{chunk.path}: damaged at byte {chunk.offset} since it was looked through")
    (described,) = struct.unpack_from("<I", data, FRAME.size)
    inflate = zlib.decompressobj()
    body = inflate.decompress(data[FRAME.size + 4 + described :], _MOST_BYTES)
    meta = chunk.meta
    return _split(
        body,
        meta["rows"],
        meta["action_bytes"],
        len(meta["parts"]),
        variable=bool(meta["variable"]),
        state_bytes=int(meta.get("policy_bytes", 0)),
    )


def _split(body: bytes, rows: int, action_bytes: int, parts: int, *, variable: bool, state_bytes: int) -> Rows:
    at = 0

    def column(dtype: str, *shape: int) -> np.ndarray[Any, Any]:
        nonlocal at
        found = np.frombuffer(body, dtype, int(np.prod(shape)), at).reshape(shape)
        at += found.nbytes
        return found

    actions = column("u1", rows, action_bytes)
    rewards, flags = column("<f8", rows), column("<u2", rows)
    digests, checks, infos = column("u1", rows, DIGEST_BYTES), column("<u4", rows, parts), column("<u4", rows)
    variables = [b""] * rows
    if variable:
        lengths = column("<u4", rows)
        for row, length in enumerate(lengths.tolist()):
            variables[row] = body[at : at + length]
            at += length
    return Rows(actions, variables, rewards, flags, digests, checks, infos, body[at : at + state_bytes])
