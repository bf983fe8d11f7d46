"""Gets an uncompressed kernel out of a bzImage, and checks that what is given is a kernel this machine can boot.

The header of a bzImage is described in the kernel's Documentation/arch/x86/boot.rst; where the payload lies is told by
it. What it is compressed with is seen from the payload's first bytes.
"""

from __future__ import annotations

import bz2
import io
import itertools
import lzma
import re
import struct
import subprocess
import tempfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agentenv.errors import ConfigError, Problem, RuntimeUnavailable
from agentenv.images.programs import end, need_program
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
_MOST_TRIED = 100


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
    if len(image) < 0x250:
        raise _wrong(f"expected a whole kernel, and {path} ends in its header")
    setup_sectors = image[0x1F1] or 4
    offset, length = struct.unpack_from("<II", image, 0x248)
    start = (setup_sectors + 1) * 512 + offset
    payload = image[start : start + length]
    for magic, name in _MAGICS.items():
        if payload.startswith(magic):
            return _decompress(payload, name, path)
    # Before protocol 2.08 the header does not say where it lies.
    older = struct.unpack_from("<H", image, 0x206)[0] < 0x208
    for at, name in itertools.islice(_candidates(image), _MOST_TRIED if older else 0):
        try:
            data = _decompress(image[at:], name, path)
        except ConfigError:
            continue
        if data[:4] == _ELF:
            return data
    raise _wrong(f"expected a kernel compressed by {', '.join(_MAGICS.values())}, and {path} is by something else")


def _candidates(image: bytes) -> Iterator[tuple[int, str]]:
    """Where something compressed may begin, and by what; the first bytes of lzma are too common."""
    for magic, name in _MAGICS.items():
        at = image.find(magic) if name != "lzma" else -1
        while at >= 0:
            yield at, name
            at = image.find(magic, at + 1)


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
    data, complaint = _run(program, payload[:-4])
    if complaint and data[:4] != _ELF:
        raise _wrong(f"expected a whole kernel, and {name} cannot unpack {path}: {complaint}")
    return data


def _run(program: str, payload: bytes) -> tuple[bytes, str]:
    """What a program makes of a payload, at most as much as any kernel has, and what is wrong with that."""
    with tempfile.TemporaryFile() as given, tempfile.TemporaryFile() as errors:
        given.write(payload)
        given.seek(0)
        process = subprocess.Popen(
            [program, "-d", "-c", "-q"], stdin=given, stdout=subprocess.PIPE, stderr=errors, start_new_session=True
        )
        assert process.stdout is not None
        try:
            data = process.stdout.read(_MOST)
            if process.stdout.read(1):
                return b"", f"it is larger than {_MOST >> 20} MiB"
            if process.wait() == 0:
                return data, ""
        finally:
            end(process)
            process.stdout.close()
        errors.seek(0)
        return data, errors.read().decode(errors="replace").strip()[-200:] or f"exit code {process.returncode}"


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
