"""Whether a file can be a root file system, by what stands at its beginning; a machine would find out much later."""

from __future__ import annotations

import struct
from pathlib import Path

from agentenv.errors import RuntimeUnavailable

_HEAD_BYTES = 4096
# Offsets in a superblock of ext4, which begins at 1024: the kernel's Documentation/filesystems/ext4/super.rst.
_SUPERBLOCK, _MAGIC_AT, _EXT4_MAGIC = 1024, 56, 0xEF53
_64BIT = 0x80
# A superblock of squashfs: magic, and at 40 how many bytes are used.
_SQUASHFS_MAGIC, _USED_AT = b"hsqs", 40


def check_root(path: Path) -> None:
    """Look whether a file is an image that can be mounted as root file system: ext4 or squashfs, and whole.

    Raises:
        RuntimeUnavailable: It is not; says what it is, and how to get one.
    """
    remedy = 'build one: agentenv image build NAME --from SOURCE, then rootfs_image = "NAME"'
    try:
        with open(path, "rb") as file:
            head = file.read(_HEAD_BYTES)
        size = path.stat().st_size
    except OSError as error:
        raise RuntimeUnavailable(f"image {path}: expected a readable file: {error.strerror}", remedy) from error
    expected = _size(head)
    if expected is None:
        what = f"it begins with {head[:4]!r}" if head else "it is empty"
        raise RuntimeUnavailable(f"image {path}: expected an ext4 or squashfs file system, {what}", remedy)
    if size < expected:
        raise RuntimeUnavailable(
            f"image {path}: it is cut short: expected {expected} bytes, got {size}", f"copy it again, or {remedy}"
        )


def _size(head: bytes) -> int | None:
    """How long a file must be at least that begins like this; None where it is no file system we know."""
    if head[:4] == _SQUASHFS_MAGIC and len(head) >= _USED_AT + 8:
        return int(struct.unpack_from("<Q", head, _USED_AT)[0])
    if len(head) < 2 * _SUPERBLOCK:
        return None
    block = head[_SUPERBLOCK:]
    if struct.unpack_from("<H", block, _MAGIC_AT)[0] != _EXT4_MAGIC:
        return None
    (blocks,), (shift,) = struct.unpack_from("<I", block, 4), struct.unpack_from("<I", block, 24)
    if struct.unpack_from("<I", block, 96)[0] & _64BIT:
        blocks |= struct.unpack_from("<I", block, 0x150)[0] << 32
    return int(blocks) << (10 + min(int(shift), 6))
