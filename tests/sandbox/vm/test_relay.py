"""The relay: starts monitors, passes descriptors on under their numbers, and takes everything with it when it ends."""

from __future__ import annotations

import errno
import os
import resource
import select
import signal
import socket
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from agentenv.errors import RuntimeUnavailable
from agentenv.guest.control import send_message
from agentenv.sandbox.runtimes._vm.machine import Command
from agentenv.sandbox.runtimes._vm.relay import RelayLost, RelayProcess
from agentenv.wire.frames import CHUNK, WINDOW, Kind, frame
from agentenv.wire.slot import plan_slot
from cli_watch import poll


@pytest.fixture
def relay(tmp_path: Path) -> Iterator[RelayProcess]:
    homes = tmp_path / "homes"
    homes.mkdir()
    made = RelayProcess(sys.path, homes)
    yield made
    made.close()


@pytest.fixture
def machine(relay: RelayProcess) -> Iterator[int]:
    """One that the relay carries, of which there is nothing but sockets; its number."""
    ends = [*socket.socketpair(), *socket.socketpair()]
    pidfd = os.pidfd_open(os.getpid())
    relay.join(1, ends[0].fileno(), ends[2].fileno(), pidfd)
    yield 1
    relay.leave(1)
    os.close(pidfd)
    for end in ends:
        end.close()


def descriptors(relay: RelayProcess) -> set[str]:
    """Those it has, by number."""
    return set(os.listdir(f"/proc/{relay._process.pid}/fd"))


def leave_room_for(relay: RelayProcess, count: int) -> None:
    """Have it open no more than so many descriptors beyond what it has."""
    taken = {int(number) for number in descriptors(relay)}
    free = [number for number in range(max(taken) + count + 2) if number not in taken]
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    # The limit is of their numbers: those it has may be higher.
    resource.prlimit(relay._process.pid, resource.RLIMIT_NOFILE, (free[count], hard))


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
    before = descriptors(relay)
    with pytest.raises(OSError, match="/bin/true: embedded null byte"):
        relay.spawn(Command(["/bin/true", "a\0b"], tmp_path, output=null))
    assert descriptors(relay) == before
    os.close(null)
    assert relay.alive()


def test_a_program_that_ends_at_once_is_held_all_the_same(relay: RelayProcess, tmp_path: Path) -> None:
    null = os.open(os.devnull, os.O_WRONLY)
    for _ in range(30):
        started = relay.spawn(Command(["/bin/true"], tmp_path, output=null))
        assert ends(started.pidfd)
        os.close(started.pidfd)
    os.close(null)


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


def test_one_that_stands_still_is_waited_for_once_and_takes_everything_with_it(
    relay: RelayProcess, tmp_path: Path
) -> None:
    """Whoever asks next is told at once, and another one can take its place."""
    null = os.open(os.devnull, os.O_WRONLY)
    started = relay.spawn(Command(["/bin/sleep", "1000"], tmp_path, output=null))
    os.close(null)
    relay._control.settimeout(0.2)
    os.kill(relay._process.pid, signal.SIGSTOP)
    with pytest.raises(
        RelayLost, match=r"did not answer 'hold' in 30 s, and was ended with every machine; it was stop"
    ):
        relay.hold(1)
    assert not relay.alive()
    assert ends(started.pidfd)
    os.close(started.pidfd)
    relay._control.settimeout(None)
    with pytest.raises(RelayLost):
        relay.hold(1)
    assert relay.broken(1) == ""
    assert relay.unwritten(1) == 0


@pytest.fixture
def ending(relay: RelayProcess, tmp_path: Path) -> Iterator[tuple[socket.socket, int]]:
    """The inside of a machine that the relay carries as number 2, and the monitor's pidfd."""
    null = os.open(os.devnull, os.O_WRONLY)
    started = relay.spawn(Command(["/bin/sleep", "1000"], tmp_path, output=null))
    os.close(null)
    ends_of = [*socket.socketpair(), *socket.socketpair()]
    relay.join(2, ends_of[0].fileno(), ends_of[2].fileno(), started.pidfd)
    ends_of[0].close()
    yield ends_of[1], started.pidfd
    os.close(started.pidfd)
    for end in ends_of:
        end.close()


def test_the_last_words_of_who_has_ended_arrive_whoever_is_slow_to_read_them(
    relay: RelayProcess, ending: tuple[socket.socket, int]
) -> None:
    """More than a pipe takes: the rest waits for whoever reads, and not with the machine, which is gone."""
    inside, pidfd = ending
    reader, writer = os.pipe()
    relay.tie(2, (16, writer, "w"))
    os.close(writer)
    words = os.urandom(WINDOW)
    for at in range(0, len(words), CHUNK):
        inside.sendall(frame(Kind.DATA, 16, words[at : at + CHUNK]))
    inside.sendall(frame(Kind.BYE))
    inside.close()
    assert ends(pidfd)
    assert relay.unwritten(2) > 0
    assert relay.unwritten(2, 17) == 0
    with os.fdopen(reader, "rb") as stream:
        assert stream.read() == words
    assert relay.unwritten(2) == 0


@pytest.mark.parametrize("how", ["leave", "close"])
def test_last_words_that_nobody_wants_are_let_go_of(
    relay: RelayProcess, ending: tuple[socket.socket, int], how: str
) -> None:
    inside, pidfd = ending
    reader, writer = os.pipe()
    relay.tie(2, (16, writer, "w"))
    os.close(writer)
    for _ in range(WINDOW // CHUNK):
        inside.sendall(frame(Kind.DATA, 16, bytes(CHUNK)))
    inside.close()
    assert ends(pidfd)
    while not relay.unwritten(2, 16):
        pass
    before = descriptors(relay)
    if how == "leave":
        relay.leave(2)
    os.close(reader)
    poll(lambda: relay.unwritten(2) == 0 and len(descriptors(relay)) < len(before), "its pipe closed", 10)
    relay.leave(2)


def test_an_answer_nobody_waits_for_any_more_is_not_the_next_ones(
    relay: RelayProcess, machine: int, tmp_path: Path
) -> None:
    """As after an interrupt, which comes before the answer is read."""
    null = os.open(os.devnull, os.O_WRONLY)
    command = {"argv": ["/bin/true"], "directory": "/", "variables": {}, "numbers": []}
    before = set(os.listdir("/proc/self/fd"))
    for number, request in enumerate(({"op": "hold", "machine": machine}, {"op": "spawn", **command})):
        fds = [null] if request["op"] == "spawn" else []
        send_message(relay._control, {**request, "number": -number, "fds": len(fds)}, fds)
    started = relay.spawn(Command(["/bin/sleep", "1000"], tmp_path, output=null))
    assert Path(f"/proc/{started.pid}/comm").read_text() == "sleep\n"
    os.close(started.pidfd)
    assert relay.unwritten(machine) == 0
    assert set(os.listdir("/proc/self/fd")) == before
    os.close(null)


def test_a_host_that_is_killed_leaves_neither_programs_nor_directories(tmp_path: Path) -> None:
    homes = tmp_path / "homes"
    (homes / "one").mkdir(parents=True)
    script = f"""
        import os, sys
        from pathlib import Path
        from agentenv.sandbox.runtimes._vm.machine import Command
        from agentenv.sandbox.runtimes._vm.relay import RelayLost, RelayProcess
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


@pytest.mark.parametrize("request_of", ["tie", "join", "attach", "spawn"])
def test_descriptors_for_which_it_has_no_room_are_named_and_none_is_kept(
    relay: RelayProcess, machine: int, request_of: str, tmp_path: Path
) -> None:
    fds = [os.open(os.devnull, os.O_RDWR) for _ in range(3)]
    requests = {
        "tie": lambda: relay.tie(machine, *((16 + number, fd, "w") for number, fd in enumerate(fds))),
        "join": lambda: relay.join(2, *fds),
        "attach": lambda: relay.attach(machine, {}, 1, fds),
        "spawn": lambda: relay.spawn(Command(["/bin/true"], tmp_path, output=fds[0], inherit=fds[1:])),
    }
    before = descriptors(relay)
    leave_room_for(relay, 2)
    for _ in range(3):  # what was kept of the first would leave less room for the others
        with pytest.raises(OSError, match=rf"expected 3 with '{request_of}', got 2.*raise the limit") as caught:
            requests[request_of]()
        assert caught.value.errno == errno.EMFILE
        assert descriptors(relay) == before
    leave_room_for(relay, 8)
    relay.tie(machine, *((16 + number, fd, "w") for number, fd in enumerate(fds)))
    assert len(descriptors(relay)) == len(before) + 3
    for fd in fds:
        os.close(fd)


def test_descriptors_of_a_request_that_fails_are_closed(relay: RelayProcess, machine: int, tmp_path: Path) -> None:
    fds = [os.open(os.devnull, os.O_RDWR) for _ in range(3)]
    before = descriptors(relay)
    with pytest.raises(OSError, match="7"):
        relay.tie(7, *((16 + number, fd, "w") for number, fd in enumerate(fds)))
    with pytest.raises(OSError, match="7"):
        relay.rejoin(7, fds[0])
    layout = plan_slot(8, 8, final=False, variable=False).to_json()
    with pytest.raises(OSError, match="No such device"):  # what is no memory cannot be mapped
        relay.attach(machine, layout, 1, fds)
    with pytest.raises(OSError, match="/bin/true: No such file"):
        relay.spawn(Command(["/bin/true"], tmp_path / "no/such/directory", output=fds[0], inherit=fds[1:]))
    assert descriptors(relay) == before
    assert relay.alive()
    for fd in fds:
        os.close(fd)
