"""A sandbox that lies about why it refuses something does not have its lie taken for what we find out ourselves."""

from __future__ import annotations

import errno
import json
from typing import Any

import pytest
import typer

from agentenv import Sandbox
from agentenv.boxes.status import read_ending
from agentenv.cli.exits import FAILED, guarded
from agentenv.errors import SandboxDied
from agentenv.sandbox.runtimes._vm import agent as agent_module
from agentenv.sandbox.runtimes._vm.agent import AgentRefusal

LIES = [errno.EPIPE, errno.ESHUTDOWN, errno.ECONNRESET, errno.ETIMEDOUT, errno.EAGAIN, errno.EINTR]
LIES += [True, 10**30, -5, "2"]


@pytest.mark.parametrize("told", LIES)
def test_of_the_end_of_a_program(told: Any) -> None:
    data = json.dumps({"error": {"type": "X", "errno": told, "message": "m"}}).encode()
    with pytest.raises(OSError, match="sandbox 'a'") as caught:
        read_ending(data, "a")
    assert type(caught.value) is OSError
    assert caught.value.errno == errno.EIO


@pytest.mark.parametrize("told", LIES)
def test_of_a_request(told: Any) -> None:
    assert AgentRefusal("a", {"error": "x", "errno": told}).code == errno.EIO


def test_what_files_and_programs_get_is_passed_on() -> None:
    assert AgentRefusal("a", {"error": "x", "errno": errno.ENOENT}).code == errno.ENOENT
    assert AgentRefusal("a", {"error": "x"}).code is None
    data = json.dumps({"error": {"type": "X", "errno": errno.EACCES, "message": "m"}}).encode()
    with pytest.raises(PermissionError):
        read_ending(data, "a")


def test_one_that_breaks_the_protocol_is_ended(box: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    (kid,) = box.fork(1)
    with kid:
        with monkeypatch.context() as patch:
            patch.setattr(agent_module, "receive_message", _rubbish)
            with pytest.raises(SandboxDied, match="broke the protocol"):
                kid.exec("true")
        assert kid.state == "died"
        assert "broke the protocol" in kid.describe().cause


def _rubbish(*_arguments: Any, **_keywords: Any) -> Any:
    raise ValueError("100,000 lists in one another")


def test_only_a_reader_of_ours_that_is_gone_ends_a_command_well() -> None:
    @guarded
    def command(error: Exception) -> None:
        raise error

    with pytest.raises(typer.Exit) as caught:
        command(error=BrokenPipeError(errno.EPIPE, "sandbox 'a': it is gone"))
    assert caught.value.exit_code == FAILED
