"""A standard output that takes nothing: full, or closed before the command was started."""

from __future__ import annotations

import subprocess
from typing import Any

import pytest

PROGRAM = """id = "a"\ncommand = ["python", "-c", "print('said')"]"""


def ended(command: Any, redirection: str, *arguments: str) -> tuple[int, list[str]]:
    """The exit code, and the lines on stderr."""
    words = ["sh", "-c", f'"$@" {redirection}', "sh", *command.argv(*arguments)]
    done = subprocess.run(words, cwd=command.cwd, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=90)
    assert done.stdout == ""
    return done.returncode, done.stderr.splitlines()


@pytest.mark.parametrize(
    ("redirection", "reason"), [(">/dev/full", "No space left on device"), (">&-", "Bad file descriptor")]
)
@pytest.mark.parametrize("arguments", ["--help", "--version", "runs --help", "runs --json", "runs", "schema"])
def test_one_line_and_exit_code_1(command: Any, redirection: str, reason: str, arguments: str) -> None:
    code, lines = ended(command, redirection, *arguments.split())
    assert (code, len(lines)) == (1, 1)
    assert lines[0].startswith("agentenv: ")
    assert lines[0].endswith(reason)


@pytest.mark.parametrize("redirection", [">/dev/full", ">&-"])
def test_a_run_is_played_and_its_log_is_not_lost_silently(command: Any, redirection: str) -> None:
    path = command.config(PROGRAM)
    code, lines = ended(command, redirection, "run", path, "--json")
    assert (code, [line for line in lines if "Traceback" in line]) == (1, [])
    assert [line for line in lines if line.startswith("agentenv: OSError")] == lines[-1:]
    for arguments in (["logs", "latest"], ["logs", "latest", "-f"]):
        code, lines = ended(command, redirection, *arguments)
        assert (code, len(lines)) == (1, 1)
    assert command("logs", "latest").stdout == "said\n"


@pytest.mark.parametrize("redirection", ["2>/dev/full", "2>&-"])
def test_the_exit_code_counts_where_stderr_takes_nothing(command: Any, redirection: str) -> None:
    assert ended(command, redirection, "logs", "none") == (2, [])
    assert ended(command, f"{redirection} >/dev/full", "runs") == (1, [])
