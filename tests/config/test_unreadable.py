"""Files that cannot be read, or are no TOML text at all."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from agentenv.config import load_config
from agentenv.errors import ConfigError, Problem

ProblemsOf = Callable[..., list[Problem]]


def in_environment(line: str) -> str:
    return f'[[environments]]\nid = "a"\n{line}\n'


@pytest.mark.parametrize(
    ("data", "line", "message", "hint"),
    [
        (b"\n[global]\n# caf\xe9\n", 3, "expected UTF-8 text, got byte 0xe9", "save the file as UTF-8"),
        (b"x = " + b"[" * 5000 + b"]" * 5000, None, "not valid TOML: brackets nested too deeply", ""),
    ],
)
def test_a_file_that_is_not_toml_text(
    data: bytes, line: int | None, message: str, hint: str, problems_of: ProblemsOf
) -> None:
    where = "f.toml" if line is None else f"f.toml:{line}"
    assert problems_of(data) == [Problem(where, "file", message, hint)]


def test_an_integer_too_long_for_python_is_a_problem_not_a_traceback(problems_of: ProblemsOf) -> None:
    [problem] = problems_of(in_environment("seed = " + "9" * 5000))
    assert problem.path == "file"
    assert problem.message.startswith("not valid TOML")


def test_a_missing_file_names_its_neighbour(tmp_path: Path) -> None:
    (tmp_path / "gridworld.toml").write_text(in_environment(""))
    missing = tmp_path / "gridwrold.toml"
    with pytest.raises(ConfigError) as caught:
        load_config(missing)
    hint = f"did you mean {tmp_path / 'gridworld.toml'}?"
    assert caught.value.problems == (Problem(str(missing), "file", "no such file", hint),)


def test_pyproject_is_never_what_was_meant(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").touch()
    with pytest.raises(ConfigError, match=r"has no \.toml file but pyproject\.toml"):
        load_config(tmp_path / "project.toml")
    (tmp_path / "world.toml").touch()
    with pytest.raises(ConfigError, match=r"has world\.toml\)"):
        load_config(tmp_path / "config.toml")


@pytest.mark.parametrize(
    ("name", "message", "hint"),
    [
        ("", "expected a TOML file, got a directory", "{parent} has here.toml"),
        ("nowhere/c.toml", "no such file", "there is no directory {parent}/nowhere either"),
        ("here.toml/c.toml", "it cannot be read: Not a directory", ""),
        ("a\0b", "it cannot be read: embedded null byte", ""),
        ("loop.toml", "it cannot be read: Too many levels of symbolic links", ""),
    ],
)
def test_a_path_that_cannot_be_read(name: str, message: str, hint: str, tmp_path: Path) -> None:
    (tmp_path / "here.toml").write_text("")
    (tmp_path / "loop.toml").symlink_to("loop.toml")
    if name == "":
        (tmp_path / "loop.toml").unlink()
    path = os.path.join(tmp_path, name) if name else str(tmp_path)
    with pytest.raises(ConfigError) as caught:
        load_config(path)
    assert caught.value.problems == (Problem(path, "file", message, hint.format(parent=tmp_path)),)


def test_a_file_this_user_may_not_read() -> None:
    # Not in tmp_path: pytest closes its directories to the user this test becomes where it starts as root.
    with tempfile.TemporaryDirectory() as directory:
        os.chmod(directory, 0o755)
        path = os.path.join(directory, "secret.toml")
        with open(path, "w", opener=lambda name, flags: os.open(name, flags, 0)) as file:
            file.write(in_environment(""))
        was_root = os.geteuid() == 0
        if was_root:
            os.seteuid(65534)
        try:
            with pytest.raises(ConfigError) as caught:
                load_config(path)
        finally:
            if was_root:
                os.seteuid(0)
    assert caught.value.problems == (Problem(path, "file", "this user may not read it", "check its rights with ls -l"),)
