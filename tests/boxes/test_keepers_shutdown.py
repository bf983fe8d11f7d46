"""An orderly end through keepers: what is said where one does not know of it, does not answer, or fails."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from agentenv.boxes import kept, remote
from agentenv.boxes.commands import make_spec
from agentenv.boxes.failures import to_record
from agentenv.boxes.keeper import Keeper
from agentenv.boxes.plans import Plan
from agentenv.boxes.remote import Ended, RemoteAccess
from agentenv.errors import (
    Cause,
    CauseKind,
    ClosedError,
    Owner,
    ProtocolError,
    RuntimeUnavailable,
    SandboxDied,
    StepTimeout,
)
from agentenv.fleet import owner
from agentenv.guest.control import receive_message, send_message
from agentenv.sandbox.workbench import Shutdown

# A keeper in all but the machine: what it answers to "shutdown" is the test's, and whether it ends then.
KEEPER = """
import json, sys
from agentenv.boxes import kept
from agentenv.boxes.access import Description
from agentenv.guest.control import receive_message, send_message
described = {"description": Description("web", "running", "", "q", "", 1, 1.0, 1.0, "", 1).to_json()}
answer, ends = json.loads(sys.argv[1])
kept.claim("web")
held = []
with kept.listen("web") as listener:
    print("there", flush=True)
    while True:
        connection, _ = listener.accept()
        held.append(connection)
        op = receive_message(connection)[0]["op"]
        if op == "shutdown" and answer is None:
            continue
        send_message(connection, {"describe": described, "shutdown": answer}.get(op, {}))
        if op == "destroy" or (op == "shutdown" and ends):
            break
        connection.close()
"""
TIMEOUT = Cause(CauseKind.TIMEOUT, Owner.INFRASTRUCTURE, "its agent did not answer; it was destroyed all the same")
LATE = StepTimeout(TIMEOUT.detail, env_id="web", cause=TIMEOUT, noun="sandbox")


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    return tmp_path / "agentenv"


Start = Callable[..., tuple[subprocess.Popen[bytes], RemoteAccess]]


@pytest.fixture
def start() -> Iterator[Start]:
    with ExitStack() as stack:

        def run(answer: Any, *, ends: bool) -> tuple[subprocess.Popen[bytes], RemoteAccess]:
            argv = [sys.executable, "-c", KEEPER, json.dumps([answer, ends])]
            process = stack.enter_context(subprocess.Popen(argv, stdout=subprocess.PIPE))
            stack.callback(process.kill)
            assert process.stdout is not None
            assert process.stdout.readline() == b"there\n"
            return process, remote.connect("web")

        yield run


def test_what_the_keeper_tells_is_returned_when_it_has_ended(start: Start, place: Path) -> None:
    process, access = start({"done": {"ended": 2, "killed": 1}}, ends=True)
    assert access.shutdown(1.0) == Shutdown(2, 1)
    assert process.wait(30) == 0
    assert [one.name for one in place.iterdir()] == ["lock"]


@pytest.mark.parametrize("error", [LATE, SandboxDied("gone", env_id="web", cause=TIMEOUT, noun="sandbox")])
def test_where_it_fails_nothing_is_left_either(start: Start, place: Path, error: Exception) -> None:
    process, access = start({"error": to_record(error)}, ends=True)
    with pytest.raises(type(error), match="sandbox 'web': its agent did not answer; it was destroyed"):
        access.shutdown(1.0)
    assert process.wait(30) == 0
    assert [one.name for one in place.iterdir()] == ["lock"]


@pytest.mark.parametrize(
    "answer",
    [
        {"error": to_record(ProtocolError("expected one of describe, destroy, got 'shutdown'"))},
        {},
        {"done": "yes"},
        {"done": {"ended": "many", "killed": 0}},
    ],
)
def test_one_of_another_version_is_left_alone(start: Start, answer: Any) -> None:
    process, access = start(answer, ends=False)
    with pytest.raises(RuntimeUnavailable, match="of another version, and cannot end it in order") as caught:
        access.shutdown(1.0)
    assert caught.value.remedy == "agentenv sandbox rm web ends it at once"
    assert process.poll() is None
    access.destroy()
    assert process.wait(30) == 0


def test_one_that_never_answers_is_ended_all_the_same(
    start: Start, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote, "_SHUTDOWN_S", 0.1)
    monkeypatch.setattr(remote, "_ENDING_S", 0.1)
    process, access = start(None, ends=False)
    with pytest.raises(StepTimeout, match=r"has not answered within 0\.2 s; it was destroyed all the same"):
        access.shutdown(0.1)
    assert process.wait(30) == 0
    assert [one.name for one in place.iterdir()] == ["lock"]


def test_one_that_stands_still_is_not_waited_for(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote, "_END_S", 0.2)
    process, access = start(None, ends=False)
    process.send_signal(signal.SIGSTOP)
    with pytest.raises(RuntimeUnavailable, match=f"its keeper, process {process.pid}, has not answered") as caught:
        access.shutdown(3600.0)
    assert caught.value.remedy == f"kill -9 {process.pid} ends both"


def test_one_that_is_gone_is_said_to_be(start: Start) -> None:
    process, access = start(None, ends=False)
    process.kill()
    process.wait()
    with pytest.raises(SandboxDied, match="its keeper is gone"):
        access.shutdown(1.0)


class _Held:
    """What a keeper holds, of which an orderly end fails."""

    id = "web"

    def __init__(self, error: Exception) -> None:
        self._error = error

    def shutdown(self, timeout_s: float) -> Shutdown:
        assert timeout_s == 3.0
        raise self._error


@pytest.mark.parametrize(
    ("error", "ends"),
    [
        (LATE, True),
        (OSError(5, "the machine would not end"), True),
        (RuntimeUnavailable("web: it cannot be ended in order"), False),
        (ClosedError("sandbox 'web' was destroyed; make another"), False),
    ],
)
def test_a_keeper_ends_unless_all_is_as_it_was(error: Exception, ends: bool) -> None:
    """Or unless somebody else has ended it, whose answer comes first."""
    kept.claim("web")
    given_up: list[bool] = []
    keeper = Keeper(_Held(error), kept.listen("web"), lambda: given_up.append(True), lambda: None)  # type: ignore[arg-type]  # stands in
    serving = threading.Thread(target=keeper.serve, daemon=True)
    serving.start()
    with kept.dial("web") as connection:
        send_message(connection, {"op": "shutdown", "timeout": 3})
        told = receive_message(connection)[0]["error"]
        assert told["type"] == type(error).__name__
        assert given_up == [True] * ends
        if not ends:
            send_message(connection, {"op": "nonsense"})
            assert "expected one of" in receive_message(connection)[0]["error"]["message"]
            assert serving.is_alive()
            keeper._stop.send(b"x")
    serving.join(30)
    assert not serving.is_alive()
    keeper.close()
    kept.give_up("web", owner.Owner.current())


class _Once:
    """What a keeper holds, and what can be ended once, when the test lets it."""

    id = "web"

    def __init__(self) -> None:
        self.begun, self.let = threading.Event(), threading.Event()

    def shutdown(self, timeout_s: float) -> Shutdown:
        if self.begun.is_set():
            raise ClosedError("sandbox 'web' was destroyed; make another")
        self.begun.set()
        assert self.let.wait(30)
        return Shutdown(2, 1)


def test_who_asks_while_it_ends_is_told_the_same_before_the_keeper_ends() -> None:
    held = _Once()
    kept.claim("web")
    keeper = Keeper(held, kept.listen("web"), lambda: kept.give_up("web", owner.Owner.current()), lambda: None)  # type: ignore[arg-type]  # stands in
    serving = threading.Thread(target=keeper.serve, daemon=True)
    serving.start()
    with ExitStack() as stack:
        first, meanwhile, afterwards, idle = (stack.enter_context(kept.dial("web")) for _ in range(4))
        send_message(first, {"op": "shutdown", "timeout": 3})
        assert held.begun.wait(30)
        send_message(meanwhile, {"op": "shutdown", "timeout": 3})
        held.let.set()
        done = {"done": {"ended": 2, "killed": 1}, "over": True}
        assert receive_message(first)[0] == done
        send_message(afterwards, {"op": "shutdown", "timeout": 3})
        assert receive_message(meanwhile)[0] == done
        assert receive_message(afterwards)[0] == done
        serving.join(30)  # whoever asks for nothing is not waited for
        assert not serving.is_alive()
        assert idle.fileno() >= 0
    keeper.close()


def test_one_that_somebody_else_has_ended_is_said_to_be(start: Start) -> None:
    process, access = start(None, ends=False)
    late = remote.connect("web")
    access.destroy()
    assert process.wait(30) == 0
    with pytest.raises(Ended, match="sandbox 'web' was ended by somebody else"):
        late.shutdown(1.0)


def test_copies_that_somebody_has_go_with_the_keeper(place: Path) -> None:
    class Copied:
        id = "web"
        plan = Plan("qemu", {}, make_spec(image=None, name="web"))

        def copy_to(self, directory: Path) -> None:
            (directory / "memory").touch()

        def destroy(self) -> None:
            pass

    kept.claim("web")
    keeper = Keeper(Copied(), kept.listen("web"), lambda: kept.give_up("web", owner.Owner.current()), lambda: None)  # type: ignore[arg-type]  # stands in
    serving = threading.Thread(target=keeper.serve, daemon=True)
    serving.start()
    with kept.dial("web") as copying, kept.dial("web") as ending:
        send_message(copying, {"op": "copy"})
        directory = Path(receive_message(copying)[0]["plan"]["origin"])
        assert (directory / "memory").exists()
        send_message(ending, {"op": "destroy"})
        assert receive_message(ending)[0] == {"over": True}
        serving.join(30)
        keeper.close()
        assert not directory.exists()
