"""A command to run in a machine, and the files by which the machine learns of it."""

from __future__ import annotations

import os
import secrets
import shlex
import socket
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from .assets import Assets
from .cpio import archive
from .kernel import load_order

FRESH = ("/tmp", "/run", "/dev/shm")
"""Where a machine has file systems of its own, and the host's is seen only where it is asked for."""

_HERE = Path(__file__).resolve().parent


@dataclass(frozen=True, slots=True)
class Job:
    """A command and what it needs.

    Attributes:
        command: Program and arguments.
        cwd: Where it is started.
        variables: Its environment.
        see: Directories of the host that must be visible, wherever they are.
        write: Directories of the host that it may change.
        tty: Whether it has a terminal, or else its output and its errors are kept apart.
        token: What ends its output.
    """

    command: Sequence[str]
    cwd: Path
    variables: dict[str, str]
    see: Sequence[Path] = ()
    write: Sequence[Path] = ()
    tty: bool = False
    token: bytes = field(default_factory=lambda: b"\4" + secrets.token_hex(16).encode())

    def initramfs(self, assets: Assets) -> bytes:
        """The first file system of its machine."""
        order = load_order(assets.modules)
        files = {f"modules/{name}": (assets.modules / name).read_bytes() for name in order}
        files |= {
            "init": (_HERE / "init.sh").read_bytes(),
            "guest.sh": (_HERE / "guest.sh").read_bytes(),
            "bin/busybox": assets.busybox.read_bytes(),
            "modules/order": "".join(f"{name}\n" for name in order).encode(),
            "job/mounts": self._mounts(assets),
            "job/settings": self._settings(),
            "job/command": self._script(),
        }
        return archive(files, frozenset({"init", "bin/busybox"}))

    def _mounts(self, assets: Assets) -> bytes:
        lines = [("bind", str(assets.modules), f"/lib/modules/{assets.version}")]
        lines += [("bind", str(path), str(path)) for path in hidden([*self.see, assets.home])]
        lines += [("write", f"write{number}", str(path)) for number, path in enumerate(self.write)]
        return b"".join(os.fsencode("\t".join(line)) + b"\n" for line in lines)

    def _settings(self) -> bytes:
        tty = "yes" if self.tty else "no"
        name = shlex.quote(socket.gethostname())  # /etc/hosts has an address for it
        return f"token={self.token[1:].decode()} tty={tty} name={name}\n".encode()

    def _script(self) -> bytes:
        """Says who it is, and becomes the command; whether there is such a program is env's to say."""
        quoted = [shlex.quote(f"{name}={value}") for name, value in self.variables.items()]
        lines = [
            *(["tty >terminal"] if self.tty else []),
            "echo $$ >pid",
            "ulimit -Hn 1048576",  # as systemd gives
            f"cd -- {shlex.quote(str(self.cwd))} || exit 125",
            " ".join(["exec /usr/bin/env -i", *quoted, *map(shlex.quote, self.command)]),
        ]
        return os.fsencode("\n".join(lines) + "\n")


def hidden(paths: Sequence[Path]) -> list[Path]:
    """Those of these directories that would not be seen, outermost first and none inside another."""
    found: list[Path] = []
    for path in sorted({path.resolve() for path in paths}):
        if any(path.is_relative_to(place) for place in FRESH) and not any(path.is_relative_to(one) for one in found):
            found.append(path)
    return found


def checkout(path: Path) -> Path:
    """The directory with .git that this is in, or else the path itself."""
    return next((one for one in (path, *path.parents) if (one / ".git").exists()), path)
