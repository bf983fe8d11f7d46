"""What is said in place of an introduction, and whose word it is."""

from __future__ import annotations

from typing import Any

import pytest

from agentenv import AgentENV
from agentenv.errors import CauseKind, Owner, ProtocolError, RuntimeUnavailable, SandboxDied
from agentenv.sandbox.contract import EnvRequest, SandboxSpec
from agentenv.sandbox.runtimes import _cell, bubblewrap
from agentenv.sandbox.runtimes._introduction import read_introductions
from agentenv.testing.attacks import SUBJECT

SPEC = SandboxSpec(id="one", envs=(EnvRequest("frail:Native"),))


def test_whoever_says_that_it_cannot_be_made_is_itself_to_blame() -> None:
    said = "\x1b[31mred \u202e\x9b" + "no room " * 10_000
    with pytest.raises(SandboxDied) as caught:
        read_introductions({"failed": said}, SPEC, lambda: "its last line")
    assert (caught.value.cause.kind, caught.value.cause.owner) == (CauseKind.START_FAILED, Owner.ENVIRONMENT)
    text = str(caught.value)
    assert text.replace("\n", "").isprintable()
    assert "no room" in text
    assert "its last line" in text
    assert len(text) < 1000


@pytest.mark.parametrize("said", [None, 5, ["no room"], {"no": "room"}])
def test_what_is_no_text_is_no_introduction(said: Any) -> None:
    with pytest.raises(ProtocolError):
        read_introductions({"failed": said}, SPEC, str)


def test_a_cell_whose_first_process_cannot_build_it_is_the_machinerys(monkeypatch: pytest.MonkeyPatch) -> None:
    def with_an_impossible_mount(*args: Any, view: dict[str, Any], **keys: Any) -> dict[str, Any]:
        return honest(*args, view={**view, "tmpfs": [["/proc/nowhere", 4096]]}, **keys)

    honest = bubblewrap.settings_for
    monkeypatch.setattr(bubblewrap, "settings_for", with_an_impossible_mount)
    with pytest.raises(RuntimeUnavailable, match=r"cannot be made: .*nowhere") as caught:
        AgentENV.from_env("frail:Native", runtime="bubblewrap")
    assert "agentenv runtimes" in caught.value.remedy


def test_the_number_of_the_first_process_proves_nothing_where_it_can_be_ended_from_inside(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    told: list[int] = []

    def as_of_the_first(sock: Any) -> int:
        told.append(honest(sock))
        return told[0]

    honest = _cell.sender_pid
    monkeypatch.setattr(_cell, "sender_pid", as_of_the_first)
    liar = {"id": "one", "env": SUBJECT, "env_kwargs": {"deed": "construct:introduce_failure"}}
    with pytest.raises(SandboxDied) as caught:
        AgentENV({"global": {"runtime": "bubblewrap"}, "environments": [liar], "bubblewrap": {"nested": "never"}})
    assert caught.value.cause.kind is CauseKind.START_FAILED
    assert len(told) == 2
