"""Machines for tests: a kernel, and a first file system in which an agent answers lines; made once, kept in a cache.

The kernel, busybox and Firecracker are those that tools/kvmlab keeps; ``agent.pl`` says what the agent understands.
"""

from __future__ import annotations

import functools
import hashlib
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

_HERE = Path(__file__).resolve().parent
_TOOLS = _HERE.parents[2] / "tools"
_MODULES = (
    "virtio_mmio", "virtio_blk", "virtio_console", "virtio-rng", "virtio_net", "vmw_vsock_virtio_transport",
    "virtio_balloon"
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Assets:
    """What a machine of a test is booted from.

    Attributes:
        kernel: An uncompressed kernel.
        initramfs: Its first file system.
        bin: The directory of firecracker and jailer.
    """

    kernel: Path
    initramfs: Path
    bin: Path


@functools.cache
def fetch() -> Assets | str:
    """The assets, or why there are none."""
    sys.path.insert(0, str(_TOOLS))
    try:
        from kvmlab_parts import assets as lab
        from kvmlab_parts.cpio import archive
        from kvmlab_parts.errors import LabError
    finally:
        sys.path.remove(str(_TOOLS))
    try:
        found = lab.fetch(lambda line: None)
    except LabError as error:
        return str(error)
    perl = shutil.which("perl")
    if perl is None:
        return "perl is missing: apt-get install perl-base"
    order = _load_order(found.modules)
    files = {f"modules/{PurePosixPath(name).name}": (found.modules / name).read_bytes() for name in order}
    files["modules/order"] = "".join(f"{PurePosixPath(name).name}\n" for name in order).encode()
    files |= {"init": (_HERE / "init.sh").read_bytes(), "agent.pl": (_HERE / "agent.pl").read_bytes()}
    files |= {"bin/busybox": found.busybox.read_bytes(), "bin/perl": Path(perl).read_bytes()}
    libraries = {path: Path(path).read_bytes() for path in _libraries(perl)}
    files |= {path.lstrip("/"): content for path, content in libraries.items()}
    files |= {f"{name}/keep": b"" for name in ("proc", "sys", "dev")}
    programs = frozenset({"init", "bin/busybox", "bin/perl", *(path.lstrip("/") for path in libraries)})
    content = archive(files, programs)
    initramfs = found.home / f"tests-{hashlib.sha256(content).hexdigest()[:16]}.cpio"
    if not initramfs.exists():
        with tempfile.NamedTemporaryFile(dir=found.home, prefix="partial-", delete=False) as file:
            file.write(content)
        os.chmod(file.name, 0o644)
        os.rename(file.name, initramfs)
    return Assets(found.vmlinux, initramfs, found.bin)


def _load_order(modules: Path) -> list[str]:
    """The files of the modules, relative to this directory, what is needed first."""
    needs = {}
    for line in (modules / "modules.dep").read_text().splitlines():
        file, _, first = line.partition(":")
        needs[PurePosixPath(file).name.partition(".")[0]] = [*reversed(first.split()), file]
    return list(dict.fromkeys(file for module in _MODULES for file in needs.get(module, ())))


def _libraries(program: str) -> list[str]:
    done = subprocess.run(["ldd", program], capture_output=True, text=True, check=True)
    return [word for line in done.stdout.splitlines() for word in line.split() if word.startswith("/")]


def ask(stream: socket.socket, line: str, timeout_s: float = 30.0) -> str:
    """What the agent answers to a line."""
    stream.settimeout(timeout_s)
    stream.sendall(line.encode() + b"\n")
    answer = b""
    while not answer.endswith(b"\n"):
        data = stream.recv(1 << 16)
        if not data:
            raise ConnectionError(f"the agent was gone after {answer!r}")
        answer += data
    return answer[:-1].decode()


def unshared_mb(pid: int) -> float:
    """Memory that only this process has, MiB."""
    text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    return sum(int(line.split()[1]) for line in text.splitlines() if line.startswith("Private_")) / 1024


def digest(path: Path) -> str:
    """Of a file's content; what holds only zeros is passed over, as there is much of nothing in memory."""
    found = hashlib.blake2b()
    nothing = bytes(1 << 16)
    with open(path, "rb", buffering=0) as file:
        at = 0
        while block := file.read(len(nothing)):
            if block != nothing:
                found.update(at.to_bytes(8, "little") + block)
            at += len(block)
    return found.hexdigest()
