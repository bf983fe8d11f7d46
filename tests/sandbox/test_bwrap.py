"""The outer wall's command line, and what is understood of bubblewrap's complaints."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from agentenv.errors import RuntimeUnavailable
from agentenv.sandbox.runtimes import _bwrap
from agentenv.sandbox.runtimes._view import View, plan_view


def _run(view: View, *command: str, variables: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    passwd, group = _bwrap.write_memory_file("x:x:0:0::/:\n"), _bwrap.write_memory_file("x:x:0:\n")
    try:
        arguments = _bwrap.build_arguments(
            _bwrap.find_binary(None), view, command, variables=variables or {}, network=False, passwd_fd=passwd,
            group_fd=group, out_root=None, out=None, disk_mb=1,
        )  # fmt: skip
        return subprocess.run(
            arguments, pass_fds=(passwd, group), capture_output=True, text=True, timeout=30, check=False
        )
    finally:
        os.close(passwd)
        os.close(group)


def test_a_configured_binary_must_be_one(tmp_path: Path) -> None:
    with pytest.raises(RuntimeUnavailable, match="not an executable file"):
        _bwrap.find_binary(str(tmp_path / "absent"))


def test_only_the_variables_given_arrive(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET_OF_THE_HOST", "x")
    result = _run(plan_view([]), "/usr/bin/env", variables={"A": "1"})
    assert set(result.stdout.split()) == {"A=1", "PWD=/"}, result.stderr


def test_nothing_but_the_temporary_directories_is_writable() -> None:
    script = 'for d in / /dev /out /run /etc /usr /tmp /dev/shm; do ( : > "$d/x" ) 2>/dev/null && echo "$d"; done; true'
    result = _run(plan_view([]), "/bin/sh", "-c", script)
    assert result.stdout.split() == ["/tmp", "/dev/shm"], result.stderr


def test_hidden_files_and_directories_are_covered(tmp_path: Path) -> None:
    project = tmp_path / "project"
    (project / "runs").mkdir(parents=True)
    (project / "runs" / "log").write_text("secret")
    (project / "config").write_text("secret")
    (project / "code").write_text("code")
    view = plan_view([str(project)], hidden=[str(project / "runs"), str(project / "config")])
    result = _run(view, "/bin/sh", "-c", f"cd {project}; cat code runs/log config; ls runs; : > runs/x")
    assert result.stdout == "code"
    assert "secret" not in result.stderr


@pytest.mark.parametrize(
    ("stderr", "remedy"),
    [
        ("bwrap: setting up uid map: Permission denied", "AppArmor"),
        ("bwrap: No permissions to create a new namespace, likely because", "unprivileged_userns_clone"),
        ("bwrap: Creating new namespace failed: Operation not permitted", "unprivileged_userns_clone"),
        ("bwrap: Can't mount proc on /newroot/proc: Operation not permitted", "systempaths=unconfined"),
        ("Traceback (most recent call last):\n  ImportError: no module", ""),
        ("bwrap: execvp python: No such file or directory", ""),
    ],
)  # fmt: skip
def test_complaints_have_remedies(stderr: str, remedy: str) -> None:
    explained = _bwrap.explain_failure(stderr)
    assert remedy in explained
    assert bool(explained) == bool(remedy)
