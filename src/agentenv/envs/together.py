"""Snapshots of the environments of a vector."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from agentenv.config import Config
from agentenv.envs.snapshots import Snapshot, Spawns, check_snapshot, spread_seeds
from agentenv.errors import SandboxError, SnapshotError, counted
from agentenv.fleet import moments, restoring
from agentenv.fleet.fleet import Fleet

Leaves = list[Sequence[object]]
"""For each environment, the variable-size leaves of its last observation."""


def take_one(fleet: Fleet, index: int, ended: NDArray[np.bool_], leaves: Leaves, config: Config) -> Snapshot:
    """Keep the present moment of one environment, as bytes or to be done again: good for every position of a vector.

    Raises:
        SnapshotError: It cannot be kept so; says why.
    """
    member = fleet.members[index]
    if fleet.observation_layout.variable and not leaves[index]:
        raise SnapshotError(f"{member.id}: there is no observation yet that could be kept: call reset() first")
    moment = moments.take(fleet, index, portable=True)
    observation = copy.deepcopy(fleet.observations.take(index, leaves[index]))
    own = replace(config, environments=(member,))
    return Snapshot(member.id, moment.how, moment.reasons, observation, bool(ended[index]), own, moment)


def check_index(index: int, count: int) -> int:
    """A position as one from 0.

    Raises:
        IndexError: There is none such.
    """
    if isinstance(index, bool) or not isinstance(index, int | np.integer) or not -count <= index < count:
        raise IndexError(f"index out of range: expected an environment from 0 to {count - 1}, got {index!r}")
    return int(index) % count


def take_all(
    fleet: Fleet, mask: NDArray[np.bool_] | None, ended: NDArray[np.bool_], leaves: Leaves, config: Config
) -> list[Snapshot | None]:
    """Keep the moment of the environments a mask chooses; None for the others.

    Raises:
        SnapshotError: One cannot be kept; says which and why.
    """
    chosen = set(moments.positions(mask, fleet.count))
    return [take_one(fleet, index, ended, leaves, config) if index in chosen else None for index in range(fleet.count)]


def put_all(
    fleet: Fleet,
    snapshots: Sequence[Snapshot | None],
    mask: NDArray[np.bool_] | None,
    reseed: int | str | None,
    spawns: Spawns,
    ended: NDArray[np.bool_],
    leaves: Leaves,
    gone: dict[int, SandboxError],
) -> None:
    """Bring environments to snapshots, and their observations into their slots.

    Args:
        fleet: The environments.
        snapshots: One for each position; None leaves one as it is.
        mask: bool, shape (n,): which of them to use.
        reseed: See ``spread_seeds``.
        spawns: The vector's.
        ended: Which episodes are over; updated.
        leaves: The present ones; updated.
        gone: Those that were not brought back, and why; updated.

    Raises:
        TypeError, ValueError: Something else than snapshots, or another number of them.
        SnapshotError: One cannot be gone back to. What is updated is so for those that were.
    """
    if not isinstance(snapshots, Sequence) or isinstance(snapshots, str | bytes):
        raise TypeError(f"expected a list of snapshots, one for each environment; got {type(snapshots).__name__}")
    if len(snapshots) != fleet.count:
        expected = counted(fleet.count, "snapshot")
        raise ValueError(f"expected {expected}, one for each environment; got {len(snapshots)}")
    chosen = {i: kept for i in moments.positions(mask, fleet.count) if (kept := snapshots[i]) is not None}
    for index, kept in chosen.items():
        check_snapshot(kept, fleet.members[index])
    spawned = spawns.take("restore", [fleet.members[index] for index in chosen]) if reseed == "spawn" else []
    seeds = dict(zip(chosen, spread_seeds(reseed, len(chosen), spawned), strict=True))

    def arrive(index: int) -> None:
        leaves[index] = fleet.put_observation(index, chosen[index].observation)
        ended[index] = chosen[index].ended
        gone.pop(index, None)

    restoring.put(
        fleet,
        {index: kept.moment for index, kept in chosen.items()},
        {index: seed for index, seed in seeds.items() if seed is not None},
        arrive,
    )
