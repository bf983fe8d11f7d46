"""The folder of one run: its names, and how its files are written.

    runs/20260314-101530-gridworld/
      config.toml            the resolved configuration
      manifest.json          everything needed to say how the run was made
      events.jsonl           what happened
      summary.json           written last: a run with it is finished
      environments/agent_1/
        stdout.log stderr.log episodes.jsonl trace.bin out/
      resume.0 resume.1      the same, checked, from which an interrupted run goes on

Whole files are replaced atomically, records are appended, so a kill at any moment leaves a readable folder. Nothing
here deletes anything.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from pathlib import Path
from typing import Any

from agentenv.disk import FULL, MOUNT, UNWRITABLE
from agentenv.errors import ConfigError, Problem, ResourceLimit, RunDamaged
from agentenv.fleet.checkpoints import Checkpoint
from agentenv.fleet.damage import misplaced, reading
from agentenv.fleet.owner import Owner, moment_of_boot
from agentenv.telemetry.records import to_json, write_atomic
from agentenv.telemetry.regular import read_regular

_SAFE_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
_NAME_LIMIT = 64


class RunState(StrEnum):
    """What became of a run."""

    RUNNING = "running"
    FINISHED = "finished"
    INTERRUPTED = "interrupted"


@dataclass(frozen=True, slots=True)
class EnvDir:
    """One environment's folder.

    Attributes:
        env_id: Its id.
        path: The folder.
    """

    env_id: str
    path: Path

    @property
    def stdout(self) -> Path:
        """What it wrote to its standard output."""
        return self.path / "stdout.log"

    @property
    def stderr(self) -> Path:
        """What it wrote to its standard error."""
        return self.path / "stderr.log"

    @property
    def episodes(self) -> Path:
        """One record an episode."""
        return self.path / "episodes.jsonl"

    @property
    def trace(self) -> Path:
        """Actions and digests of every step; see ``agentenv.fleet.trace``."""
        return self.path / "trace.bin"

    @property
    def out(self) -> Path:
        """What a ``command`` left in its ``/out``; not created here."""
        return self.path / "out"


@dataclass(frozen=True, slots=True)
class RunDir:
    """A run's folder.

    Attributes:
        path: The folder, absolute.
        run_id: The run's id.
    """

    path: Path
    run_id: str

    @classmethod
    def create(cls, root: Path, name: str, run_id: str) -> RunDir:
        """Makes a folder that nobody else has, with a first manifest that names this process as its owner.

        Args:
            root: The folder of all runs; made if missing.
            name: The run's name; characters unfit for a file name become dashes.
            run_id: The run's id.

        Raises:
            ConfigError: the folder cannot be made there.
            ResourceLimit: the disk is full.
        """
        started = time.time()
        stamp = datetime.fromtimestamp(started).strftime("%Y%m%d-%H%M%S")
        try:
            root = root.expanduser().absolute()
            root.mkdir(parents=True, exist_ok=True)
            path = _make_unique(root, f"{stamp}-{_file_name(name)}")
            run = cls(path, run_id)
            boot_id, since_s = moment_of_boot()
            run.write_manifest({"started_unix": started, "started_boot": {"id": boot_id, "s": since_s}})
        except ResourceLimit:
            raise
        except OSError as error:
            if error.errno in FULL:
                raise ResourceLimit(error.errno, f"no room on the disk for a run's folder in {root}") from error
            raise ConfigError(
                [
                    Problem(
                        str(root),
                        "global.run_dir",
                        f"expected a folder in which runs can be made, got: {error.strerror or error}",
                        "choose another one with --run-dir",
                    )
                ]
            ) from error
        return run

    @classmethod
    def open(cls, path: Path) -> RunDir:
        """Returns the folder of a run made earlier. The run id is empty where neither manifest nor its copy has it."""
        path = Path(os.path.abspath(path))
        found = (read_object(path / "manifest.json") or {}).get("run_id")
        if not isinstance(found, str):
            found = cls(path, "").resume_point().get("run_id")
        return cls(path, found if isinstance(found, str) else "")

    @property
    def config(self) -> Path:
        """The resolved configuration."""
        return self.path / "config.toml"

    @property
    def manifest(self) -> Path:
        """How the run was made."""
        return self.path / "manifest.json"

    @property
    def summary(self) -> Path:
        """How it ended."""
        return self.path / "summary.json"

    @property
    def earlier_summary(self) -> Path:
        """How the part before the last one ended, where the run was interrupted and gone on with."""
        return self.path / "summary.json.prev"

    @property
    def events(self) -> Path:
        """What happened."""
        return self.path / "events.jsonl"

    @property
    def samples(self) -> Path:
        """Path of what a soak measured; a run of another kind has none."""
        return self.path / "samples.jsonl"

    @property
    def resume(self) -> Path:
        """What a run needs to go on, as two checked copies; see ``agentenv.fleet.checkpoints``."""
        return self.path / "resume"

    def resume_point(self) -> dict[str, Any]:
        """What ``agentenv.fleet.origin`` wrote, as far as a copy of it is whole; empty where none is. Says nothing."""
        data = Checkpoint(self.resume).read(quiet=True)
        value = None if data is None else json.loads(data)
        return value if isinstance(value, dict) else {}

    def lock(self) -> int | None:
        """Hold the folder for this process, until the returned descriptor is closed; None if another one holds it.

        The kernel lets go when the process ends, however it ends. Where a file system knows no locks, nobody holds it.
        """
        fd = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(fd)
            return None
        except OSError:
            pass
        return fd

    def take_over(self, manifest: Mapping[str, Any]) -> None:
        """Makes this process the run's owner; a summary of the interrupted part is kept as ``summary.json.prev``.

        Args:
            manifest: All of ``manifest.json``, whose ``process`` is replaced.

        Raises:
            ConfigError: the disk is read-only.
            ResourceLimit: the disk is full.
            RunDamaged: the summary, or the one before it, is something else than a file.
        """
        owned = {**manifest, "process": Owner.current().as_record()}
        try:
            with reading(self.summary, "the run's summary"), contextlib.suppress(FileNotFoundError):
                os.replace(self.summary, self.earlier_summary)
            write_atomic(self.manifest, to_json(owned, indent=2) + b"\n")
        except OSError as error:
            refused = error.__cause__ if isinstance(error, RunDamaged) else error
            if not isinstance(refused, OSError) or refused.errno != errno.EROFS:
                raise
            message = f"expected a run whose folder can be written, got: {os.strerror(errno.EROFS)}"
            hint = f"{MOUNT}, or copy the folder to another one and name that with --run-dir"
            raise ConfigError([Problem("--resume", self.path.name, message, hint)]) from error

    def write_config(self, text: str) -> None:
        """Writes ``config.toml``.

        Raises:
            ResourceLimit: the disk is full.
        """
        write_atomic(self.config, text.encode())

    def write_manifest(self, manifest: Mapping[str, Any]) -> None:
        """Replaces ``manifest.json``; the run's id, start and owner stay in it whatever is given.

        Raises:
            ResourceLimit: the disk is full.
        """
        first = read_object(self.manifest) or {}
        kept = {
            "run_id": self.run_id,
            "started_unix": first.get("started_unix", manifest.get("started_unix")),
            "process": first.get("process", Owner.current().as_record()),
        }
        if (moment := first.get("started_boot", manifest.get("started_boot"))) is not None:
            kept["started_boot"] = moment
        write_atomic(self.manifest, to_json({**manifest, **kept}, indent=2) + b"\n")

    def write_summary(self, summary: Mapping[str, Any]) -> None:
        """Writes ``summary.json``, after which the run counts as finished.

        Raises:
            ResourceLimit: the disk is full.
        """
        write_atomic(self.summary, to_json(summary, indent=2) + b"\n")

    def environment(self, env_id: str) -> EnvDir:
        """Returns an environment's folder, made if missing.

        Raises:
            ValueError: the id is not fit for a folder's name, or the folder lies elsewhere (a symbolic link).
            ResourceLimit: the disk is full or read-only.
            OSError: it cannot be made for another reason.
        """
        if not _SAFE_ID.fullmatch(env_id):
            raise ValueError(f"expected an id of letters, digits, '.', '_' and '-', at most 63, got {env_id!r}")
        path = self.path / "environments" / env_id
        try:
            path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            if error.errno in UNWRITABLE:
                why = "the disk is read-only:" if error.errno == errno.EROFS else "no room on the disk for"
                raise ResourceLimit(error.errno, f"{why} {path}") from error
            raise
        if path.resolve() != self.path.resolve() / "environments" / env_id:
            raise ValueError(f"expected the folder of {env_id!r} inside the run, got a link to {path.resolve()}")
        return EnvDir(env_id, path)

    def environments(self) -> list[EnvDir]:
        """Returns the environments that have a folder, by id; makes none.

        Raises:
            RunDamaged: something stands in the way of their folders.
        """
        root = self.path / "environments"
        what = "the folder of the run's environments"
        if wrong := misplaced(root, what, folder=True):
            raise RunDamaged(wrong)
        if not os.path.lexists(root):
            return []
        with reading(root, what):
            paths = sorted(root.iterdir())
        return [
            EnvDir(path.name, path)
            for path in paths
            if _SAFE_ID.fullmatch(path.name) and os.path.isdir(path) and not path.is_symlink()
        ]

    def state(self) -> RunState:
        """Finished if there is a summary, else running if the process that made it lives, else interrupted."""
        owner = Owner.from_record((read_object(self.manifest) or {}).get("process"))
        # In this order: a run that ends just now writes its summary while its process is still alive.
        running = owner is not None and owner.alive()
        if os.path.isfile(self.summary):
            return RunState.FINISHED
        return RunState.RUNNING if running else RunState.INTERRUPTED


def read_object(path: Path) -> dict[str, Any] | None:
    """Reads a JSON object; None if the file is missing, unreadable or damaged."""
    try:
        value = json.loads(read_regular(path))
    except (OSError, ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _file_name(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip(".-")[:_NAME_LIMIT] or "run"


def _make_unique(root: Path, name: str) -> Path:
    number = 1
    while True:
        path = root / (name if number == 1 else f"{name}-{number}")
        try:
            path.mkdir()
        except FileExistsError:
            number += 1
        else:
            return path
