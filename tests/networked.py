"""An environment that tries to reach others over the network, imported by name inside the sandboxes of the tests."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import threading
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

_PATIENCE_S = 3.0
_UDP_TRIES = 6


class Networked(gymnasium.Env[Any, Any]):
    """Does what it is asked, and says what came of it."""

    observation_space: Any = spaces.Box(0, 1, (1,), np.float32)
    action_space: Any = spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return np.zeros(1, np.float32), 0.0, False, False, {}

    def reach(self, targets: list[str]) -> dict[str, str]:
        """For each of "tcp://address:port" and "udp://address:port": what the other end said, or the error's name."""
        return {target: _reach(target) for target in targets}

    def read(self, path: str) -> str:
        """A file's text; empty where there is none."""
        return Path(path).read_text(encoding="utf-8") if os.path.exists(path) else ""

    def devices(self) -> list[str]:
        """Names of the interfaces."""
        return sorted(name for _, name in socket.if_nameindex())

    def listen(self, port: int) -> int:
        """Answer on a port from now on."""
        listener = socket.create_server(("0.0.0.0", port))

        def serve() -> None:
            while True:
                connection, _ = listener.accept()
                with connection:
                    connection.sendall(b"the other environment")

        self.held = threading.Thread(target=serve, daemon=True)
        self.held.start()
        return os.getpid()

    def attempt(self, name: str) -> list[str]:
        """Try one of the attacks on the network; what it reached."""
        from agentenv.testing.hostile.reaching_network import ATTEMPTS

        return ATTEMPTS[name]({})


def _reach(target: str) -> str:
    protocol, _, where = target.partition("://")
    address, _, port = where.partition(":")
    try:
        if protocol == "tcp":
            with socket.create_connection((address, int(port)), timeout=_PATIENCE_S) as connection:
                return connection.recv(100).decode()
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
            sender.connect((address, int(port)))
            sender.settimeout(_PATIENCE_S / _UDP_TRIES)
            for _ in range(_UDP_TRIES):
                sender.send(b"hello")
                with contextlib.suppress(TimeoutError):
                    return sender.recv(100).decode()
            return "silent"
    except TimeoutError:
        return "silent"
    except OSError as error:
        return errno.errorcode.get(error.errno or 0, str(error))
