"""Requests to the agent inside a machine; see ``agentenv.guest.agent.agent``."""

from __future__ import annotations

import os
import select
import socket
import threading
import time
from typing import Any

from agentenv.errors import Cause, CauseKind, Owner, RuntimeUnavailable, SandboxDied, StepTimeout
from agentenv.guest.control import ControlClosed, receive_message, send_message
from agentenv.sandbox.workbench import refused_with
from agentenv.wire.frames import HELLO, NONCE_BYTES

_AGAIN_MS = 100


def greet(stream: socket.socket, timeout_s: float) -> None:
    """Say hello on a new stream until the agent has repeated it; what came before is thrown away.

    More than once, because an agent that just noticed the end of another host's stream throws away what it has read.

    Raises:
        TimeoutError: It did not.
        ConnectionError: The stream ended.
    """
    deadline = time.monotonic() + timeout_s
    word = HELLO + os.urandom(NONCE_BYTES)
    poller = select.poll()
    poller.register(stream, select.POLLIN)
    held = b""
    # Where nobody reads, there is no room for another one after some hundreds, and to send it would wait for ever.
    stream.settimeout(timeout_s)
    stream.sendall(word)
    while not held.endswith(word):
        if (left := deadline - time.monotonic()) <= 0:
            raise TimeoutError("the agent did not say hello")
        stream.settimeout(left)
        if not poller.poll(_AGAIN_MS):
            stream.sendall(word)
            continue
        part = stream.recv(4096)
        if not part:
            raise ConnectionError("the stream to the agent ended")
        held = held[-len(word) :] + part
    stream.settimeout(None)


class AgentRefusal(RuntimeUnavailable):
    """The agent could not do what it was asked for.

    Attributes:
        code: The errno inside, where the system refused; else None.
        text: What it said, alone.
    """

    def __init__(self, machine_id: str, message: dict[str, Any]) -> None:
        """Of an answer of the agent; hostile data."""
        super().__init__(f"{machine_id}: {str(message['error'])[:2000]}")
        code, text = message.get("errno"), message.get("text", message["error"])
        self.code = None if code is None else refused_with(code)
        self.text = str(text)[:2000]


class Agent:
    """The host's end of the requests to one machine's agent.

    Attributes:
        theirs: The end that the relay carries; close it when the relay has it.
    """

    def __init__(self, machine_id: str) -> None:
        """Make the sockets; ``machine_id`` is named in errors."""
        self._id = machine_id
        self._mine, self.theirs = socket.socketpair()
        self._lock = threading.Lock()
        self._number = 0
        self._events: list[dict[str, Any]] = []

    def call(self, op: str, timeout_s: float, **arguments: Any) -> Any:
        """Ask for something and wait for the answer; hostile data.

        Raises:
            AgentRefusal: The agent refuses; says why.
            StepTimeout: It did not answer in time.
            SandboxDied: The machine is gone, or its agent sends what is not the protocol.
        """
        with self._lock:
            self._number += 1
            deadline = time.monotonic() + timeout_s
            try:
                self._mine.settimeout(timeout_s)
                send_message(self._mine, {"id": self._number, "op": op, **arguments})
                while (message := receive_message(self._mine, deadline=deadline)[0]).get("id") != self._number:
                    self._note(message)
            except TimeoutError:
                late = f"its agent did not answer {op!r} in {timeout_s:g} s: it hangs, or the host has too much to do"
                cause = Cause(CauseKind.TIMEOUT, Owner.INFRASTRUCTURE, f"{late}; destroy it, or run fewer at once")
                raise StepTimeout(cause.detail, env_id=self._id, cause=cause) from None
            except (ControlClosed, OSError) as error:
                cause = Cause(CauseKind.SANDBOX_LOST, Owner.INFRASTRUCTURE, f"the machine ended while {op!r} was asked")
                raise SandboxDied(cause.detail, env_id=self._id, cause=cause) from error
            except ValueError as error:
                cause = Cause(
                    CauseKind.PROTOCOL,
                    Owner.ENVIRONMENT,
                    f"its machine broke the protocol: asked for {op!r}, its agent sent {error}",
                )
                raise SandboxDied(cause.detail, env_id=self._id, cause=cause) from error
        if "error" in message:
            raise AgentRefusal(self._id, message)
        return message.get("value")

    def events(self) -> list[dict[str, Any]]:
        """What it has told without being asked, so far."""
        with self._lock:
            poller = select.poll()
            try:
                poller.register(self._mine, select.POLLIN)
                while poller.poll(0):
                    self._mine.settimeout(0.5)
                    self._note(receive_message(self._mine, deadline=time.monotonic() + 0.5)[0])
            except (ControlClosed, OSError, ValueError):
                pass
        return self._events

    def close(self) -> None:
        """Close both ends. Idempotent."""
        self._mine.close()
        self.theirs.close()

    def _note(self, message: dict[str, Any]) -> None:
        if "event" in message and len(self._events) < 16:
            self._events.append(message)
