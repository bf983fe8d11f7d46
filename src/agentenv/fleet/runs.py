"""Finding runs again: the list of them, and the one that a user means.

Reads only. Folders that are no runs are passed over; a run whose files are damaged is listed, with what is wrong.
"""

from __future__ import annotations

import difflib
import os
import re
import time
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from agentenv.errors import ConfigError, Problem, RunDamaged
from agentenv.fleet.owner import moment_of_boot
from agentenv.fleet.rundir import RunDir, RunState, read_object

_STAMPED = re.compile(r"(\d{8}-\d{6})-.+")
_MARKS = ("manifest.json", "resume.0", "resume.1")
"""A folder with one of these is a run's, whatever it is called, and whatever else was lost."""
_SHOWN = 5
_LATEST = 1e11  # seconds since the epoch; what is later is no time but damage


@dataclass(frozen=True, slots=True)
class RunInfo:
    """One line of the list of runs.

    Attributes:
        name: The folder's name.
        path: The folder.
        run_id: The run's id; empty if the manifest is damaged.
        state: What became of it.
        started_unix: When it started, seconds since the epoch; None if nothing tells.
        environments: How many environments have a folder; 0 where that cannot be read.
        problem: What is damaged, in words; empty if nothing.
    """

    name: str
    path: Path
    run_id: str
    state: RunState
    started_unix: float | None
    environments: int
    problem: str

    def summary(self) -> dict[str, Any] | None:
        """Returns the content of ``summary.json``, or None if there is none that can be read."""
        return read_object(self.path / "summary.json")


def list_runs(root: Path) -> list[RunInfo]:
    """Returns the runs under a folder, the oldest first; a folder that is missing or unreadable has none."""
    try:
        folders = [path for path in root.iterdir() if os.path.isdir(path)]
    except OSError:
        return []
    runs = [_describe(path) for path in folders if _is_run(path)]
    boot_id, since_s = moment_of_boot()
    booted = time.time() - since_s
    return sorted(runs, key=lambda run: (_as_of_now(run, boot_id, booted), run.name))


def find_run(root: Path, ref: str) -> RunDir:
    """Returns the run a user means.

    Args:
        root: The folder of all runs.
        ref: A run's name, its id, the beginning of either (if only one run has it), ``latest``, or the path of its
            folder, absolute or from here.

    Raises:
        ConfigError: no run, or more than one, is meant; says which there are.
    """
    runs = list_runs(root)
    if ref == "latest" and runs:
        return RunDir.open(runs[-1].path)
    for run in runs:
        if ref in (run.name, run.run_id) and ref:
            return RunDir.open(run.path)
    path = Path(os.path.abspath(Path(ref).expanduser()))  # what "." and ".." are called is told by this
    is_path = os.sep in ref or ref in (os.curdir, os.pardir)
    if ref and os.path.isdir(path) and (is_path or _is_run(path)):
        if _is_run(path):
            return RunDir.open(path)
        hint = f"expected one with {' or '.join(_MARKS)}; those are missing, or the run lies elsewhere"
        raise _unknown(ref, f"{str(path)!r} is a folder, but not one of a run", hint)
    if is_path and os.path.lexists(path):
        raise _unknown(ref, f"expected the folder of a run, {str(path)!r} is a file", "name the folder it lies in")
    begins = [run for run in runs if run.name.startswith(ref) or run.run_id.startswith(ref)] if ref else []
    if len(begins) == 1:
        return RunDir.open(begins[0].path)
    if begins:
        raise _unknown(ref, f"expected one run, {len(begins)} begin with {ref!r}", f"one of {_names(begins)}")
    if not runs and root.exists() and not root.is_dir():
        raise _unknown(ref, f"expected the directory of all runs, {str(root)!r} is a file", "name another as --run-dir")
    if not runs:
        raise _unknown(ref, f"expected a run, {str(root)!r} has none", "is --run-dir the folder the run was made in?")
    raise _unknown(ref, f"expected a run in {str(root)!r}, none is called {ref!r}", _suggest(ref, runs))


def _suggest(ref: str, runs: list[RunInfo]) -> str:
    # The time in front is the same for all runs of a day; compared with it, they would all be near.
    named: dict[str, list[RunInfo]] = {}
    for run in reversed(runs):
        named.setdefault(_label(run.name), []).append(run)
    near = [run for match in difflib.get_close_matches(_label(ref), named, n=_SHOWN) for run in named[match]]
    near += [run for run in reversed(runs) if ref and ref in run.name]
    hint = f"the latest are {_names(runs[::-1])}"
    if near:
        hint = f"did you mean {_names(list(dict.fromkeys(near)))}?"
    nameless = [run for run in runs if not run.run_id]
    if nameless:
        hint += f"; of {_names(nameless)} only the folder's name is known: manifest.json is lost"
    return hint


def _label(name: str) -> str:
    """A run's name without the time in front."""
    return name[16:] if _STAMPED.fullmatch(name) else name


def _names(runs: list[RunInfo]) -> str:
    shown = ", ".join(run.name for run in runs[:_SHOWN])
    return shown + (", ..." if len(runs) > _SHOWN else "")


def _unknown(ref: str, message: str, hint: str) -> ConfigError:
    return ConfigError([Problem("argument", f"run {ref!r}", message, hint)])


def _is_run(path: Path) -> bool:
    return _STAMPED.fullmatch(path.name) is not None or any(os.path.lexists(path / mark) for mark in _MARKS)


def _describe(path: Path) -> RunInfo:
    run = RunDir.open(path)
    manifest = read_object(run.manifest)
    state = run.state()
    problems = []
    if manifest is None:
        problems.append("manifest.json is damaged" if os.path.lexists(run.manifest) else "manifest.json is missing")
    if os.path.lexists(run.summary) and read_object(run.summary) is None:
        problems.append("summary.json is damaged")
    count = 0
    try:
        count = len(run.environments())
    except RunDamaged:
        problems.append("environments is no folder that can be read")
    return RunInfo(
        name=path.name,
        path=run.path,
        run_id=run.run_id,
        state=state,
        started_unix=_started(path.name, manifest),
        environments=count,
        problem="; ".join(problems),
    )


def _as_of_now(run: RunInfo, boot_id: str, booted: float) -> float:
    """When a run started, by the clock as it goes now: it may have been set since, and the latest run is the latest.

    Args:
        run: The run.
        boot_id: Of this boot.
        booted: When that was, by the clock as it goes now, seconds since the epoch.
    """
    moment = (read_object(run.path / "manifest.json") or {}).get("started_boot")
    if boot_id and isinstance(moment, dict) and moment.get("id") == boot_id:
        since = moment.get("s")
        if isinstance(since, int | float) and not isinstance(since, bool) and 0 <= since < _LATEST:
            return booted + since
    return run.started_unix or 0.0


def _started(name: str, manifest: dict[str, Any] | None) -> float | None:
    started = (manifest or {}).get("started_unix")
    if isinstance(started, int | float) and not isinstance(started, bool) and 0 <= started < _LATEST:
        return float(started)
    stamp = _STAMPED.fullmatch(name)
    try:
        return datetime.strptime(stamp.group(1), "%Y%m%d-%H%M%S").timestamp() if stamp else None
    except (ValueError, OverflowError):
        return None
