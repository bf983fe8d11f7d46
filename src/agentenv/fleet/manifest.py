"""How a run was made: what one has to know to make it again, or to explain why it differs.

Facts about the machine are read, never measured; packages are asked for their version without importing them. What
cannot be found out is None. It holds no environment variables: they carry secrets.
"""

from __future__ import annotations

import os
import platform
import subprocess
import time
from collections.abc import Mapping, Sequence
from datetime import datetime
from importlib import metadata
from pathlib import Path
from typing import Any

import psutil

from agentenv.fleet.owner import Owner

FORMAT = 1
_PACKAGES = ("agentenv", "gymnasium", "numpy")
_GIT_DEADLINE_S = 2.0


def build_manifest(
    *,
    run_id: str,
    runtime: str,
    limits: Mapping[str, Any],
    root_seed: int,
    seeds: Mapping[str, int],
    config_dir: Path,
    config_digest: str,
    argv: Sequence[str],
    packages: Sequence[str] = (),
) -> dict[str, Any]:
    """Returns the content of ``manifest.json``.

    Takes up to 2 s where git is slow to answer.

    Args:
        run_id: The run's id.
        runtime: Name of the runtime in use.
        limits: Which limits it enforces and how, as the runtime tells it.
        root_seed: The seed everything is derived from.
        seeds: The seed of each environment's first episode, by id.
        config_dir: Where the configuration lies; its git commit is recorded.
        config_digest: Digest of the resolved configuration.
        argv: The command line.
        packages: Distributions whose versions matter besides agentenv, gymnasium and numpy.
    """
    started = time.time()
    return {
        "format": FORMAT,
        "run_id": run_id,
        "started": datetime.fromtimestamp(started).astimezone().isoformat(timespec="seconds"),
        "started_unix": started,
        "argv": list(argv),
        "process": Owner.current().as_record(),
        "versions": versions(packages),
        "host": host(),
        "runtime": {"name": runtime, "limits": dict(limits)},
        "seeds": {"root": root_seed, "environments": dict(seeds)},
        "config": {"digest": config_digest, "directory": str(config_dir.absolute()), "git": git_state(config_dir)},
    }


def continued(first: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the manifest of a run that another process goes on with: the first one's, and an entry for this one.

    Args:
        first: The manifest as it is.
        now: What ``build_manifest`` gives in the process that goes on.
    """
    keys = ("run_id", "started", "started_unix", "argv", "process", "versions", "host", "runtime")
    entry = {key: now[key] for key in keys} | {"git": now["config"]["git"]}
    before = first.get("resumed")
    return {**first, "resumed": [*(before if isinstance(before, list) else []), entry]}


def unlike_before(first: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Returns, in sentences, in what a run is resumed otherwise than it was begun; each may change what it computes."""
    found = []
    old, new = first.get("versions") or {}, now["versions"]
    for name in sorted(old.keys() | new.keys()):
        if old.get(name) != new.get(name):
            found.append(f"{name} is {new.get(name)} now, it was {old.get(name)} when the run began")
    commit, other = ((m.get("config") or {}).get("git") or {} for m in (first, now))
    if commit.get("commit") != other.get("commit"):
        found.append(f"the code is at commit {other.get('commit')} now, it was at {commit.get('commit')}")
    return found


def versions(packages: Sequence[str] = ()) -> dict[str, str | None]:
    """Returns the version of Python and of each distribution; None for one that is not installed."""
    found: dict[str, str | None] = {"python": platform.python_version()}
    for name in (*_PACKAGES, *packages):
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = None
    return found


def host() -> dict[str, Any]:
    """Returns what the machine is. ``memory_mb`` is its RAM in MiB, ``cpus_usable`` what this process may run on."""
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return {
        "name": platform.node(),
        "platform": platform.platform(),
        "kernel": platform.release(),
        "machine": platform.machine(),
        "cpu_model": _cpu_model(),
        "cpus": os.cpu_count(),
        "cpus_usable": usable,
        "memory_mb": psutil.virtual_memory().total // 2**20,
    }


def git_state(directory: Path, *, deadline_s: float = _GIT_DEADLINE_S) -> dict[str, Any] | None:
    """Returns the commit of the repository a folder lies in.

    Args:
        directory: A folder.
        deadline_s: Seconds for all questions together.

    Returns:
        ``commit`` (hex) and ``dirty`` (tracked files differ from it; None if that was not known in time). None
        without git, outside a repository, or in one without a commit.
    """
    ends = time.monotonic() + deadline_s
    commit = _git(directory, ends, "rev-parse", "--verify", "HEAD")
    if commit is None:
        return None
    # Untracked files are left out: the folder of runs itself is often one.
    status = _git(directory, ends, "status", "--porcelain", "--untracked-files=no")
    return {"commit": commit, "dirty": None if status is None else bool(status)}


def _git(directory: Path, ends: float, *arguments: str) -> str | None:
    # GIT_DIR and its like would answer for another repository (a commit hook sets them).
    environ = {key: value for key, value in os.environ.items() if not key.startswith("GIT_")}
    environ["GIT_OPTIONAL_LOCKS"] = "0"
    try:
        # fsmonitor off: a repository's own configuration could otherwise name a program that status starts.
        answer = subprocess.run(
            ["git", "-C", str(directory), "-c", "core.fsmonitor=false", *arguments],
            env=environ,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=max(0.0, ends - time.monotonic()),
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return answer.stdout.decode("utf-8", "replace").strip() if answer.returncode == 0 else None


def _cpu_model() -> str | None:
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines():
            key, _, value = line.partition(":")
            if key.strip() == "model name":
                return value.strip()
    except OSError:
        pass
    return platform.processor() or None
