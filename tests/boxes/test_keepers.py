"""Keepers as processes: what they bear, what they leave, how they are ended. What they keep is no machine."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import psutil
import pytest

from agentenv.boxes import kept, remote
from agentenv.boxes import launch as launching
from agentenv.boxes.access import DIED, RUNNING, UNKNOWN, Description
from agentenv.boxes.commands import make_spec
from agentenv.boxes.failures import to_record
from agentenv.boxes.kept import Kept
from agentenv.boxes.launch import launch
from agentenv.boxes.plans import Plan
from agentenv.boxes.remote import Ended, RemoteAccess
from agentenv.errors import ConfigError, ProtocolError, ResourceLimit, RuntimeUnavailable, SandboxDied
from agentenv.fleet.owner import Owner
from agentenv.guest.control import receive_message, send_message
from agentenv.sandbox.workbench import Stdio, Task
from cli_watch import poll

# What is patched is what no machine can be made to do, and how long things take.
KEEPER = """
import json, resource, sys, threading
from agentenv.boxes import birth, keeper, keeper_main
from agentenv.boxes.access import Description

class Kept:
    id = "web"
    def describe(self):
        return Description("web", "running", "", "none", "", 1, 1.0, 1.0, "", 1)
    def start(self, task, stdio):
        return 7
    def destroy(self):
        if {unending}:
            raise OSError(5, "the machine would not end")

birth.create = lambda plans, report: [Kept()]
keeper._RENEW_S = {renew_s}
keeper._PAUSE_S = 0.02
soft = {descriptors}
resource.setrlimit(resource.RLIMIT_NOFILE, (soft, soft))
{patch}
keeper_main.main(json.loads(sys.stdin.read()))
"""
FEW_THREADS = """
start, left = threading.Thread.start, [3]
def short(self):
    if self.name == "agentenv-keeper" and left[0]:
        left[0] -= 1
        raise RuntimeError("can't start new thread")
    start(self)
threading.Thread.start = short
"""
BROKEN = "keeper.Keeper._admit = lambda self: {}['broken']"


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    return tmp_path / "agentenv"


Start = Callable[..., subprocess.Popen[bytes]]


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts the keeper of "web", and returns when it answers."""
    with ExitStack() as stack:

        def run(
            *, renew_s: float = 600.0, descriptors: int = 256, patch: str = "", unending: bool = False
        ) -> subprocess.Popen[bytes]:
            reader, writer = os.pipe()
            code = KEEPER.format(renew_s=renew_s, descriptors=descriptors, patch=patch, unending=unending)
            config = {"fd": writer, "plan": Plan("qemu", {}, make_spec(image=None, name="web")).to_record()}
            process = subprocess.Popen(
                [sys.executable, "-c", code], stdin=subprocess.PIPE, pass_fds=(writer,), stderr=subprocess.PIPE
            )
            stack.callback(process.wait)
            stack.callback(process.kill)
            assert process.stdin is not None
            assert process.stderr is not None
            stack.enter_context(process.stderr)
            with process.stdin as stdin:
                stdin.write(json.dumps(config).encode())
            os.close(writer)
            with open(reader, "rb") as said:
                assert json.loads(said.read().splitlines()[-1]) == {"ready": True}, process.stderr.read()
            return process

        yield run


@pytest.fixture
def web(start: Start) -> tuple[subprocess.Popen[bytes], RemoteAccess]:
    return start(), remote.connect("web")


def test_want_of_descriptors_is_borne(start: Start, place: Path) -> None:
    process = start(descriptors=40)
    access = remote.connect("web")
    with ExitStack() as held:
        for _ in range(60):
            held.enter_context(kept.dial("web"))
        poll(lambda: (place / "web.log").stat().st_size > 0, "it is told", 30)
        assert process.poll() is None
    assert access.describe().state == RUNNING
    assert "Too many open files" in (place / "web.log").read_text()
    assert (place / "web.log").read_text().count("\n") < 10  # once, not each time
    access.destroy()
    assert process.wait(30) == 0
    assert [one.name for one in place.iterdir()] == ["lock"]


def test_descriptors_there_is_no_room_for_are_told(start: Start) -> None:
    start(descriptors=40)
    access = remote.connect("web")
    ends = [end for _ in range(2) for end in os.pipe()]
    try:
        (process,) = (one for one in psutil.Process().children() if one.pid == access.owner.pid)
        idle = process.num_fds()
        assert access.start(Task(argv=("true",)), Stdio(*ends)) == 7
        poll(lambda: process.num_fds() <= idle, "it lets go of what it was given", 30)
        with ExitStack() as held:
            while process.num_fds() < 38:
                before = process.num_fds()
                held.enter_context(kept.dial("web"))
                poll(lambda before=before: process.num_fds() > before, "it is attended to", 30)  # type: ignore[misc]  # lambda
            with pytest.raises(ResourceLimit, match="expected room for 4 descriptors in the keeper"):
                access.start(Task(argv=("true",)), Stdio(*ends))
    finally:
        for end in ends:
            os.close(end)


def test_want_of_threads_is_borne_and_whoever_asks_is_answered(start: Start, place: Path) -> None:
    process = start(patch=FEW_THREADS)
    assert remote.connect("web").describe().state == RUNNING
    assert (place / "web.log").read_text().count("can't start new thread") == 1
    assert process.poll() is None


def test_a_keeper_that_breaks_leaves_a_log_that_is_named(start: Start, place: Path) -> None:
    process = start(patch=BROKEN)
    access = remote.connect("web")
    with pytest.raises(SandboxDied, match=f"its keeper is gone, and the machine with it; {place}/web.log tells"):
        access.health()
    assert process.wait(30) == 0
    log = (place / "web.log").read_text()
    assert "KeyError: 'broken'" in log
    assert "Traceback" in log
    assert access.describe().state == DIED
    assert kept.last_words() == {"web": place / "web.log"}


def test_an_end_out_of_order_leaves_its_log(start: Start, place: Path) -> None:
    process = start(unending=True)
    process.terminate()
    assert process.wait(30) == 0
    assert "the machine would not end" in (place / "web.log").read_text()
    assert "web" in kept.last_words()


def test_an_end_in_order_leaves_nothing(web: tuple[subprocess.Popen[bytes], RemoteAccess], place: Path) -> None:
    process, _ = web
    (place / "web.log").write_text("a warning\n")
    process.terminate()
    assert process.wait(30) == 0
    assert [one.name for one in place.iterdir()] == ["lock"]


def test_the_log_is_cut_to_its_end(place: Path) -> None:
    code = (
        "import logging; from agentenv.boxes import kept, keeper_log; path = kept.place() / 'web.log'\n"
        "logger = logging.getLogger('agentenv'); log = keeper_log.KeeperLog(path); logger.addHandler(log)\n"
        "for number in range(30_000): logger.warning('line %d of %s', number, 'x' * 20)\n"
        "path.unlink(); log.follow(path); logger.info('unsaid'); logger.error('after'); 1 / 0"
    )
    kept.place()
    watched = subprocess.Popen([sys.executable, "-c", code.replace("path.unlink();", "input(); path.unlink();")],
                               stdin=subprocess.PIPE)  # fmt: skip
    poll(lambda: "line 29999 " in (place / "web.log").read_text() if (place / "web.log").exists() else False, "all", 60)
    lines = (place / "web.log").read_text().splitlines()
    assert (place / "web.log").stat().st_size <= 1 << 18
    assert len(lines) > 1000
    assert all(" WARNING: line " in line for line in lines)
    watched.communicate(b"\n", 60)
    said = (place / "web.log").read_text()
    assert said.splitlines()[0].endswith("ERROR: after")
    assert "ZeroDivisionError" in said  # what Python says at its end


@pytest.mark.parametrize("gone", ["web.json", "web.sock", "."])
def test_a_keeper_whose_files_are_removed_is_found_again(start: Start, place: Path, gone: str) -> None:
    process = start(renew_s=0.05)
    poll(lambda: (place / "web.log").exists(), "it serves", 30)
    for one in list(place.iterdir()) if gone == "." else [place / gone]:
        one.unlink()
    if gone == ".":
        place.rmdir()

    def answers() -> bool:
        return [one.describe().state for one in remote.connect_all()] == [RUNNING]

    poll(answers, "it answers", 30)
    assert kept.find("web").owner.pid == process.pid
    for one in place.iterdir():
        os.utime(one, (1e9, 1e9))
    poll(lambda: min(one.stat().st_mtime for one in place.iterdir()) > 1.1e9, "it is young", 30)
    remote.connect("web").destroy()
    assert process.wait(30) == 0
    assert [one.name for one in place.iterdir()] == ["lock"]


def test_a_keeper_whose_name_is_anothers_ends(start: Start, place: Path) -> None:
    process = start(renew_s=0.05)
    (place / "new").write_text(json.dumps({"name": "web", "owner": Owner.current().as_record()}))
    os.replace(place / "new", place / "web.json")
    assert process.wait(30) == 0
    assert kept.find("web").owner == Owner.current()
    kept.give_up("web", Owner.current())


def test_a_keeper_that_does_not_answer_is_named_and_can_be_ended(
    web: tuple[subprocess.Popen[bytes], RemoteAccess], monkeypatch: pytest.MonkeyPatch
) -> None:
    process, access = web
    monkeypatch.setattr(remote, "_END_S", 0.2)
    monkeypatch.setattr(remote, "_DESCRIBE_S", 0.2)
    process.send_signal(signal.SIGSTOP)
    with pytest.raises(RuntimeUnavailable, match=r"has not ended within 0\.2 s") as caught:
        access.destroy()
    assert caught.value.remedy == f"kill -9 {process.pid} ends it and the machine"
    shown = access.describe()
    assert (shown.state, shown.cause) == (
        UNKNOWN, f"its keeper, process {process.pid}, has not answered within 0.2 s",
    )  # fmt: skip
    # So many have asked that nobody is let wait any more.
    with ExitStack() as held:
        for _ in range(100):
            try:
                held.enter_context(kept.dial("web", 0.01))
            except BlockingIOError:
                break
        else:
            pytest.fail("expected a full queue")
        assert access.describe().state == UNKNOWN
        with pytest.raises(RuntimeUnavailable, match="kill -9"):
            access.destroy()
    process.send_signal(signal.SIGCONT)
    monkeypatch.undo()
    assert process.wait(30) == 0  # it had been asked to


Reply = Callable[[socket.socket], None]


def _says(reply: Any) -> Reply:
    return lambda connection: send_message(connection, reply)


GOOD = Description("web", "running", "", "q", "", 1, 1.0, 1.0, "", 1).to_json()
ODD: dict[str, Reply] = {
    "hangs up": lambda _connection: None,
    "no message": lambda connection: connection.sendall(b"HTTP/1.1 400 Bad Request\r\n"),
    "nothing": _says({}),
    "another name": _says({"described": {}}),
    "a text": _says({"description": "web"}),
    "more": _says({"description": {**GOOD, "x": 1}}),
    "less": _says({"description": {"id": "web"}}),
    "kinds": _says({"description": {**GOOD, "pid": "1"}}),
    "lists": _says({"description": {**GOOD, "network": {"allow": "all"}}}),
    "an error": _says({"error": to_record(ProtocolError("expected one of a, b, got 'describe'"))}),
    "an unknown error": _says({"error": to_record(KeyError("describe"))}),
    "no error": _says({"error": "what"}),
    "half an error": _says({"error": {"type": "SandboxDied", "cause": {"kind": "new"}}}),
    "an error of files": _says({"error": to_record(OSError(5, "disk"))}),
}  # fmt: skip


@pytest.mark.parametrize("odd", ODD)
def test_keepers_that_are_not_understood_are_rows_like_others(odd: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote, "_ENDING_S", 0.05)
    kept.claim("odd")
    with kept.listen("odd") as listener:

        def answer() -> None:
            connection, _ = listener.accept()
            with connection:
                receive_message(connection)
                ODD[odd](connection)

        thread = threading.Thread(target=answer)
        thread.start()
        shown = RemoteAccess(Kept("odd", Owner.current())).describe()
        thread.join()
    assert (shown.id, shown.state, shown.pid) == ("odd", UNKNOWN, os.getpid())
    assert "its keeper is of another version, or does not work: " in shown.cause
    assert shown.cause.endswith("; agentenv sandbox rm odd ends it")
    kept.give_up("odd", Owner.current())


OTHER_VERSION = """
from agentenv.boxes import kept
from agentenv.guest.control import receive_message, send_message
kept.claim("old")
with kept.listen("old") as listener:
    print("there", flush=True)
    while True:
        with listener.accept()[0] as connection:
            receive_message(connection)
            {answer}
"""


@pytest.mark.parametrize(
    "answer",
    [
        "send_message(connection, {'error': {'type': 'ProtocolError', 'message': 'expected one of a, b'}})",
        "send_message(connection, {'error': {'type': 'NewError', 'message': 'what?'}})",
        "connection.sendall(b'GET / HTTP/1.1')",
        "pass",
    ],
)
def test_a_keeper_of_another_version_is_ended(answer: str, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote, "_ENDING_S", 0.05)
    code = OTHER_VERSION.format(answer=answer)
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "there\n"
        (access,) = remote.connect_all()
        access.destroy()
        assert process.wait(30) == -signal.SIGTERM
    assert [one.name for one in place.iterdir()] == ["lock"]


def test_the_plan_reaches_a_keeper_and_nobody_else() -> None:
    """That a keeper cannot make it is said by itself, after it has read it."""
    spec = make_spec(image=None, name="web", env={"TOKEN": "only-inside" * 20_000})
    with pytest.raises(RuntimeUnavailable, match="unknown runtime 'no-such'"):
        launch([Plan("no-such", {}, spec)])
    assert kept.find_all() == []


def test_a_taken_name_is_told_by_the_new_keeper(web: tuple[subprocess.Popen[bytes], RemoteAccess]) -> None:
    process, _ = web
    with pytest.raises(ConfigError, match=f"which process {process.pid} keeps"):
        launch([Plan("qemu", {}, make_spec(image=None, name="web"))])
    assert kept.find("web").owner.pid == process.pid


def _command(*arguments: str, code: int = 0) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-m", "agentenv.cli", "sandbox", *arguments]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == code, f"exit code {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done


def test_commands_show_and_end_what_does_not_work_with_what_does(start: Start, place: Path) -> None:
    process = start()
    (place / "lost.log").write_text("what went wrong\n")
    code = OTHER_VERSION.format(answer="send_message(connection, {'description': {}})")
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as old:
        assert old.stdout is not None
        assert old.stdout.readline() == "there\n"
        listed = json.loads(_command("ls", "--json").stdout)
        assert [(one["id"], one["state"]) for one in listed["sandboxes"]] == [("old", UNKNOWN), ("web", RUNNING)]
        assert listed["ended"] == [{"id": "lost", "log": f"{place}/lost.log"}]
        shown = _command("ls").stdout
        assert "agentenv sandbox rm old ends it" in shown
        assert f"lost ended on a fault: {place}/lost.log; agentenv sandbox rm lost removes that" in shown
        assert "ended on a fault" in _command("exec", "lost", "--", "true", code=2).stderr
        assert json.loads(_command("rm", "lost", "web", "--json").stdout) == {"removed": ["lost", "web"]}
        assert process.wait(30) == 0
        old.terminate()  # "destroy" it would answer, and go on
    assert kept.find_all() == []
    assert [one.name for one in place.iterdir()] == ["lock"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("words", [("ls",), ("rm", "web"), ("stop", "web")])
def test_who_interrupts_a_command_does_not_wait_for_keepers(
    start: Start, place: Path, words: tuple[str, ...], number: int
) -> None:
    start().send_signal(signal.SIGSTOP)
    begun = place / "begun"
    command = f"""
import pathlib, signal, sys
from agentenv.boxes import remote
from agentenv.cli.app import run_app
remote._END_S = remote._DESCRIBE_S = 600.0
tell = remote.RemoteAccess._ask
def ask(self, *given, **named):
    pathlib.Path({str(begun)!r}).touch()
    return tell(self, *given, **named)
remote.RemoteAccess._ask = ask
signal.signal(signal.SIGINT, signal.default_int_handler)
sys.exit(run_app(["sandbox", *{words!r}]))
"""
    with subprocess.Popen([sys.executable, "-c", command], stdout=subprocess.DEVNULL) as process:
        poll(begun.exists, "it waits for the keeper", 30)
        process.send_signal(number)
        assert process.wait(60) == 128 + number


def test_one_that_cannot_be_ended_does_not_keep_the_others(start: Start, place: Path) -> None:
    start(unending=True)
    (place / "lost.log").write_text("what went wrong\n")
    done = _command("rm", "--all", "--json", code=1)
    told = json.loads(done.stdout)
    assert told["removed"] == ["lost"]
    assert "the machine would not end" in told["failed"]["web"]
    assert "the machine would not end" in done.stderr
    assert [one.name for one in kept.find_all()] == ["web"]


@pytest.mark.parametrize("seconds", ["nan", "inf"])
def test_a_time_that_is_no_number_is_refused(start: Start, seconds: str) -> None:
    start()
    assert "--timeout" in _command("exec", "web", "--timeout", seconds, "--", "true", code=2).stderr


@pytest.fixture
def stranger() -> Iterator[subprocess.Popen[bytes]]:
    """A process that has the number which a keeper had."""
    with subprocess.Popen(["sleep", "600"]) as process:
        yield process
        assert process.poll() is None
        process.kill()


def test_whoever_has_a_keepers_number_by_now_is_left_alone(
    stranger: subprocess.Popen[bytes], place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    was = Owner(stranger.pid, 1, Owner.current().boot_id, "here")
    said = json.dumps({"pid": was.pid, "owner": was.as_record()}) + "\n"
    monkeypatch.setattr(
        launching, "_BOOTSTRAP", f"import os, json, sys; os.write(json.load(sys.stdin)['fd'], {said!r}.encode())"
    )
    starting = launching._Starting(Plan("qemu", {}, make_spec(image=None, name="web")))
    starting.end()
    starting.close()
    access = RemoteAccess(Kept("web", was))
    monkeypatch.setattr(remote, "_ENDING_S", 600.0)  # nobody waits for the stranger either
    with pytest.raises(Ended, match="was ended by somebody else"):
        access.shutdown(1.0)
    access.destroy()


def test_a_keepers_number_may_be_a_threads_by_now(place: Path) -> None:
    over = threading.Event()
    thread = threading.Thread(target=over.wait)
    thread.start()
    try:
        assert thread.native_id is not None
        RemoteAccess(Kept("web", Owner(thread.native_id, 1, Owner.current().boot_id, "here"))).destroy()
    finally:
        over.set()
        thread.join()
