"""What the attack tests set up on the host: secrets to steal, listeners to reach, and users to be."""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import agentenv
from agentenv.testing.hostile.cage import CANARY

SOURCES = str(Path(agentenv.__file__).resolve().parent.parent)
DEBIAN_PYTHON = "/usr/bin/python3"
NOBODY = ("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups")


def canary() -> str:
    """A secret in the form the attempts search for."""
    return CANARY + secrets.token_hex(16)


def _own_addresses() -> list[str]:
    found = ["127.0.0.1"]
    with contextlib.suppress(OSError):
        found += [str(info[4][0]) for info in socket.getaddrinfo(socket.gethostname(), None, socket.AF_INET)]
    return list(dict.fromkeys(found))


def _echo(sock: socket.socket) -> None:
    while True:
        data, sender = sock.recvfrom(64)
        if data == b"end":
            return
        sock.sendto(data, sender)


@contextlib.contextmanager
def bait(directory: Path, neighbours: list[str]) -> Iterator[dict[str, str]]:
    """Everything an attempt could find or reach, as hints: files, a pid, listeners on every kind of socket."""
    unique = f"agentenv-bait-{secrets.token_hex(4)}"
    home = Path.home() / f".{unique}"
    beside = directory / "beside"
    temporary, shared = Path("/tmp", unique), Path("/dev/shm", unique)
    files = [home, beside, temporary, shared]
    with contextlib.ExitStack() as stack:
        for path in files:
            path.write_text(canary())
            path.chmod(0o644)
            stack.callback(path.unlink)
        tcp = stack.enter_context(socket.create_server(("0.0.0.0", 0)))
        udp = stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
        udp.bind(("0.0.0.0", 0))
        echo = threading.Thread(target=_echo, args=(udp,))
        echo.start()
        stack.callback(echo.join)
        stack.callback(udp.sendto, b"end", ("127.0.0.1", udp.getsockname()[1]))
        named = stack.enter_context(socket.socket(socket.AF_UNIX))
        named.bind(str(directory / "socket"))
        named.listen()
        abstract = stack.enter_context(socket.socket(socket.AF_UNIX))
        abstract.bind(f"\0{unique}")
        abstract.listen()
        yield {
            "files": ":".join(map(str, files)),
            "directory": os.getcwd(),
            "config": "",
            "pids": ":".join(str(pid) for pid in {os.getpid(), os.getppid()} if pid > 100),
            "variables": ":".join(name for name in os.environ if name.startswith(("PYTEST_", "SECRET_OF_THE_HOST"))),
            "tcp": str(tcp.getsockname()[1]),
            "udp": str(udp.getsockname()[1]),
            "addresses": ",".join(_own_addresses()),
            "socket": str(directory / "socket"),
            "abstract": unique,
            "neighbours": ":".join(neighbours),
        }


def nobodys_environment(home: Path) -> dict[str, str]:
    """Variables with which an ordinary user runs this checkout on the system's own interpreter.

    The interpreter of the tests may lie where only root can reach it; its packages are of the same version.
    """
    packages = [path for path in sys.path if path.endswith("site-packages")]
    return {
        "HOME": str(home),
        "PATH": "/usr/local/bin:/usr/bin:/bin",
        "PYTHONPATH": ":".join([SOURCES, *packages]),
        "PYTHONDONTWRITEBYTECODE": "1",
        "OPENBLAS_NUM_THREADS": "1",
    }
