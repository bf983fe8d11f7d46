"""The relay: starts monitors, passes descriptors on under their numbers, and takes everything with it when it ends."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from agentenv.errors import RuntimeUnavailable
from agentenv.sandbox.runtimes._vm.machine import Command
from agentenv.sandbox.runtimes._vm.relay import RelayProcess


@pytest.fixture
def relay(tmp_path: Path) -> Iterator[RelayProcess]:
    homes = tmp_path / "homes"
    homes.mkdir()
    made = RelayProcess(sys.path, homes)
    yield made
    made.close()


def ends(pidfd: int, timeout_s: float = 10.0) -> bool:
    poller = select.poll()
    poller.register(pidfd, select.POLLIN)
    return bool(poller.poll(int(timeout_s * 1000)))


def test_a_program_gets_its_directory_variables_output_and_descriptors(relay: RelayProcess, tmp_path: Path) -> None:
    reader, writer = os.pipe()
    held, far = os.pipe()
    script = (
        f"import os; print(os.getcwd()); print(os.environ['ONLY']); os.write({far}, b'through'); os.write(2, b'err')"
    )
    command = Command([sys.executable, "-S", "-c", script], tmp_path, {"ONLY": "this"}, output=writer, inherit=[far])
    started = relay.spawn(command)
    os.close(writer)
    os.close(far)
    assert ends(started.pidfd)
    with os.fdopen(reader) as stream, os.fdopen(held) as through:
        lines = stream.read().split("\n")
        assert through.read() == "through"
    assert sorted(lines) == sorted(["err" + str(tmp_path), "this", ""])
    os.close(started.pidfd)


def test_what_cannot_be_started_is_named(relay: RelayProcess, tmp_path: Path) -> None:
    null = os.open(os.devnull, os.O_WRONLY)
    with pytest.raises(OSError, match="/no/such/program: No such file or directory"):
        relay.spawn(Command(["/no/such/program"], tmp_path, output=null))
    os.close(null)
    assert relay.alive()


@pytest.mark.parametrize("how", ["close", "kill"])
def test_its_programs_end_with_it(relay: RelayProcess, tmp_path: Path, how: str) -> None:
    null = os.open(os.devnull, os.O_WRONLY)
    started = relay.spawn(Command(["/bin/sleep", "1000"], tmp_path, output=null))
    os.close(null)
    if how == "close":
        relay.close()
    else:
        os.kill(relay._process.pid, signal.SIGKILL)
    assert ends(started.pidfd)
    os.close(started.pidfd)
    with pytest.raises(RuntimeUnavailable, match="the relay to the machines is gone"):
        relay.hold(1)


def test_a_host_that_is_killed_leaves_neither_programs_nor_directories(tmp_path: Path) -> None:
    homes = tmp_path / "homes"
    (homes / "one").mkdir(parents=True)
    script = f"""
        import os, sys
        from pathlib import Path
        from agentenv.sandbox.runtimes._vm.machine import Command
        from agentenv.sandbox.runtimes._vm.relay import RelayProcess
        relay = RelayProcess(sys.path, Path({str(homes)!r}))
        null = os.open(os.devnull, os.O_WRONLY)
        print(relay.spawn(Command(["/bin/sleep", "1000"], Path("/"), output=null)).pid, flush=True)
        sys.stdin.read()
    """
    command = [sys.executable, "-c", textwrap.dedent(script)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as host:
        assert host.stdout is not None
        pidfd = os.pidfd_open(int(host.stdout.readline()))
        host.kill()
    assert ends(pidfd)
    os.close(pidfd)
    for _ in range(200):
        if not homes.exists():
            break
        select.select([], [], [], 0.02)
    assert not homes.exists()
