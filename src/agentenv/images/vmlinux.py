"""Gets an uncompressed kernel out of a bzImage, and checks that what is given is a kernel this machine can boot.

The header of a bzImage is described in the kernel's Documentation/arch/x86/boot.rst; where the payload lies is told by
it. What it is compressed with is seen from the payload's first bytes.
"""

from __future__ import annotations

import bz2
import io
import lzma
import re
import struct
import subprocess
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agentenv.errors import ConfigError, Problem, RuntimeUnavailable
from agentenv.images.programs import need_program
from agentenv.sandbox.runtimes._vm.files import has_pvh_entry

_ELF, _X86_64 = b"\x7fELF", 62
_MAGICS = {
    b"\x02\x21\x4c\x18": "lz4",
    b"\x28\xb5\x2f\xfd": "zstd",
    b"\x1f\x8b\x08": "gzip",
    b"\xfd7zXZ\x00": "xz",
    b"BZh": "bzip2",
    b"\x5d\x00\x00": "lzma",
}
_VERSION = re.compile(rb"Linux version (\S{1,80}) ")
_MOST = 512 << 20


@dataclass(frozen=True, slots=True)
class Vmlinux:
    """An uncompressed kernel.

    Attributes:
        data: An ELF file for x86-64.
        version: As ``uname -r`` will say; "" where it is not found.
        pvh: Whether it has the entry that QEMU needs to boot it directly.
    """

    data: bytes
    version: str
    pvh: bool


def read_kernel(path: Path) -> Vmlinux:
    """Read a kernel: an uncompressed one, or a bzImage.

    Raises:
        ConfigError: It is neither.
        RuntimeUnavailable: The program that decompresses it is missing.
    """
    try:
        data = path.read_bytes() if path.stat().st_size <= _MOST else b""
    except OSError as error:
        raise _wrong(f"expected a kernel, and {path} cannot be read: {error.strerror}") from error
    if data[:4] != _ELF:
        if data[0x202:0x206] != b"HdrS":
            raise _wrong(f"expected a kernel (vmlinux or bzImage) for x86-64, and {path} is none")
        data = _extract(data, path)
    if len(data) < 64 or data[:4] != _ELF or struct.unpack_from("<H", data, 18)[0] != _X86_64 or data[4] != 2:
        raise _wrong(f"expected a kernel for x86-64, and {path} holds another kind of file")
    found = _VERSION.search(data)
    return Vmlinux(data, found[1].decode("ascii", "replace") if found else "", _has_pvh(data))


def _extract(image: bytes, path: Path) -> bytes:
    setup_sectors = image[0x1F1] or 4
    offset, length = struct.unpack_from("<II", image, 0x248)
    start = (setup_sectors + 1) * 512 + offset
    payload = image[start : start + length]
    for magic, name in _MAGICS.items():
        if payload.startswith(magic):
            return _decompress(payload, name, path)
    # Before protocol 2.08 the header does not say where it lies.
    for magic, name in _MAGICS.items():
        at = image.find(magic)
        while at >= 0 and name != "lzma":
            try:
                data = _decompress(image[at:], name, path)
            except ConfigError:
                data = b""
            if data[:4] == _ELF:
                return data
            at = image.find(magic, at + 1)
    raise _wrong(f"expected a kernel compressed by {', '.join(_MAGICS.values())}, and {path} is by something else")


def _decompress(payload: bytes, name: str, path: Path) -> bytes:
    own: dict[str, Callable[[], Any]] = {
        "gzip": lambda: zlib.decompressobj(31),
        "xz": lambda: lzma.LZMADecompressor(lzma.FORMAT_XZ),
        "lzma": lambda: lzma.LZMADecompressor(lzma.FORMAT_ALONE),
        "bzip2": bz2.BZ2Decompressor,
    }
    if name in own:
        inflate = own[name]()
        try:
            data: bytes = inflate.decompress(payload, _MOST)
        except (zlib.error, lzma.LZMAError, OSError, EOFError) as error:
            raise _wrong(f"expected a whole kernel, and {path} is damaged: {error}") from error
        if not inflate.eof:
            raise _wrong(f"expected a whole kernel, and {path} ends in the middle")
        return data
    program = need_program(name, f"to unpack {path.name}, which is compressed by it")
    # The last four bytes tell the size, which the programs would take for damage.
    done = subprocess.run([program, "-d", "-c", "-q"], input=payload[:-4], capture_output=True, check=False)
    if done.returncode != 0 and done.stdout[:4] != _ELF:
        raise _wrong(f"expected a whole kernel, and {name} cannot unpack {path}: {done.stderr.decode().strip()[-200:]}")
    return done.stdout


def _has_pvh(data: bytes) -> bool:
    try:
        return has_pvh_entry(io.BytesIO(data))
    except struct.error:
        return False


def check_bootable(kernel: Vmlinux, path: Path) -> None:
    """Refuse a kernel that no machine here could start from.

    Raises:
        RuntimeUnavailable: It has no PVH entry.
    """
    if not kernel.pvh:
        raise RuntimeUnavailable(
            f"expected a kernel with a PVH entry, and {path} has none",
            "build it with CONFIG_PVH=y, or take the distribution's: agentenv kernel fetch",
        )


def _wrong(message: str) -> ConfigError:
    return ConfigError([Problem("kernel", "--from", message)])
