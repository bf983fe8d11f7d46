"""Firecracker's control interface: HTTP on a Unix socket, JSON both ways.

https://github.com/firecracker-microvm/firecracker, src/firecracker/swagger/firecracker.yaml.
"""

from __future__ import annotations

import http.client
import json
import socket
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from agentenv.sandbox.runtimes._vm.monitor import address_of

_MOST_BYTES = 1 << 20
_CREDENTIALS = struct.Struct("3i")


class ApiError(Exception):
    """Firecracker refused a request.

    Attributes:
        status: Of the answer.
        text: What it says.
    """

    def __init__(self, request: str, status: int, text: str) -> None:
        self.status = status
        self.text = text
        super().__init__(f"{request}: {text}")


class Api:
    """The control interface of one Firecracker; a connection for each request, so that threads need not take turns."""

    def __init__(self, directory: Path, name: str) -> None:
        """Name its socket.

        Args:
            directory: Where it is; the path may be longer than a socket's address can be.
            name: Its name there.
        """
        self._directory = directory
        self._name = name

    def get(self, path: str, *, timeout_s: float = 10.0) -> Any:
        """Read something; see ``request``."""
        return self.request("GET", path, None, timeout_s=timeout_s)

    def put(self, path: str, body: Mapping[str, Any], *, timeout_s: float = 10.0) -> None:
        """Set or do something; see ``request``."""
        self.request("PUT", path, body, timeout_s=timeout_s)

    def patch(self, path: str, body: Mapping[str, Any], *, timeout_s: float = 10.0) -> None:
        """Change something; see ``request``."""
        self.request("PATCH", path, body, timeout_s=timeout_s)

    def pid(self) -> int:
        """The process that listens there, as the kernel vouches for it.

        Raises:
            ConnectionError, FileNotFoundError: Nobody does.
        """
        with address_of(self._directory, self._name) as address, socket.socket(socket.AF_UNIX) as connection:
            connection.connect(address)
            credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        return int(_CREDENTIALS.unpack(credentials)[0])

    def request(self, method: str, path: str, body: Mapping[str, Any] | None, *, timeout_s: float) -> Any:
        """Send a request and wait for its answer.

        Returns:
            The answer's content; None where it has none.

        Raises:
            ApiError: Firecracker refused, or its answer is none.
            ConnectionError, FileNotFoundError: It does not listen (yet), or ended.
            TimeoutError: It did not answer in time.
        """
        what = f"{method} {path}"
        with address_of(self._directory, self._name) as address:
            connection = _Connection(address, timeout_s)
            try:
                headers = {"Accept": "application/json", "Content-Type": "application/json"}
                connection.request(method, path, None if body is None else json.dumps(body), headers)
                response = connection.getresponse()
                content = response.read(_MOST_BYTES)
            except http.client.HTTPException as error:
                if isinstance(error, ConnectionError):
                    raise
                raise ApiError(what, 0, f"expected an answer in HTTP, got {error!r}") from error
            finally:
                connection.close()
        try:
            answer = json.loads(content) if content else None
        except (ValueError, RecursionError) as error:
            raise ApiError(what, response.status, f"expected JSON, got {content[:200]!r}") from error
        if response.status >= 300:
            fault = answer.get("fault_message") if isinstance(answer, dict) else None
            raise ApiError(what, response.status, str(fault or response.reason))
        return answer


class _Connection(http.client.HTTPConnection):
    """HTTP over a Unix socket."""

    def __init__(self, address: str, timeout_s: float) -> None:
        super().__init__("localhost", timeout=timeout_s)
        self._address = address

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._address)
