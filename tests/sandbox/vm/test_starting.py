"""What an image says about starting programs, joined with what a configuration says."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path

import pytest

from agentenv.errors import RuntimeUnavailable
from agentenv.sandbox.contract import SandboxSpec
from agentenv.sandbox.files import ENTRYPOINT, MachineFiles
from agentenv.sandbox.runtimes._birth import settings_for
from agentenv.sandbox.runtimes._vm.starting import as_image_says, shown_paths, variables_of_zygotes

PLAIN = MachineFiles(*[Path("/nowhere")] * 5)
IMAGE = replace(
    PLAIN,
    places=(("0", "/project"),),
    variables=(("HOME", "/home/app"), ("LANG", "C"), ("OMP_NUM_THREADS", "7"), ("PATH", "/opt/bin:/bin")),
    workdir="/app",
    entrypoint=("/bin/start", "-x"),
    cmd=("serve",),
)


def settings(files: MachineFiles, *command: str, **variables: str) -> dict:
    spec = SandboxSpec("env-0", command=command, variables=variables, directory="/project", out=Path("/runs/out"))
    plain = settings_for(spec, isolated=True, enforced=False, view={}, paths=["/project"])
    return as_image_says(plain, spec, files)


@pytest.mark.parametrize(
    ("files", "command", "expected"),
    [
        (IMAGE, ("python3", "x.py"), ("python3", "x.py")),
        (IMAGE, (ENTRYPOINT,), ("/bin/start", "-x", "serve")),
        (IMAGE, (ENTRYPOINT, "a", "b"), ("/bin/start", "-x", "a", "b")),
        (replace(IMAGE, cmd=()), (ENTRYPOINT,), ("/bin/start", "-x")),
        (replace(IMAGE, entrypoint=()), (ENTRYPOINT,), ("serve",)),
        (PLAIN, (ENTRYPOINT, "echo", "a"), ("echo", "a")),
        (IMAGE, ("echo", ENTRYPOINT), ("echo", ENTRYPOINT)),
        (IMAGE, (), ()),
    ],
)
def test_commands(files: MachineFiles, command: tuple[str, ...], expected: tuple[str, ...]) -> None:
    assert tuple(settings(files, *command)["command"]) == expected


def test_an_image_that_has_nothing_to_run() -> None:
    with pytest.raises(RuntimeUnavailable, match=r"env-0: .*neither ENTRYPOINT nor CMD\n  remedy: name the program"):
        settings(PLAIN, ENTRYPOINT)


def test_an_entrypoint_that_is_not_used_is_noted(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "agentenv.sandbox")
    settings(IMAGE, ENTRYPOINT, "a")
    settings(PLAIN, "a")
    settings(IMAGE)
    assert caplog.messages == []
    settings(IMAGE, "a")
    assert "ENTRYPOINT ['/bin/start', '-x'] of the image is not used" in caplog.text


@pytest.mark.parametrize(("workdir", "expected"), [("/app", "/app"), ("/", "/project"), ("", "/project")])
def test_directories(workdir: str, expected: str) -> None:
    files = replace(IMAGE, workdir=workdir)
    assert settings(files, "a")["directory"] == expected
    assert settings(files)["directory"] == expected
    assert shown_paths(files) == list(dict.fromkeys(["/project", expected]))


def test_variables() -> None:
    found = settings(IMAGE, "a", AGENT="dqn", OMP_NUM_THREADS="2")["variables"]
    assert found["AGENT"] == "dqn"
    assert found["OMP_NUM_THREADS"] == "2", "the configuration's before the image's"
    assert found["LANG"] == "C", "the image's before ours"
    assert found["PATH"] == "/opt/bin:/bin"
    assert (found["HOME"], found["AGENTENV_ID"], found["AGENTENV_OUT"]) == ("/tmp/home", "env-0", "/out")
    assert settings(PLAIN, "a")["variables"]["PATH"].startswith("/usr/local/sbin:")
    assert "VIRTUAL_ENV" not in settings(PLAIN, "a")["variables"], "which is the host's"
    venv = replace(IMAGE, variables=(("VIRTUAL_ENV", "/opt/venv"), ("PYTHONPATH", "/lib/mine")))
    assert settings(venv)["variables"]["VIRTUAL_ENV"] == "/opt/venv"
    assert settings(venv, "a")["variables"]["PYTHONPATH"] == "/project:/lib/mine"


def test_what_environments_are_forked_from_has_no_threads() -> None:
    found = variables_of_zygotes(IMAGE)
    assert found["OMP_NUM_THREADS"] == "1"
    assert found["PATH"] == "/opt/bin:/bin"
    assert variables_of_zygotes(PLAIN)["PATH"].endswith(":/bin")


def test_another_user_or_directory_is_another_machine(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    files = MachineFiles(*[file] * 5)
    others = [replace(files, user="app"), replace(files, workdir="/app"), replace(files, variables=(("A", "b"),))]
    assert all(other.fingerprint() != files.fingerprint() for other in others)
    assert replace(files, entrypoint=("a",), cmd=("b",)).fingerprint() == files.fingerprint()
