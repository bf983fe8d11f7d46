"""agentenv sandbox stop: programs end by themselves or are killed, their words arrive, and nothing is left."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from cli_watch import poll, running
from machines_ground import need_machines
from sandbox_shell import Shell

pytestmark = pytest.mark.timeout(300)

POLITE = "trap 'echo last; echo words; exit 7' TERM; echo ready; while :; do sleep 0.05; done"
STUBBORN = "trap '' TERM; echo ready; while :; do sleep 0.05; done"


@pytest.fixture(scope="module")
def shell(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shell]:
    need_machines()
    shell = Shell(tmp_path_factory.mktemp("ground"))
    shell.ground.chmod(0o700)
    shell("create", "--name", "base", "--runtime", "qemu", "--memory-mb", "256")
    yield shell
    shell("rm", "--all")
    assert names(shell) == ["lock"]


def names(shell: Shell) -> list[str]:
    return sorted(path.name for path in (shell.ground / "agentenv").iterdir())


@pytest.fixture
def web(shell: Shell) -> Iterator[str]:
    """A sandbox of which nothing is left after the test."""
    shell("fork", "base", "--name", "web")
    keeper = shell.keeper("web-1")
    processes = [keeper, *keeper.children(recursive=True)]
    homes = [Path(one.cwd()) for one in processes if Path(one.cwd()) != Path("/")]
    assert len(processes) >= 3
    assert homes
    yield "web-1"
    assert running(processes) == []
    assert [home for home in homes if home.exists()] == []
    assert names(shell) == ["base.json", "base.log", "base.sock", "lock"]
    assert shell.states() == {"base": "running"}


def test_last_words_arrive_with_the_exit_status(shell: Shell, web: str) -> None:
    with shell.start("exec", web, "--", "sh", "-c", POLITE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        assert shell("stop", web, "--timeout", "100").stdout == f"{web}: stopped, 1 program ended\n".encode()
        assert process.stdout.read() == b"last\nwords\n"
        assert process.wait(100) == 7


def test_what_does_not_end_is_killed(shell: Shell, web: str) -> None:
    with shell.start("exec", web, "--", "sh", "-c", STUBBORN) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        assert shell.json("stop", web, "--timeout", "0.5") == {"stopped": [{"id": web, "ended": 0, "killed": 1}]}
        assert process.wait(100) == 128 + signal.SIGKILL


def test_a_paused_one_goes_on_for_it(shell: Shell, web: str) -> None:
    with shell.start("exec", web, "--", "sh", "-c", POLITE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        shell("pause", web)
        assert shell.json("stop", web, "--timeout", "100") == {"stopped": [{"id": web, "ended": 1, "killed": 0}]}
        assert process.stdout.read() == b"last\nwords\n"
        assert process.wait(100) == 7


def test_two_at_once(shell: Shell, web: str) -> None:
    shell("fork", web, "--name", "other")
    kept = shell.keeper("other-1")
    told = shell.json("stop", "other-1", web, web)
    assert [(one["id"], one["killed"]) for one in told["stopped"]] == [("other-1", 0), (web, 0)]
    assert running([kept]) == []


def test_several_at_once_are_told_the_same(shell: Shell, web: str) -> None:
    slow = "trap 'sleep 3; exit 7' TERM; echo ready; while :; do sleep 0.05; done"
    with shell.start("exec", web, "--", "sh", "-c", slow) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        stops = [shell.start("stop", web, "--timeout", "100") for _ in range(3)]
        said = [stop.communicate(timeout=100)[0] for stop in stops]
        codes = [stop.returncode for stop in stops]
        assert process.wait(100) == 7
    done = [text for text, code in zip(said, codes, strict=True) if code == 0]
    assert done
    assert set(done) == {f"{web}: stopped, 1 program ended\n".encode()}
    assert set(codes) <= {0, 2}  # 2 only for one that came when it was over


def test_one_that_has_died_is_named_and_the_other_stopped(shell: Shell, web: str) -> None:
    shell("fork", web, "--name", "dead")
    (pid,) = [one["pid"] for one in shell.json("ls")["sandboxes"] if one["id"] == "dead-1"]
    os.kill(pid, signal.SIGKILL)
    poll(lambda: shell.states()["dead-1"] == "died", "its end is seen", 60)
    done = shell("stop", "dead-1", web, code=1)
    assert b"sandbox 'dead-1': its machine's monitor was killed" in done.stderr
    assert done.stdout == f"{web}: stopped, 0 programs ended\n".encode()


def test_wrong_words_stop_nothing(shell: Shell) -> None:
    assert b'did you mean "base"' in shell("stop", "base", "bsae", code=2).stderr
    assert b"Missing argument" in shell("stop", code=2).stderr
    for wrong in ("-1", "nan", "inf", "1e9"):
        assert b"--timeout" in shell("stop", "base", f"--timeout={wrong}", code=2).stderr
    assert shell.states() == {"base": "running"}
