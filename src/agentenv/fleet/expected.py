"""What a run's folder should hold, by what the run says of itself elsewhere: in its summary, events and configuration.

With it, what is lost without a trace can be told from what never was. A witness that is damaged says nothing.
"""

from __future__ import annotations

import contextlib
import os
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from agentenv.config import Config, EnvironmentConfig, load_config
from agentenv.errors import ConfigError, counted
from agentenv.fleet.damage import REMEDY, misplaced
from agentenv.fleet.rundir import EnvDir, RunDir, RunState, read_object
from agentenv.telemetry.events import read_events


@dataclass(frozen=True, slots=True)
class Expected:
    """What is known of a run's environments.

    Attributes:
        run: Its folder.
        state: What became of it.
        episodes: How many episodes an environment has finished, by id; an id that is missing is one nothing tells of.
        began: Ids of those that were started at all.
        environments: Their configuration, by id; empty where that is not known.
        copies: Ids of the environments that the id of a table with a count stands for.
    """

    run: RunDir
    state: RunState
    episodes: Mapping[str, int]
    began: frozenset[str]
    environments: Mapping[str, EnvironmentConfig]
    copies: Mapping[str, Sequence[str]]

    def place(self, env_id: str) -> EnvDir:
        """Where an environment's files are, or should be."""
        return EnvDir(env_id, self.run.path / "environments" / env_id)

    def missing(self) -> dict[str, str]:
        """Environments that must have a folder and have none, by id, each with a sentence on it.

        Raises:
            RunDamaged: Something stands in the way of all of them.
        """
        there = {place.env_id for place in self.run.environments()}
        found = {}
        for env_id in sorted({*self.episodes, *self.began, *self.environments} - there):
            path, count = self.place(env_id).path, self.episodes.get(env_id, 0)
            what = "the folder of an environment" + (f" with {counted(count, 'finished episode')}" if count else "")
            if wrong := misplaced(path, what, folder=True):
                found[env_id] = wrong
            elif (count or env_id in self.began) and not os.path.lexists(path):
                found[env_id] = f"{path}: expected {what}, it is missing ({REMEDY})"
        return found


def read_expected(run: RunDir) -> Expected:
    """Ask everything in a run's folder that tells of its environments."""
    episodes: dict[str, int] = {}
    began: set[str] = set()

    def told(env_id: object, count: object) -> None:
        if isinstance(env_id, str) and type(count) is int and count >= 0:
            episodes[env_id] = max(episodes.get(env_id, 0), count)

    state = run.state()
    listed = (read_object(run.summary) or {}).get("environments")
    for record in listed if isinstance(listed, list) else []:
        if isinstance(record, dict):
            told(record.get("id"), record.get("episodes"))
    with contextlib.suppress(OSError):
        for event in read_events(run.events)[0]:
            if event.env_id is not None and event.kind == "env_started":
                began.add(event.env_id)
            elif event.kind in ("env_done", "env_failed", "env_interrupted"):
                told(event.env_id, event.fields.get("episodes"))
    config = _configured(run.resume_point())
    environments = {} if config is None else {environment.id: environment for environment in config.expand()}
    return Expected(run, state, episodes, frozenset(began), environments, {} if config is None else config.copies())


def _configured(point: Mapping[str, Any]) -> Config | None:
    try:
        return load_config(tomllib.loads(str(point["config"])))
    except (KeyError, ConfigError, ValueError):
        return None
