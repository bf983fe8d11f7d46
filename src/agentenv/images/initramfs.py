"""The first file system of a machine: a busybox, the kernel's modules, and the script that finds the real one."""

from __future__ import annotations

import hashlib
import struct
from importlib.resources import files
from pathlib import Path

from agentenv.errors import RuntimeUnavailable
from agentenv.images.content import key_of
from agentenv.images.cpio import character_device, directory, file, write_cpio
from agentenv.images.files import digest_file
from agentenv.images.kernels import Kernel
from agentenv.images.programs import apt, find_program
from agentenv.images.progress import LINES, Report
from agentenv.images.store import Store

_FORMAT = 1
_FILE = "initramfs.cpio"
_PT_INTERP = 3


def initramfs_for(kernel: Kernel, store: Store, report: Report = LINES) -> Path:
    """The first file system for a kernel; made once for each kernel, busybox and version of agentenv.

    Raises:
        RuntimeUnavailable: This host has no static busybox.
    """
    busybox = find_busybox()
    script = files("agentenv.images").joinpath("init.sh").read_bytes()
    modules = [(path.name, digest_file(path)) for path in kernel.modules]
    key = key_of("initramfs", _FORMAT, modules, digest_file(busybox), hashlib.sha256(script).hexdigest())

    def build(out: Path) -> None:
        entries = [directory(name) for name in ("bin", "dev", "modules")]
        # The kernel opens it for the script before there is a /dev.
        entries.append(character_device("dev/console", 5, 1))
        entries.append(file("bin/busybox", busybox.read_bytes(), executable=True))
        entries.append(file("init", script, executable=True))
        entries += [file(f"modules/{path.name}", path.read_bytes()) for path in kernel.modules]
        with open(out / _FILE, "xb") as archive:
            write_cpio(archive, entries)

    return store.once(key, build, what="the same first file system", report=report) / _FILE


def find_busybox() -> Path:
    """A busybox of this host that needs no libraries.

    Raises:
        RuntimeUnavailable: There is none.
    """
    seen = []
    for name in ("busybox", "busybox.static", "busybox-static"):
        found = find_program(name)
        if found is None:
            continue
        path = Path(found).resolve()
        if not needs_loader(path):
            return path
        seen.append(str(path))
    what = f", and {' and '.join(seen)} needs shared libraries" if seen else ", and there is none on PATH"
    message = f"expected a static busybox for the first file system of machines{what}"
    raise RuntimeUnavailable(message, apt("busybox-static"))


def needs_loader(path: Path) -> bool:
    """Whether a program is an ELF file that needs a dynamic loader."""
    return find_loader(path) is not None


def find_loader(path: Path) -> str | None:
    """The dynamic loader a program asks for, or None.

    Raises:
        RuntimeUnavailable: It is not a 64-bit ELF file.
    """
    data = path.read_bytes()
    if data[:5] != b"\x7fELF\x02":
        raise RuntimeUnavailable(f"expected a 64-bit program, and {path} is something else")
    (headers,) = struct.unpack_from("<Q", data, 32)
    size, count = struct.unpack_from("<HH", data, 54)
    for index in range(count):
        at = headers + index * size
        if struct.unpack_from("<I", data, at)[0] == _PT_INTERP:
            offset, length = struct.unpack_from("<Q", data, at + 8)[0], struct.unpack_from("<Q", data, at + 32)[0]
            return data[offset : offset + length].rstrip(b"\0").decode()
    return None
