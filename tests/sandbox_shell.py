"""``agentenv sandbox`` as a user runs it: each command a process of its own, with stores of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil


@dataclass(frozen=True)
class Shell:
    """Runs ``agentenv sandbox`` with stores of its own."""

    ground: Path

    @property
    def variables(self) -> dict[str, str]:
        return {**os.environ, "XDG_RUNTIME_DIR": str(self.ground), "AGENTENV_DATA": str(self.ground / "data")}

    def argv(self, *arguments: str) -> list[str]:
        return [sys.executable, "-m", "agentenv.cli", "sandbox", *arguments]

    def __call__(self, *arguments: str, code: int = 0, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
        done = subprocess.run(
            self.argv(*arguments), input=stdin, capture_output=True, env=self.variables, cwd=self.ground, timeout=200
        )
        assert done.returncode == code, f"exit code {done.returncode}\n{done.stdout!r}\n{done.stderr!r}"
        return done

    def json(self, *arguments: str) -> Any:
        return json.loads(self(*arguments, "--json").stdout)

    def start(self, *arguments: str) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            self.argv(*arguments),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=self.variables,
        )

    def states(self) -> dict[str, str]:
        return {one["id"]: one["state"] for one in self.json("ls")["sandboxes"]}

    def keeper(self, name: str) -> psutil.Process:
        record = json.loads((self.ground / f"agentenv/{name}.json").read_text())
        return psutil.Process(record["owner"]["pid"])
