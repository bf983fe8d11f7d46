"""agentenv sandbox exec --tty in a terminal that is really one, and what it is afterwards."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import signal
import struct
import sys
import termios
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from machines_ground import need_machines

pytestmark = pytest.mark.timeout(300)


class Terminal:
    """A terminal with a command in it."""

    def __init__(self, ground: Path, *command: str) -> None:
        # A second descriptor of the terminal keeps it readable after the command's end.
        self.fd, self._theirs = pty.openpty()
        self.resize(30, 100)
        self.before = termios.tcgetattr(self._theirs)
        self.seen = b""
        variables = {**os.environ, "XDG_RUNTIME_DIR": str(ground), "AGENTENV_DATA": str(ground / "data")}
        self.pid = os.fork()
        if self.pid == 0:
            try:
                os.setsid()
                fcntl.ioctl(self._theirs, termios.TIOCSCTTY, 0)
                for number in range(3):
                    os.dup2(self._theirs, number)
                os.execve(sys.executable, [sys.executable, "-m", "agentenv.cli", "sandbox", *command], variables)
            finally:
                os._exit(99)

    def resize(self, rows: int, columns: int) -> None:
        fcntl.ioctl(self.fd, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def type(self, text: bytes) -> None:
        os.write(self.fd, text)

    def expect(self, text: bytes, timeout_s: float = 100) -> None:
        """Wait until something has appeared, and forget what came before it."""
        ends = time.monotonic() + timeout_s
        while text not in self.seen:
            assert time.monotonic() < ends, self.seen
            if select.select([self.fd], [], [], 0.1)[0]:
                self.seen += os.read(self.fd, 1 << 16)
        self.seen = self.seen.partition(text)[2]

    @property
    def raw(self) -> bool:
        return not termios.tcgetattr(self._theirs)[3] & termios.ICANON

    def end(self, timeout_s: float = 100) -> int:
        """Its exit code, with the terminal as it was."""
        ends = time.monotonic() + timeout_s
        while (found := os.waitpid(self.pid, os.WNOHANG))[0] == 0:
            assert time.monotonic() < ends, self.seen
            if select.select([self.fd], [], [], 0.1)[0]:
                self.seen += os.read(self.fd, 1 << 16)
        self.pid = 0
        assert termios.tcgetattr(self._theirs) == self.before
        return os.waitstatus_to_exitcode(found[1])

    def close(self) -> None:
        if self.pid:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
        os.close(self.fd)
        os.close(self._theirs)


@pytest.fixture(scope="module")
def ground(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    need_machines()
    from agentenv.boxes.box import Sandbox
    from agentenv.boxes.commands import make_spec
    from agentenv.boxes.launch import launch
    from agentenv.boxes.plans import Plan

    ground = tmp_path_factory.mktemp("ground")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_RUNTIME_DIR", str(ground))
        launch([Plan("qemu", {}, make_spec(image=None, name="web", memory_mb=256))])
        yield ground
        Sandbox.connect("web").destroy()


def test_a_shell_in_a_terminal(ground: Path) -> None:
    terminal = Terminal(ground, "exec", "--tty", "web", "--", "sh")
    try:
        terminal.expect(b"# ")
        assert terminal.raw
        terminal.type(b"stty size\n")
        terminal.expect(b"30 100\r\n")
        terminal.resize(40, 132)
        terminal.type(b"while test \"$(stty size)\" != '40 132'; do sleep 0.1; done; echo new$((1 + 1))\n")
        terminal.expect(b"new2")
        # Ctrl-C is typed, and meant for what runs in there.
        terminal.type(b"sh -c 'echo sle\"\"eps; exec sleep 600'\n")
        terminal.expect(b"sleeps")
        terminal.type(b"\x03")
        terminal.type(b"echo code=$?\n")
        terminal.expect(b"code=130")
        terminal.type(b"exit 5\n")
        assert terminal.end() == 5
    finally:
        terminal.close()


@pytest.mark.parametrize(
    ("arguments", "number", "code"),
    [
        (["--tty", "web", "--", "no-such-program"], 0, 127),
        (["--tty", "web", "--timeout", "1", "--", "cat"], 0, 124),
        (["--tty", "web", "--", "sh", "-c", "echo up; exec sleep 600"], signal.SIGTERM, 143),
        (["--tty", "web", "--", "sh", "-c", "echo up; exec sleep 600"], signal.SIGHUP, 129),
        (["--tty", "web", "--", "sh", "-c", "echo up; exec sleep 600"], signal.SIGQUIT, 131),
    ],
)
def test_whatever_ends_it_the_terminal_is_as_it_was(ground: Path, arguments: list[str], number: int, code: int) -> None:
    terminal = Terminal(ground, "exec", *arguments)
    try:
        if number:
            terminal.expect(b"up")
            os.kill(terminal.pid, number)
        assert terminal.end() == code
    finally:
        terminal.close()
