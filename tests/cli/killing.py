"""Killing runs, and looking at what they come to all the same."""

from __future__ import annotations

import json
import random
import subprocess
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from agentenv.telemetry.records import read_records
from cli_watch import descendants

WHOLE = ("terminated", "truncated")


def episodes(run: Path) -> dict[str, list[tuple[Any, ...]]]:
    """Everything that must be equal of the finished episodes, by environment; the last record of each counts."""
    found = {}
    for place in sorted((run / "environments").iterdir()):
        records, _ = read_records(place / "episodes.jsonl")
        last = {r["episode"]: r for r in records if r["outcome"] in WHOLE}
        keys = ("episode", "seed", "return", "length", "outcome", "digest")
        found[place.name] = [tuple(last[n][key] for key in keys) for n in sorted(last)]
    return found


@dataclass
class Killer:
    """Kills a run over and over, and resumes it until it is finished.

    Attributes:
        command: The fixture.
        config: Path of the configuration.
        draw: Where the moments come from.
        kills: How often it has killed.
        too_early: How often there was nothing to resume yet.
        below: Everything that ran below the killed processes.
        run_ids: Of every process that wrote a manifest.
        said: What the resumed runs wrote to stderr.
    """

    command: Any
    config: str
    draw: random.Random
    kills: int = 0
    too_early: int = 0
    below: list[psutil.Process] = field(default_factory=list)
    run_ids: set[str] = field(default_factory=set)
    said: list[str] = field(default_factory=list)

    def batch(self, directory: str, longest_s: float, most: int) -> Path:
        """One run from its beginning to its end, killed up to ``most`` times on the way; returns its folder."""
        fresh = ("run", self.config, "--run-dir", directory, "-q")
        arguments, kills = fresh, 0
        while True:
            process = self.command.start(*arguments)
            try:
                _, stderr = process.communicate(timeout=self.draw.uniform(0.0, longest_s) if kills < most else 100)
            except subprocess.TimeoutExpired:
                self.below += descendants(process.pid)
                process.kill()
                _, stderr = process.communicate()
                kills, self.kills = kills + 1, self.kills + 1
            self.said.append(stderr)
            runs = sorted((self.command.cwd / directory).glob("*"))
            for run in runs:
                self._note(run)
            if process.returncode == 0:
                return runs[-1]
            if process.returncode == 2:
                assert "ended before it had begun" in stderr, stderr
                self.too_early += 1
                arguments = fresh
                continue
            assert process.returncode == -9, stderr
            if runs:
                arguments = ("run", "--resume", "latest", "--run-dir", directory, "-q")

    def _note(self, run: Path) -> None:
        manifest = json.loads((run / "manifest.json").read_bytes()) if (run / "manifest.json").exists() else {}
        self.run_ids |= {entry["run_id"] for entry in (manifest, *manifest.get("resumed", ())) if "run_id" in entry}
