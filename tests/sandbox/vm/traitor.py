"""Put into machines of tests in place of the agent: it is the agent, until the host's test tells it what to do wrong.

It is root and the first process there, so it may do what no environment can. "plan" is a request like any other; the
deed is done when the next step comes, but for "refuse", which is about the next request.
"""

from __future__ import annotations

import ctypes
import os
import struct
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from agentenv.guest.agent import agent as real
from agentenv.wire.frames import HEADER, RPC, Kind, frame

CONTROL = 1
_LENGTH = struct.Struct("<I")


class Traitor(real.Agent):
    """The agent, and a plan."""

    def __init__(self) -> None:
        self.plan = ""
        super().__init__()

    def _obey(self, message: dict[str, Any]) -> None:
        if message["op"] == "plan":
            self.plan = message["deed"]
            self._tell({"id": message["id"], "value": None})
        elif self.plan == "refuse":
            self.plan = ""
            self._tell({"id": message["id"], "error": "OSError: never", "errno": 12, "text": "ne\x1b[2Jver\ud800"})
        else:
            super()._obey(message)

    def _hear(self, kind: Kind, body: bytes) -> None:
        deed, self.plan = self.plan, ""
        if deed in DEEDS:
            DEEDS[deed](self, body)
        super()._hear(kind, body)

    def write(self, data: bytes) -> None:
        """Put bytes into the stream to the host, as they are."""
        assert self._link is not None
        self._link._out += data
        self._link._flush()

    def say(self, message: bytes) -> None:
        """Send a message that nobody asked for."""
        self.write(frame(Kind.DATA, RPC, _LENGTH.pack(len(message)) + message))


def _garbage(traitor: Traitor, _body: bytes) -> None:
    traitor.write(b"\xff" * 5000)


def _huge(traitor: Traitor, _body: bytes) -> None:
    traitor.write(HEADER.pack(0xFFFFFFFF, CONTROL, Kind.DATA))


def _beyond_credit(traitor: Traitor, _body: bytes) -> None:
    for _ in range(64):
        traitor.write(frame(Kind.DATA, CONTROL, bytes(1 << 16)))


def _no_answer(traitor: Traitor, _body: bytes) -> None:
    traitor.write(frame(Kind.ANSWER, 0, b"\0\0\0"))


def _for_another_slot(traitor: Traitor, body: bytes) -> None:
    ticket = body[:8]
    traitor.write(frame(Kind.ANSWER, 0, ticket + struct.pack("<H", 1) + struct.pack("<HHIQQQQ", 7, 0, 0, 1, 0, 0, 0)))


def _too_long(traitor: Traitor, body: bytes) -> None:
    traitor.write(frame(Kind.ANSWER, 0, body[:8] + struct.pack("<H", 0) + bytes(100)))


def _nonsense(traitor: Traitor, body: bytes) -> None:
    """All that is well formed and means nothing: it is passed over."""
    traitor.write(frame(Kind.DATA, 999, b"x" * 1000) + frame(Kind.END, 77) + frame(Kind.CREDIT, 3, b"1"))
    traitor.write(frame(Kind.CREDIT, CONTROL, b"\xff\xff\xff\xff") * 100)
    traitor.write(frame(Kind.STEP, 0, b"who steps whom?") + frame(Kind.HELLO, 0, b"again") * 10)
    late = (int.from_bytes(body[:8], "little") - 1).to_bytes(8, "little")
    traitor.write(frame(Kind.ANSWER, 0, late + struct.pack("<H", 1) + bytes(500)))
    for message in (b'{"event": 5}', b'{"event": {"event": []}}', b'{"id": null}', b'{"id": 1e999, "value": 1}'):
        traitor.say(message)


def _babble(traitor: Traitor, _body: bytes) -> None:
    for message in (b"[" * 50_000, b"{", b"[]"):
        traitor.say(message)


def _forged_reports(traitor: Traitor, _body: bytes) -> None:
    for event in (b'{"event": "broken"}', b'{"event": "ended", "oom_kills": "many"}', b'{"event": "ended"}'):
        traitor.say(event)
    traitor.say(b'{"event": "ended", "oom_kills": 1' + b"0" * 4000 + b"}")
    traitor.write(frame(Kind.DATA, RPC, _LENGTH.pack(0xFFFFFFFF)))
    traitor.write(frame(Kind.BYE))
    time.sleep(1e6)


def _silence(_traitor: Traitor, _body: bytes) -> None:
    time.sleep(1e6)


def _flood_console(_traitor: Traitor, _body: bytes) -> None:
    with open("/dev/console", "wb", buffering=0) as console:
        for _ in range(1000):
            console.write(b"x" * 400 + b"\n")


def _panic(_traitor: Traitor, _body: bytes) -> None:
    Path("/proc/sys/kernel/sysrq").write_text("1")
    Path("/proc/sysrq-trigger").write_text("c")


def _agent_exits(_traitor: Traitor, _body: bytes) -> None:
    os._exit(3)


def _agent_crashes(_traitor: Traitor, _body: bytes) -> None:
    ctypes.string_at(0)


def _agent_fails(_traitor: Traitor, _body: bytes) -> None:
    raise RuntimeError("a mistake in the agent")


def _kill_first(_traitor: Traitor, _body: bytes) -> None:
    """The kernel spares the first process, even from root."""
    subprocess.run(["/.agentenv/bin/busybox", "kill", "-9", "1"], check=False)


def _kill_zygote(traitor: Traitor, _body: bytes) -> None:
    assert traitor._python is not None
    os.kill(traitor._python.pid, 9)


def _kill_cell(traitor: Traitor, _body: bytes) -> None:
    assert traitor._python is not None
    children = Path(f"/proc/{traitor._python.pid}/task/{traitor._python.pid}/children").read_text().split()
    os.kill(int(children[-1]), 9)


def _eat_memory(_traitor: Traitor, _body: bytes) -> None:
    """By one whom the kernel spares, so that it ends everybody else."""
    if os.fork() == 0:
        held = []
        while True:
            held.append(b"x" * (1 << 20))


def _fill_disk(_traitor: Traitor, _body: bytes) -> None:
    try:
        with open("/filler", "wb", buffering=0) as file:
            while True:
                file.write(bytes(1 << 20))
    except OSError as error:
        print(f"filled: {error}", flush=True)


def _reboot(_traitor: Traitor, _body: bytes) -> None:
    subprocess.run(["/.agentenv/bin/busybox", "reboot", "-f"], check=False)


def _reset(_traitor: Traitor, _body: bytes) -> None:
    """As the processor does it, without a word of the kernel's."""
    Path("/proc/sys/kernel/printk").write_text("0 0 0 0")
    Path("/proc/sys/kernel/sysrq").write_text("1")
    Path("/proc/sysrq-trigger").write_text("b")


def _another_time(_traitor: Traitor, _body: bytes) -> None:
    time.clock_settime(time.CLOCK_REALTIME, time.time() - 3e8)


DEEDS: dict[str, Callable[[Traitor, bytes], None]] = {
    name.removeprefix("_"): deed for name, deed in globals().items() if name.startswith("_") and callable(deed)
}

if __name__ == "__main__":
    real.Agent = Traitor  # type: ignore[misc]  # that is the treason
    real.main()
