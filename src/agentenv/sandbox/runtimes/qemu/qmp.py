"""QEMU's control protocol: one JSON object a line, an answer for each command, events in between.

https://www.qemu.org/docs/master/interop/qmp-spec.html. Every command has a number, so that an answer that comes after
its deadline is never taken for the next one's. Events are skipped, what matters is asked for; but for the last one, by
which QEMU says why it ends.
"""

from __future__ import annotations

import contextlib
import json
import socket
import threading
import time
from collections.abc import Sequence
from typing import Any

from agentenv.errors import ProtocolError

_MOST_BYTES = 1 << 22
_CHUNK = 1 << 16
_LAST_WORDS_S = 1.0
_MOST_WORDS = 40


class QmpError(Exception):
    """QEMU refused a command.

    Attributes:
        kind: The class of the error, as QEMU calls it.
        text: Its description.
    """

    def __init__(self, command: str, kind: str, text: str) -> None:
        self.kind = kind
        self.text = text
        super().__init__(f"{command}: {text}")


class Qmp:
    """A connection to one QEMU. Several threads may use it; they take turns."""

    def __init__(self, sock: socket.socket) -> None:
        """Take over a connected socket; ``greet`` comes first."""
        self._sock = sock
        self._lock = threading.Lock()
        self._held = b""
        self._number = 0
        self._reason = ""

    def greet(self, timeout_s: float) -> None:
        """Wait for QEMU and have it take commands.

        Raises:
            ConnectionError: It ended.
            TimeoutError: It did not answer in time.
        """
        with self._lock:
            greeting = self._receive(time.monotonic() + timeout_s)
        if "QMP" not in greeting:
            raise ProtocolError(f"expected a greeting of QEMU, got {str(greeting)[:200]}")
        self.execute("qmp_capabilities", timeout_s=timeout_s)

    def execute(
        self, command: str, arguments: dict[str, Any] | None = None, *, fds: Sequence[int] = (), timeout_s: float = 10.0
    ) -> Any:
        """Carry out a command.

        Args:
            command: Its name.
            arguments: Its arguments.
            fds: Descriptors that go with it.
            timeout_s: Seconds until it must have been answered.

        Raises:
            QmpError: QEMU refused.
            ConnectionError: QEMU ended.
            TimeoutError: It did not answer in time.
        """
        deadline = time.monotonic() + timeout_s
        with self._lock:
            number = self._send(command, arguments, fds, deadline)
            return self._answer(command, number, deadline)

    def end_reason(self) -> str:
        """Why a QEMU that has ended did so, in its own word: "guest-reset", "host-signal"; "" where it was killed.

        https://www.qemu.org/docs/master/interop/qemu-qmp-ref.html, "ShutdownCause".
        """
        deadline = time.monotonic() + _LAST_WORDS_S
        with self._lock, contextlib.suppress(OSError, ProtocolError):
            while True:  # to its end, which is an error
                self._receive(deadline)
        return self._reason

    def close(self) -> None:
        """Close the connection."""
        self._sock.close()

    def _send(self, command: str, arguments: dict[str, Any] | None, fds: Sequence[int], deadline: float) -> int:
        self._number += 1
        message: dict[str, Any] = {"execute": command, "id": self._number}
        if arguments:
            message["arguments"] = arguments
        data = json.dumps(message).encode() + b"\n"
        self._wait(deadline)
        if fds:
            sent = socket.send_fds(self._sock, [data], fds)
            data = data[sent:]
        if data:
            self._sock.sendall(data)
        return self._number

    def _answer(self, command: str, number: int, deadline: float) -> Any:
        while True:
            answer = self._receive(deadline)
            if answer.get("id") != number:
                continue
            if "error" in answer:
                error = answer["error"] if isinstance(answer["error"], dict) else {}
                raise QmpError(command, str(error.get("class", "")), str(error.get("desc", "no reason given")))
            return answer.get("return")

    def _receive(self, deadline: float) -> dict[str, Any]:
        while b"\n" not in self._held:
            if len(self._held) > _MOST_BYTES:
                raise ProtocolError(f"QEMU sent a line of more than {_MOST_BYTES} bytes")
            self._wait(deadline)
            data = self._sock.recv(_CHUNK)
            if not data:
                raise ConnectionError("QEMU closed its control connection")
            self._held += data
        line, _, self._held = self._held.partition(b"\n")
        try:
            answer = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise ProtocolError(f"QEMU sent what is not JSON: {line[:200]!r}") from error
        if not isinstance(answer, dict):
            raise ProtocolError(f"expected an object from QEMU, got {line[:200]!r}")
        if answer.get("event") == "SHUTDOWN" and isinstance(answer.get("data"), dict):
            self._reason = str(answer["data"].get("reason", ""))[:_MOST_WORDS]
        return answer

    def _wait(self, deadline: float) -> None:
        """Bound the next call on the socket."""
        left = deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError("QEMU did not answer in time")
        self._sock.settimeout(left)
