"""What a run was made from, kept twice and checked: configuration, manifest, and where its command was started.

``config.toml`` and ``manifest.json`` say the same for people and other programs; a bit that flips in them shows
nowhere. What is to be relied on is read here.
"""

from __future__ import annotations

import json
import os
import tomllib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from agentenv.config import Config, load_config
from agentenv.errors import ConfigError, Problem
from agentenv.fleet.checkpoints import Checkpoint
from agentenv.fleet.rundir import RunDir
from agentenv.telemetry.records import to_json

_FORMAT = 1


def write_resume_point(run: RunDir, config: Config, manifest: Mapping[str, Any], cwd: Path) -> None:
    """Write down, durably and twice, what a run needs to go on.

    Raises:
        ResourceLimit: The disk is full.
    """
    point = {
        "format": _FORMAT,
        "run_id": run.run_id,
        "config": config.to_toml(),
        "base_dir": str(config.base_dir),
        "source": config.source,
        "cwd": str(cwd),
        "manifest": dict(manifest),
    }
    checkpoint = Checkpoint(run.resume)
    for _ in checkpoint.places:
        checkpoint.write(to_json(point))


def read_point(run: RunDir) -> dict[str, Any]:
    """What was written down.

    Raises:
        ConfigError: It cannot be read.
    """
    checkpoint = Checkpoint(run.resume)
    data = checkpoint.read()
    if data is None:
        if any(os.path.lexists(place) for place in checkpoint.places):
            names = " and ".join(str(place) for place in checkpoint.places)
            message = f"expected a run that can go on; both copies of what that needs are damaged: {names}"
            raise mistake(run, message, "put back a copy of one of them, or run its configuration again")
        if os.path.lexists(run.samples):
            message = "expected a run that records its episodes; this is a soak, which steps and measures only"
            raise mistake(
                run, message, "report.json in its folder holds what came of it; agentenv run records episodes"
            )
        message = (
            "expected a run that can go on; this one ended before it had begun, an older version made it, or its files"
            " resume.0 and resume.1 were removed"
        )
        raise mistake(run, message, "run its configuration again")
    point: dict[str, Any] = json.loads(data)
    if point.get("format") != _FORMAT:
        raise mistake(run, f"expected format {_FORMAT} of resume.0, got {point.get('format')}", "use the same version")
    return point


def read_config(run: RunDir) -> tuple[Config, Path]:
    """A run's configuration, with the root seed in it, and where its command was started.

    Raises:
        ConfigError: It cannot be read.
    """
    point = read_point(run)
    return config_of(run, point), Path(point["cwd"])


def config_of(run: RunDir, point: Mapping[str, Any]) -> Config:
    """The configuration in what ``read_point`` returned, with the root seed in it.

    Raises:
        ConfigError: There is no root seed, or this version refuses the configuration.
    """
    root = (point["manifest"].get("seeds") or {}).get("root")
    if type(root) is not int:
        raise mistake(run, f"expected the root seed in resume.0, got {root!r}", "run its configuration again")
    loaded = load_config(tomllib.loads(point["config"]))
    # Where all runs lie is asked from where this command is started; the seed may have been drawn.
    settings = loaded.global_.model_copy(update={"run_dir": str(run.path.parent), "seed": root})
    return replace(loaded, global_=settings, base_dir=Path(point["base_dir"]), source=point["source"])


def mistake(run: RunDir, message: str, hint: str) -> ConfigError:
    """What is wrong with a run that was named on the command line."""
    return ConfigError([Problem("run", run.path.name, message, hint)])
