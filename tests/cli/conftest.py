"""Running the command line as a user does: a process of its own, and what it left looked at from outside."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

TESTS = Path(__file__).resolve().parent.parent


@dataclass(frozen=True)
class Command:
    """Runs commands in a directory; environments of tests/misbehaving.py can be imported by name."""

    cwd: Path
    started: list[subprocess.Popen[str]] = field(default_factory=list)

    def argv(self, *arguments: str) -> list[str]:
        code = f"import sys; sys.path.append({str(TESTS)!r}); from agentenv.cli import main; sys.exit(main())"
        return [sys.executable, "-c", code, *arguments]

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            self.argv(*arguments),
            cwd=self.cwd,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.started.append(process)
        return process

    def close(self) -> None:
        """End what a test that failed half way left running, or the tests after it would find it."""
        for process in self.started:
            with process:  # closes its pipes, and waits
                if process.poll() is None:
                    process.kill()

    def __call__(self, *arguments: str, timeout_s: float = 90) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self.argv(*arguments),
            cwd=self.cwd,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout_s,
        )

    def config(self, *tables: str, global_: str = "", name: str = "test.toml") -> str:
        """Write a configuration of ``[[environments]]`` tables; returns its path."""
        path = self.cwd / name
        text = f"[global]\nseed = 1\n{global_}\n" + "".join(f"\n[[environments]]\n{table}\n" for table in tables)
        path.write_text(text, encoding="utf-8")
        return str(path)

    def run(self, config: str, *arguments: str, code: int = 0) -> dict[str, Any]:
        """``agentenv run --json``; returns the summary after checking the exit code."""
        done = self("run", config, "--json", *arguments)
        assert done.returncode == code, f"exit code {done.returncode}\n{done.stdout}\n{done.stderr}"
        summary: dict[str, Any] = json.loads(done.stdout)
        return summary


@pytest.fixture
def command(tmp_path: Path) -> Iterator[Command]:
    # Root's sandboxes belong to nobody, who must be able to read the project.
    tmp_path.chmod(0o755)
    command = Command(tmp_path)
    yield command
    command.close()


@pytest.fixture
def private_command(tmp_path: Path) -> Iterator[Command]:
    """In a directory that only its owner may read, as under a umask of 077."""
    tmp_path.chmod(0o700)
    command = Command(tmp_path)
    yield command
    command.close()
