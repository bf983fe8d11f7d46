"""A checked configuration: what everything behind it works from.

All keys are present and valid, the defaults are merged, paths are still as written. It decides nothing about the
machine: which runtime ``auto`` means and how many environments fit is found out later.
"""

from __future__ import annotations

import hashlib
import heapq
import json
import re
from collections import Counter
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from agentenv.config.emit import emit
from agentenv.config.machines import FirecrackerConfig, QemuConfig
from agentenv.config.model import (
    MAX_COUNT,
    BubblewrapConfig,
    EnvironmentConfig,
    GlobalConfig,
    NetworkConfig,
    as_plain,
)
from agentenv.config.origin import DICT, KEYWORD
from agentenv.config.rules import LONGEST_ID, copy_ids
from agentenv.config.words import got
from agentenv.errors import ConfigError, Problem


@dataclass(frozen=True)
class Config:
    """A whole configuration. Two are equal when they say the same, wherever they were read from.

    Attributes:
        global_: What holds for the whole run.
        environments: One record a table, in the order of the file, with the defaults merged in.
        bubblewrap: Settings of the bubblewrap runtime.
        qemu: Settings of the qemu runtime.
        firecracker: Settings of the firecracker runtime.
        network: Where the network of machines comes from.
        base_dir: Directory of the file, or the working directory where there was none; paths start here.
        source: The file as it was named, ``dict`` or ``keyword argument``.
    """

    global_: GlobalConfig
    environments: tuple[EnvironmentConfig, ...]
    bubblewrap: BubblewrapConfig = field(default_factory=BubblewrapConfig)
    qemu: QemuConfig = field(default_factory=QemuConfig)
    firecracker: FirecrackerConfig = field(default_factory=FirecrackerConfig)
    network: NetworkConfig = field(default_factory=NetworkConfig)
    base_dir: Path = field(default_factory=Path.cwd, compare=False)
    source: str = field(default=DICT, compare=False)

    @property
    def name(self) -> str:
        """Name of the run: as configured, else made from the file's name."""
        if self.global_.name is not None:
            return self.global_.name
        stem = re.sub(r"[^A-Za-z0-9._-]+", "-", Path(self.source).stem).strip("-._")
        return "run" if not stem or self.source in (DICT, KEYWORD) else stem[:LONGEST_ID]

    def expand(self) -> tuple[EnvironmentConfig, ...]:
        """One record for each environment to start.

        Returns:
            Records with ``count == 1``. An environment with ``count = 3`` becomes id-0, id-1 and id-2; where it has a
            seed, copy ``i`` gets ``seed + i``, as ``gymnasium.vector.VectorEnv.reset`` seeds its sub-environments.
        """
        return tuple(
            environment.model_copy(
                update={
                    "id": copy_id,
                    "count": 1,
                    "seed": None if environment.seed is None else environment.seed + index,
                }
            )
            for environment in self.environments
            for index, copy_id in enumerate(copy_ids(environment.id, environment.count))
        )

    def copies(self) -> dict[str, list[str]]:
        """The ids that ``expand`` makes of the id of each table with a count above 1."""
        return {table.id: copy_ids(table.id, table.count) for table in self.environments if table.count > 1}

    def scaled(self, n: int) -> Config:
        """The same configuration with ``n`` environments in all, shared out as the counts are now.

        Every table keeps at least one environment; what the proportions leave over goes by largest remainder, the
        earlier table first.

        Raises:
            ConfigError: ``n`` is not an integer from the number of tables to 100000, or ids collide when scaled.
        """
        tables = len(self.environments)
        if type(n) is not int or not tables <= n <= MAX_COUNT:
            hint = f"the file has {tables} [[environments]] tables, and each keeps at least one environment"
            message = f"expected an integer from {tables} to {MAX_COUNT}, {got(n, with_kind=type(n) is not int)}"
            raise ConfigError([Problem("--envs", "number of environments", message, hint)])
        counts = _share_out(n, [environment.count for environment in self.environments])
        scaled = tuple(e.model_copy(update={"count": c}) for e, c in zip(self.environments, counts, strict=True))
        ids = Counter(copy_id for e in scaled for copy_id in copy_ids(e.id, e.count))
        unfit = next((copy_id for copy_id, uses in ids.items() if uses > 1 or len(copy_id) > LONGEST_ID), None)
        if unfit is not None:
            message = f"expected ids that are unique and at most {LONGEST_ID} characters long, {got(unfit)}"
            raise ConfigError([Problem("--envs", "environments", message, "rename the environment or set its count")])
        return replace(self, environments=scaled)

    def resolve(self, path: str) -> Path:
        """A path of this configuration (``kernel_image``, ``rootfs_image``) as an absolute one; it need not exist."""
        return (self.base_dir / Path(path).expanduser()).absolute()

    def to_dict(self) -> dict[str, Any]:
        """The configuration as plain JSON values, in the structure of the file, without unset keys."""
        # Settings of machines that are as usual are left out, so that a digest does not depend on there being any.
        machines = {
            "qemu": as_plain(self.qemu),
            "firecracker": as_plain(self.firecracker),
            "network": as_plain(self.network),
        }
        usual = {
            "qemu": as_plain(QemuConfig()),
            "firecracker": as_plain(FirecrackerConfig()),
            "network": as_plain(NetworkConfig()),
        }
        return {
            "global": as_plain(self.global_),
            "bubblewrap": as_plain(self.bubblewrap),
            **{name: table for name, table in machines.items() if table != usual[name]},
            "environments": [as_plain(environment) for environment in self.environments],
        }

    def to_toml(self) -> str:
        """The configuration as TOML with every key that has a value; loading it gives an equal Config."""
        origin = f"resolved from {self.source}; relative paths start at {self.base_dir}"
        return emit(self.to_dict(), comments=(origin,))

    def digest(self) -> str:
        """SHA-256, in hex, of what the configuration says: equal for equal configs, whatever file they came from."""
        canonical = json.dumps(self.to_dict(), sort_keys=True, separators=(",", ":"), ensure_ascii=True)
        return hashlib.sha256(canonical.encode()).hexdigest()


def _share_out(n: int, weights: list[int]) -> list[int]:
    """Split ``n`` in proportion to the weights, each share at least 1. Integers only, so the same everywhere."""
    total = sum(weights)
    shares = [max(1, n * weight // total) for weight in weights]
    missing = n - sum(shares)
    # How much more than its share a table is due, in units of 1/total; the index breaks ties.
    if missing > 0:
        due = sorted(range(len(weights)), key=lambda i: (shares[i] * total - n * weights[i], i))
        for index in due[:missing]:
            shares[index] += 1
    heap = [(n * weights[i] - shares[i] * total, -i) for i in range(len(weights)) if shares[i] > 1]
    heapq.heapify(heap)
    for _ in range(-missing):
        deficit, negative = heapq.heappop(heap)
        shares[-negative] -= 1
        if shares[-negative] > 1:
            heapq.heappush(heap, (deficit + total, negative))
    return shares
