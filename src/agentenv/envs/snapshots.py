"""Snapshots of an environment: taking them, going back to them, keeping them in files.

A file holds what the environment gave, made and read only inside sandboxes, the configuration it belongs to, and a
checksum. Loading one on the host parses JSON and nothing else.
"""

from __future__ import annotations

import errno
import json
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from agentenv.config import Config, EnvironmentConfig, load_config
from agentenv.errors import AgentEnvError, SnapshotError, counted
from agentenv.fleet.journal import Past
from agentenv.fleet.moments import How, Moment
from agentenv.fleet.seeds import Seeds
from agentenv.telemetry.atomic import write_atomic
from agentenv.wire.slot import OUTCOME_WORDS
from agentenv.wire.values import decode, encode

_MAGIC = b"agentenv-snapshot-1\n"
_LARGEST = 1 << 31
_CRC_BYTES = 4
_WHAT = {"fork": "a process", "machine": "a machine"}
_FIRST_SPAWN = 1 << 30
"""Seeds of copies are drawn from here on, apart from those of episodes."""


@dataclass(frozen=True, slots=True, repr=False)
class Snapshot:
    """A moment of one environment.

    Attributes:
        env_id: Whose.
        how: How it is kept. "state": by the environment's own get_state; "pickle": by its attributes; "fork": as a
            process in its sandbox, which ends with it; "machine": as a snapshot of its machine, which ends with the
            run; "replay": as everything that was done since it was built.
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

    def __repr__(self) -> str:
        size = _WHAT.get(self.how) or counted(self._size, "byte")
        return f"<Snapshot of {self.env_id}: how={self.how!r}, ended={self.ended}, {size}>"

    @property
    def _size(self) -> int:
        past = self.moment.past
        return len(self.moment.data) + (0 if past is None else sum(len(data) for *_, data in past.segments))

    def save(self, path: str | Path) -> None:
        """Write it to a file, which replaces an older one as a whole.

        Raises:
            SnapshotError: It is a forked process or a machine, which no file can hold.
            ResourceLimit: The disk is full; an older file is kept.
            OSError: It cannot be written for another reason; ``filename`` is the path as it was given.
        """
        path = _writable(path)
        moment = self.moment
        if moment.how in _WHAT:
            if self.reasons:
                why = f"its state could not be had as bytes ({self.reasons[0]}). Take it with"
                remedy = 'how="replay" to save what was done instead'
            else:
                why, remedy = f'it was taken with how="{moment.how}". Take it', 'without how, or with how="replay"'
            raise SnapshotError(
                f"{self.env_id}: this snapshot is {_WHAT[moment.how]}, and cannot be saved; {why} {remedy}"
            )
        past = None
        if moment.past is not None:
            arrays = moment.past.outcomes, moment.past.binding, moment.past.positions
            past = [moment.past.segments, *(array.tobytes() for array in arrays), moment.seed]
        body = encode([moment.how, moment.data, past, self.observation])
        header = {
            "env_id": self.env_id,
            "ended": self.ended,
            "config": self.config.to_dict(),
            "base_dir": str(self.config.base_dir),
            "source": self.config.source,
            "bytes": len(body),
        }
        content = json.dumps(header).encode() + b"\n" + body
        write_atomic(path, _MAGIC + content + zlib.crc32(content).to_bytes(_CRC_BYTES, "little"))

    def close(self) -> None:
        """End the forked process, or remove the machine, where it is one. Idempotent."""
        if self.moment.parked is not None:
            self.moment.parked.drop()


def _writable(path: str | Path) -> Path:
    """The path, if a file can be there.

    Raises:
        OSError: It is a folder, or its folder is none.
    """
    file, what = Path(path), "expected the path of a file to write the snapshot to"
    if file.is_dir():
        raise IsADirectoryError(errno.EISDIR, f"{what}, got a folder; add a name for the file", str(path))
    if not file.parent.exists():
        hint = f"in a folder that exists; make {str(file.parent)!r} first"
        raise FileNotFoundError(errno.ENOENT, f"{what}, {hint}", str(path))
    if not file.parent.is_dir():
        hint = f"in a folder; {str(file.parent)!r} is none"
        raise NotADirectoryError(errno.ENOTDIR, f"{what}, {hint}", str(path))
    return file


def load_snapshot(path: str | Path) -> Snapshot:
    """Read a file written by ``Snapshot.save``.

    Raises:
        SnapshotError: It is not one, or damaged.
        OSError: It cannot be read.
    """
    data = Path(path).read_bytes()
    if not data.startswith(_MAGIC):
        raise SnapshotError(f"{path}: expected a snapshot of agentenv, found something else")
    content, checksum = data[len(_MAGIC) : -_CRC_BYTES], data[-_CRC_BYTES:]
    if zlib.crc32(content).to_bytes(_CRC_BYTES, "little") != checksum:
        raise SnapshotError(f"{path}: damaged: it was cut short, or changed; its checksum is not that of what it holds")
    head, _, body = content.partition(b"\n")
    try:
        header = json.loads(head)
        if len(body) != header["bytes"]:
            raise SnapshotError(f"{path}: damaged: {len(body)} bytes instead of {header['bytes']}")
        parts: Any = decode(body, max_bytes=_LARGEST)
        how, state, past, observation = parts
        held = seed = None
        if past is not None:
            segments, outcomes, binding, positions, seed = past
            found = np.frombuffer(outcomes, np.uint64).reshape(-1, OUTCOME_WORDS)
            held = Past(segments, found, np.frombuffer(binding, np.bool_), np.frombuffer(positions, np.int64))
        loaded = load_config(header["config"])
        config = replace(loaded, base_dir=Path(header["base_dir"]), source=str(header["source"]))
        moment = Moment(how, state, past=held, seed=seed)
        return Snapshot(str(header["env_id"]), how, (), observation, bool(header["ended"]), config, moment)
    except SnapshotError:
        raise
    except (AgentEnvError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise SnapshotError(f"{path}: damaged: {type(error).__name__}: {error}") from error


def check_snapshot(found: object, member: EnvironmentConfig) -> Snapshot:
    """Whether an environment can be brought to this at all.

    Raises:
        TypeError: It is no snapshot.
        SnapshotError: It is one of another kind of environment.
    """
    if not isinstance(found, Snapshot):
        raise TypeError(
            f"{member.id}: expected a Snapshot, got {type(found).__name__} {found!r:.80}; a file is read with"
            " AgentENV.from_snapshot(path), which makes an environment of it, or with agentenv.load_snapshot(path)"
        )
    theirs = found.config.environments[0]
    for key in ("env", "env_kwargs", "wrappers"):
        expected, got = getattr(member, key), getattr(theirs, key)
        if expected != got:
            raise SnapshotError(
                f"{member.id}: the snapshot is of another environment ({found.env_id}): expected {key}"
                f" {expected!r:.200}, got {got!r:.200}"
            )
    return found


class Spawns:
    """The seeds of ``reseed="spawn"``: others at every call, and the same ones for the same calls in the same order.

    Args:
        seeds: The run's.
    """

    def __init__(self, seeds: Seeds) -> None:
        self._seeds = seeds
        self._taken = 0

    def take(self, what: str, members: Sequence[EnvironmentConfig]) -> list[int]:
        """A seed for each of some environments, from its own seed where it has one, else from the run's.

        Args:
            what: What they are for: fork or restore.
            members: The environments; one may be there several times.
        """
        first = _FIRST_SPAWN + self._taken
        self._taken += len(members)
        return [
            self._seeds.environment(f"{member.id}/{what}", seed=member.seed, episode=number)
            for number, member in enumerate(members, first)
        ]


def single_seed(reseed: object, spawn: Callable[[], int] | None = None) -> dict[int, int]:
    """The seed of new random streams for the only environment there is; none for None.

    Args:
        reseed: None keeps the moment's streams; an int is the seed; "spawn" has one drawn.
        spawn: Draws it; without, "spawn" is refused.

    Raises:
        ValueError: It is none of these.
    """
    if reseed is None:
        return {}
    if spawn is not None and isinstance(reseed, str) and reseed == "spawn":
        return {0: spawn()}
    if isinstance(reseed, int | np.integer) and not isinstance(reseed, bool) and reseed >= 0:
        return {0: int(reseed)}
    expected = "None or an int" if spawn is None else 'None, "spawn" or an int'
    raise ValueError(f"reseed: expected {expected} that is not negative, got {reseed!r}")


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
