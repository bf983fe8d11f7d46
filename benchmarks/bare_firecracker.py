"""Firecracker driven by hand, as a script would: what agentenv's driver is measured against.

It knows nothing of agentenv but the first words of its agent, which tell when a machine is up.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import time
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

PORT = 1024
_ARGS = "console=ttyS0 reboot=k panic=1"


class _Http(HTTPConnection):
    def __init__(self, path: Path) -> None:
        super().__init__("localhost")
        self.path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.connect(str(self.path))


class BareFirecracker:
    """One Firecracker in a directory."""

    def __init__(self, binary: str, directory: Path) -> None:
        self.directory = directory
        self.log = open(directory / "console", "wb")  # noqa: SIM115  # closed with it
        self.process = subprocess.Popen(
            [binary, "--api-sock", "api.sock", "--level", "Warn"],
            cwd=directory,
            stdin=subprocess.DEVNULL,
            stdout=self.log,
            stderr=self.log,
        )
        while not (directory / "api.sock").exists():
            if self.process.poll() is not None:
                raise RuntimeError((directory / "console").read_text())
            time.sleep(0.001)
        self.http = _Http(directory / "api.sock")

    def call(self, method: str, path: str, body: dict[str, Any]) -> None:
        self.http.request(method, path, json.dumps(body), {"Content-Type": "application/json"})
        answer = self.http.getresponse()
        text = answer.read()
        if answer.status >= 300:
            raise RuntimeError(f"{method} {path}: {text!r}")

    def boot(self, kernel: Path, initramfs: Path, drives: list[tuple[str, bool]], memory_mb: int) -> None:
        self.call("PUT", "/machine-config", {"vcpu_count": 1, "mem_size_mib": memory_mb})
        boot = {"kernel_image_path": str(kernel), "initrd_path": str(initramfs), "boot_args": _ARGS}
        self.call("PUT", "/boot-source", boot)
        for number, (path, readonly) in enumerate(drives):
            drive = {
                "drive_id": f"d{number}",
                "path_on_host": path,
                "is_root_device": False,
                "is_read_only": readonly,
            }
            self.call("PUT", f"/drives/d{number}", drive)
        self.call("PUT", "/vsock", {"guest_cid": 3, "uds_path": "v.sock"})
        self.call("PUT", "/entropy", {})
        self.call("PUT", "/actions", {"action_type": "InstanceStart"})

    def save(self) -> None:
        self.call("PATCH", "/vm", {"state": "Paused"})
        self.call("PUT", "/snapshot/create", {"snapshot_path": "state", "mem_file_path": "memory"})

    def load(self, directory: Path) -> None:
        backend = {"backend_type": "File", "backend_path": str(directory / "memory")}
        self.call(
            "PUT",
            "/snapshot/load",
            {"snapshot_path": str(directory / "state"), "mem_backend": backend, "resume_vm": True},
        )

    def round_trip(self, word: bytes, within_s: float = 120.0) -> None:
        """Until the agent has repeated a word."""
        ends = time.monotonic() + within_s
        while time.monotonic() < ends:
            with socket.socket(socket.AF_UNIX) as stream:
                stream.settimeout(2.0)
                try:
                    stream.connect(str(self.directory / "v.sock"))
                    stream.sendall(b"CONNECT %d\n" % PORT)
                    line = b""
                    while not line.endswith(b"\n"):
                        byte = stream.recv(1)
                        if not byte:
                            raise ConnectionError
                        line += byte
                    stream.sendall(word)
                    heard = b""
                    while not heard.endswith(word):
                        part = stream.recv(4096)
                        if not part:
                            raise ConnectionError
                        heard += part
                    return
                except OSError:
                    time.sleep(0.01)
        raise TimeoutError("nobody answered")

    def close(self) -> None:
        self.http.close()
        self.process.kill()
        self.process.wait()
        self.log.close()
        for name in ("api.sock", "v.sock"):
            if os.path.exists(self.directory / name):
                os.unlink(self.directory / name)
