"""Snapshots of an environment: taking them, going back to them, keeping them in files.

A file holds what the environment gave, made and read only inside sandboxes, the configuration it belongs to, and a
checksum. Loading one on the host parses JSON and nothing else.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from agentenv.config import Config, load_config
from agentenv.errors import SnapshotError
from agentenv.fleet.journal import Past
from agentenv.fleet.moments import How, Moment
from agentenv.telemetry.atomic import write_atomic
from agentenv.wire.slot import OUTCOME_WORDS
from agentenv.wire.values import decode, encode

_MAGIC = b"agentenv-snapshot-1\n"
_LARGEST = 1 << 31


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A moment of one environment.

    Attributes:
        env_id: Whose.
        how: How it is kept. "state": by the environment's own get_state; "pickle": by its attributes; "fork": as a
            process in its sandbox, which ends with it; "replay": as everything that was done since it was built.
        reasons: Why better ways were not possible.
        observation: The last observation handed out before it, of the space's dtype and shape.
        ended: Whether the episode was over.
        config: The configuration of the environment.
    """

    env_id: str
    how: How
    reasons: tuple[str, ...]
    observation: Any
    ended: bool
    config: Config
    moment: Moment

    def save(self, path: str | Path) -> None:
        """Write it to a file, which replaces an older one as a whole.

        Raises:
            SnapshotError: It is a forked process, which no file can hold.
            ResourceLimit: The disk is full; an older file is kept.
            OSError: It cannot be written for another reason.
        """
        moment = self.moment
        if moment.how == "fork":
            why = f" ({self.reasons[0]})" if self.reasons else ""
            raise SnapshotError(
                f"{self.env_id}: this snapshot is a process, and cannot be saved; its state could not be had as bytes"
                f'{why}. Take it with how="replay" to save what was done instead'
            )
        past = None
        if moment.past is not None:
            arrays = moment.past.outcomes, moment.past.binding, moment.past.positions
            past = [moment.past.segments, *(array.tobytes() for array in arrays)]
        body = encode([moment.how, moment.data, past, self.observation])
        header = {
            "env_id": self.env_id,
            "ended": self.ended,
            "config": self.config.to_dict(),
            "base_dir": str(self.config.base_dir),
            "source": self.config.source,
            "bytes": len(body),
            "crc32": zlib.crc32(body),
        }
        write_atomic(Path(path), _MAGIC + json.dumps(header).encode() + b"\n" + body)

    def close(self) -> None:
        """End the forked process, where it is one. Idempotent."""
        if self.moment.parked is not None:
            self.moment.parked.drop()


def load_snapshot(path: str | Path) -> Snapshot:
    """Read a file written by ``Snapshot.save``.

    Raises:
        SnapshotError: It is not one, or damaged.
        OSError: It cannot be read.
    """
    data = Path(path).read_bytes()
    if not data.startswith(_MAGIC):
        raise SnapshotError(f"{path}: expected a snapshot of agentenv, found something else")
    head, _, body = data[len(_MAGIC) :].partition(b"\n")
    try:
        header = json.loads(head)
        if len(body) != header["bytes"] or zlib.crc32(body) != header["crc32"]:
            raise SnapshotError(f"{path}: damaged: {len(body)} bytes instead of {header['bytes']}, or changed ones")
        parts: Any = decode(body, max_bytes=_LARGEST)
        how, state, past, observation = parts
        held = None
        if past is not None:
            segments, outcomes, binding, positions = past
            found = np.frombuffer(outcomes, np.uint64).reshape(-1, OUTCOME_WORDS)
            held = Past(segments, found, np.frombuffer(binding, np.bool_), np.frombuffer(positions, np.int64))
        loaded = load_config(header["config"])
        config = replace(loaded, base_dir=Path(header["base_dir"]), source=str(header["source"]))
        moment = Moment(how, state, past=held)
        return Snapshot(str(header["env_id"]), how, (), observation, bool(header["ended"]), config, moment)
    except SnapshotError:
        raise
    except (ValueError, KeyError, TypeError) as error:
        raise SnapshotError(f"{path}: damaged: {type(error).__name__}: {error}") from error


def spread_seeds(reseed: int | str | None, count: int, spawned: Sequence[int]) -> list[int | None]:
    """The seeds of ``count`` copies.

    Args:
        reseed: None keeps the moment's streams; an int or "spawn" gives each copy its own.
        count: How many.
        spawned: Seeds for "spawn".

    Raises:
        ValueError: It is none of these.
    """
    if reseed is None:
        return [None] * count
    if reseed == "spawn":
        return list(spawned)
    if isinstance(reseed, int | np.integer) and not isinstance(reseed, bool) and reseed >= 0:
        return [int(part.generate_state(1)[0]) >> 1 for part in np.random.SeedSequence(int(reseed)).spawn(count)]
    raise ValueError(f'reseed: expected None, "spawn" or an int that is not negative, got {reseed!r}')
